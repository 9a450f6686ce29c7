"""`lapse`: commands, help, and how errors and signals end the process.

Exit codes: 0 done, 1 finding, 2 usage (a bad option or setting), 3 environment (missing Java, a
lock held, a full disk).
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lapse.base.errors import ConfigError, CorruptData, LapseError, MissingData, unreadable
from lapse.base.extras import MissingExtra, needed_for, require
from lapse.cli.parser import USAGE, Formatter, Parser


@dataclass(frozen=True, slots=True)
class Command:
    """A command: its module, what help says of it, and what its module cannot be imported without.

    `needs` is a package of an extra; what a command needs for some options only is not there.
    """

    module: str
    summary: str
    needs: str = ""


# In the order help shows them. A module has `add_options`, `run` and, for its help, EXAMPLES. It is
# imported only when it is used: `lapse --help` starts no Spark, and nothing else either.
COMMANDS: Mapping[str, Command] = {
    "up": Command("lapse.cli.up", "run broker and lifecycle service"),
    "broker": Command("lapse.cli.broker", "run a broker alone"),
    "lifecycle": Command("lapse.cli.lifecycle", "run the lifecycle service alone"),
    "rounds": Command(
        "lapse.cli.rounds", "watch, pause, resume and cancel rounds of the lifecycle service"
    ),
    "clean": Command("lapse.cli.clean", "run rounds over a Kafka log directory, offline"),
    "plan": Command("lapse.cli.plan", "what would be cleaned and why; only looks"),
    "explain": Command(
        "lapse.cli.explain",
        "what holds a log back, and when that ends; the fate of a record; only looks",
    ),
    "verify": Command("lapse.cli.verify", "check a cleaning pass, Kafka's own or ours; only looks"),
    "erase": Command(
        "lapse.cli.erase", "erase records of keys from all replicas, and prove it", "cryptography"
    ),
    "prove-erased": Command(
        "lapse.cli.prove_erased",
        "prove that records of a key are gone from every file; only looks",
        "cryptography",
    ),
    "dump": Command(
        "lapse.cli.dump",
        "show batches, records and side files of a segment, partition or log directory",
    ),
    "repair": Command(
        "lapse.cli.repair", "what is missing or does not read, and what to do about it"
    ),
    "convert": Command(
        "lapse.cli.convert", "copy a data directory for a real Kafka, or rewrite old record formats"
    ),
    "move-metadata": Command(
        "lapse.cli.move_metadata",
        "move a broker's topics, settings and users from its file to ZooKeeper",
    ),
    "adopt": Command(
        "lapse.cli.adopt",
        "take over a stopped Kafka node's directories: topics, settings, groups, users",
    ),
    "export": Command(
        "lapse.cli.export", "keep a table of Parquet, Delta or Iceberg that has what a topic has"
    ),
    "copy": Command(
        "lapse.cli.copy", "copy topics to another cluster, create times included; resumable"
    ),
    "topic": Command("lapse.cli.topic", "create, alter, delete, list and describe topics"),
    "group": Command("lapse.cli.group", "list, describe and delete consumer groups"),
    "record": Command("lapse.cli.record", "write a few records to a topic, or show some"),
    "delete-records": Command(
        "lapse.cli.delete_records", "delete records before an offset or a time"
    ),
    "delete-consumed": Command(
        "lapse.cli.delete_consumed", "delete records that all listed consumers have read"
    ),
    "config": Command(
        "lapse.cli.config", "check a broker's settings, show and alter those of running ones"
    ),
    "doctor": Command("lapse.cli.doctor", "what this machine has of what Lapse needs; only looks"),
    "completion": Command(
        "lapse.cli.completion", "what bash, zsh or fish needs to complete commands and options"
    ),
    "demo": Command("lapse.cli.demo", "the main job on real records in a minute, with the proof"),
    "bench": Command("lapse.cli.bench", "measure rounds on copies of logs"),
}
# Their examples say it all; of the others help shows the module's docstring.
_UNDESCRIBED = {"broker", "topic", "delete-records", "delete-consumed", "bench"}

FINDING, ENVIRONMENT = 1, 3
HELP = "help.json"  # what help says of each command, made by tools/cli_doc


def build_parser(only: str | None = None) -> argparse.ArgumentParser:
    """The parser of one command, or of no command's options: a list of what there is."""
    parser = Parser(
        prog="lapse",
        description="A Kafka-compatible log that forgets on time, never early, and can prove it.",
        epilog="Try `lapse plan DIR` on any Kafka data directory: it only looks.",
    )
    parser.add_argument(
        "--version", action=_Version, nargs=0, dest=argparse.SUPPRESS, default=argparse.SUPPRESS,
        help="show which Lapse this is",
    )  # fmt: skip
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    if only is None:
        for name, command in COMMANDS.items():
            commands.add_parser(name, help=_summary(name, command))
        return parser
    command, module = COMMANDS[only], importlib.import_module(COMMANDS[only].module)
    added = commands.add_parser(
        only,
        help=command.summary,
        description=None if only in _UNDESCRIBED else module.__doc__,
        epilog=getattr(module, "EXAMPLES", None),
        formatter_class=Formatter,
    )
    module.add_options(added)
    added.set_defaults(run=module.run)
    return parser


def stored_help(argv: Sequence[str]) -> str | None:
    """What help says of the command that these words name; None where nobody asks for it.

    Made beforehand: a command's own parser would import all that the command needs.
    """
    words = argv[: argv.index("--")] if "--" in argv else argv
    if not words or words[0] not in COMMANDS or not {"-h", "--help"} & set(words):
        return None
    texts = json.loads(Path(__file__).with_name(HELP).read_bytes())
    verb = f"{words[0]} {words[1]}" if len(words) > 1 else ""
    found: str | None = texts.get(verb) or texts.get(words[0])
    return found


class _Version(argparse.Action):
    """What is installed is asked for only if somebody asks."""

    def __call__(self, *_: object) -> None:
        from importlib.metadata import version  # noqa: PLC0415

        print(f"lapse {version('lapse')}")
        sys.exit(0)


def _summary(name: str, command: Command) -> str:
    """What it does, or what to install for it."""
    if command.needs:
        try:
            require(command.needs, f"lapse {name}")
        except MissingExtra as e:
            return str(e)
    return command.summary


# Whatever umask a process was started with, only its user writes to what it or its children
# make: who may change a log's files is its owner.
_NO_OTHER_WRITERS = 0o022


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; errors meant for people become one line."""
    is_ours = argv is None  # the process, and not only a call in somebody else's
    if is_ours:
        _open_what_is_closed()
    argv = list(sys.argv[1:] if argv is None else argv)
    only = argv[0] if argv and argv[0] in COMMANDS else None
    try:
        with needed_for(f"lapse {only}"):
            args = _parsed(argv, only, is_ours=is_ours)
            code: int = args.run(args)
    except ConfigError as e:
        return _say(e, USAGE)
    except (CorruptData, MissingData) as e:
        return _say(e, FINDING)
    except LapseError as e:
        return _say(e, ENVIRONMENT)
    except BrokenPipeError:
        sys.stdout = None  # the reader is gone; flushing at exit would fail
        return 128 + signal.SIGPIPE
    except PermissionError as e:  # of a file; commands for which it matters say more
        return _say(unreadable(e), ENVIRONMENT)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except Exception:
        if not is_ours:
            raise
        traceback.print_exc()
        mistake = LapseError("this is a mistake in Lapse: please report it with the lines above")
        return _say(mistake, ENVIRONMENT)  # which no script takes for a finding
    return code


def _open_what_is_closed() -> None:
    """Have those of descriptors 0 to 2 lead nowhere that the process was started without (`2>&-`).

    The next file that is opened would get the number, and in it what a library or a child prints;
    and what is printed to a stream that is None goes to standard output. Standard input stays
    None: who is to read from it says that there is none.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # it gets the least number that is free
            os.set_inheritable(opened, True)
    for name, number in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            stream = open(  # noqa: SIM115  (for as long as the process runs)
                number, "w", encoding="utf-8", errors="backslashreplace", closefd=False
            )
            setattr(sys, name, stream)


def _parsed(argv: Sequence[str], only: str | None, *, is_ours: bool) -> argparse.Namespace:
    if is_ours:
        os.umask(os.umask(_NO_OTHER_WRITERS) | _NO_OTHER_WRITERS)
        if (text := stored_help(argv)) is not None:
            print(text, end="", flush=True)
            sys.exit(0)
        gc.disable()
    parser = build_parser(only)
    if is_ours:  # all that was imported stays: looking for garbage there is in vain, now and later
        gc.freeze()
        gc.enable()
    return parser.parse_args(argv)


def _say(error: LapseError, code: int) -> int:
    print(f"lapse: {error}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
