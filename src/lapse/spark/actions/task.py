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
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from lapse.base.decoding import from_json
from lapse.base.errors import ConfigError, LapseError, unreadable
from lapse.base.extras import needed_for
from lapse.base.fs import RealFs, temporary_folder
from lapse.cli.main import ENVIRONMENT, build_parser
from lapse.cli.parser import USAGE
from lapse.spark.session.jobs import Work


class Command(msgspec.Struct, frozen=True):
    """A command as it travels.

    Attributes:
        words: its name and its options, as on a command line.
        client: settings of Kafka's clients, secrets among them: a file of the task's own.
    """

    words: tuple[str, ...]
    client: dict[str, str] = {}


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
    with client_file(command) as words:
        args = parsed(words)
        code: int = args.run(args)
        return code


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


@contextlib.contextmanager
def client_file(command: Command) -> Iterator[tuple[str, ...]]:
    """The words, with the option that names a file of the client's settings, ours alone to read."""
    if not command.client:
        yield command.words
        return
    with temporary_folder("action") as folder:
        path = folder / "client.properties"
        lines = (f"{_escaped(name)}={_escaped(text)}\n" for name, text in command.client.items())
        RealFs().write_file(path, "".join(lines).encode())
        name, *rest = command.words
        yield (name, "--command-config", str(path), *rest)


def _escaped(text: str) -> str:
    """As a line of a properties file."""
    return "".join(_ESCAPES.get(letter, letter) for letter in text)


_ESCAPES = {"\\": "\\\\", "=": "\\=", ":": "\\:", "\n": "\\n", "\r": "\\r", " ": "\\ ", "#": "\\#",
            "!": "\\!", "\t": "\\t", "\f": "\\f"}  # fmt: skip
