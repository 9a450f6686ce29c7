"""What a task of an action does: one command of `lapse`, with `--json`, where the files are.

The rows of an action are what the command prints; so what an action says and what a terminal shows
cannot differ. A task answers with what was printed and how the command ended, never with an error
of its own: Spark would run it again.
"""

from __future__ import annotations

import contextlib
import functools
import io
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from lapse.base.decoding import from_json
from lapse.base.errors import ConfigError, LapseError, unreadable
from lapse.base.extras import needed_for
from lapse.cli.main import ENVIRONMENT, build_parser
from lapse.cli.parser import USAGE
from lapse.spark.session.jobs import Work


class Command(msgspec.Struct, frozen=True):
    """A command as it travels.

    Attributes:
        words: its name and its options, as on a command line.
        client: settings of Kafka's clients, secrets among them; not shown.
    """

    words: tuple[str, ...]
    client: dict[str, str] = {}

    def __repr__(self) -> str:
        """Its words alone."""
        return f"Command({self.words!r})"


class Ended(msgspec.Struct, frozen=True):
    """How it ended.

    Attributes:
        code: its exit code. error: what went wrong, empty where nothing did.
        printed: its output. remarks: what it said beside that, line by line.
    """

    code: int
    printed: str = ""
    remarks: tuple[str, ...] = ()
    error: str = ""


def run_command(encoded: bytes) -> bytes:
    """The command of a request; whatever becomes of it is in the answer."""
    command = from_json(encoded, Command)
    return msgspec.json.encode(_ended(command.words[0], lambda: _run(command)))


def run_answered(name: str, run: Callable[[], int]) -> bytes:
    """The same for a part of a command."""
    return msgspec.json.encode(_ended(name, run))


def answered(work: Callable[[bytes], Any]) -> Work:
    """The same for what is no whole command: what it returns is what is printed, as JSON."""

    @functools.wraps(work)
    def run(encoded: bytes) -> bytes:
        def print_it() -> int:
            sys.stdout.write(msgspec.json.encode(work(encoded)).decode())
            return 0

        return msgspec.json.encode(_ended(work.__name__, print_it))

    return run


def _ended(name: str, run: Callable[[], int]) -> Ended:
    printed, remarks = io.StringIO(), io.StringIO()
    code, error = ENVIRONMENT, ""
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(remarks):
        try:
            with needed_for(f"lapse {name}"):
                code = run()
        except ConfigError as e:
            code, error = USAGE, str(e)
        except LapseError as e:
            error = str(e)
        except OSError as e:
            error = str(unreadable(e))
        except Exception as e:  # noqa: BLE001  (Spark would run the task again)
            error = f"{type(e).__name__}: {e}"
    said = tuple(line.removeprefix("lapse: ") for line in remarks.getvalue().splitlines())
    return Ended(code, printed.getvalue(), said, error)


def _run(command: Command) -> int:
    args = arguments(command)
    code: int = args.run(args)
    return code


def arguments(command: Command) -> Namespace:
    """What a command means, with its client's settings in the place of the file that has them.

    They are in no file: Spark kills the worker of a task that is broken off, and a file would stay.
    Raises as `parsed`.
    """
    args = parsed(command.words)
    if command.client:
        if not hasattr(args, "command_config"):
            raise ConfigError(f"lapse {command.words[0]} talks to no broker, and takes no client")
        args.command_config = command.client
    return args


def parsed(words: Sequence[str]) -> Namespace:
    """What the words mean. Raises ConfigError as the command's own parser would print it.

    And MissingExtra where the command cannot be imported.
    """
    said = io.StringIO()
    try:
        with needed_for(f"lapse {words[0]}"), contextlib.redirect_stderr(said):
            return build_parser(words[0]).parse_args(list(words))
    except SystemExit as e:
        text = said.getvalue().strip().removeprefix("lapse: ")
        raise ConfigError(text.partition("; see `")[0]) from e
