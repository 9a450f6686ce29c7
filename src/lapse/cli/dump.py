"""`lapse dump PATH`: what is in a segment, a partition or a log directory, down to the records.

What Kafka calls DumpLogSegments.

With `--json` each line holds what the oracle's `dump` (tests/oracle) says of the same thing, and a
few fields more. Records of `__consumer_offsets` and `__transaction_state` are decoded; `--state`
shows instead what they amount to: groups with their members and offsets, and transactions. Only
looks; reads files as they are on disk: what cannot be read is said on stderr, the rest is shown,
and the exit code is 1.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from lapse.base.errors import ConfigError, CorruptData, LapseError, unreadable
from lapse.cli.dump_files import dump_side_file, side_files
from lapse.cli.dump_log import DumpOptions, Line, dump_log
from lapse.cli.dump_topics import DECODERS, NO_DECODER, decoder_for, dump_state, internal_topics
from lapse.cli.quantities import whole_number
from lapse.log.segment import base_offset_of

_AUTO = "auto"
EXAMPLES = """\
examples:
  lapse dump /var/lib/kafka/data/orders-0 --no-records
  lapse dump /var/lib/kafka/data/users-3 --key u-17 --text
  lapse dump orders-0/00000000000000004711.log --from-offset 4800 --json
  lapse dump /var/lib/kafka/data --state
"""
_INDENTED = {"record", "member", "offset"}


def add_options(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument(
        "path", type=Path, metavar="PATH", help="a .log file, a partition or a log directory"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--no-records", action="store_true", help="batch headers only")
    parser.add_argument(
        "--values",
        choices=("hash", "hex"),
        default="hash",
        help="how values longer than 8 bytes are shown (default: %(default)s)",
    )
    parser.add_argument(
        "--text", action="store_true", help="keys, values and headers as text, not hexadecimal"
    )
    parser.add_argument("--key", metavar="K", help="only records of this key, and their batches")
    parser.add_argument(
        "--from-offset", type=whole_number(), default=0, metavar="N",
        help="only batches and records from here on",
    )  # fmt: skip
    parser.add_argument(
        "--decode",
        choices=(_AUTO, *DECODERS, NO_DECODER),
        default=_AUTO,
        help="whose records these are (default: what the directory's name says)",
    )
    parser.add_argument(
        "--state",
        action="store_true",
        help="groups and transactions as the records leave them, instead of the records",
    )


def run(args: argparse.Namespace) -> int:
    """Exit 0, or 1 if something could not be read to its end."""
    problems: list[CorruptData] = []

    def report(problem: CorruptData) -> None:
        sys.stdout.flush()
        print(f"lapse: {problem}", file=sys.stderr)
        problems.append(problem)

    show = _as_json if args.json else _as_text
    try:
        if not args.path.exists():
            raise LapseError(f"{args.path}: no such file or directory")
        for line in (_state if args.state else _files)(args, report):
            sys.stdout.write(show(line))
    except BrokenPipeError:
        raise
    except OSError as e:
        raise unreadable(e, e.filename or args.path) from e
    return 1 if problems else 0


def _files(args: argparse.Namespace, report: Any) -> Iterator[Line]:
    path: Path = args.path
    named = decoder_for((path if path.is_dir() else path.absolute().parent).name)
    decoder = named if args.decode == _AUTO else DECODERS.get(args.decode)
    if args.key is not None and args.no_records:
        raise ConfigError("--key: not with --no-records, which looks at no key")
    options = DumpOptions(
        records=not args.no_records, values=args.values, decode=decoder, report=report,
        as_text=args.text, key=None if args.key is None else os.fsencode(args.key),
        from_offset=args.from_offset,
    )  # fmt: skip
    if not path.is_dir():
        yield from dump_log(path, options)
        return
    # A live broker may remove a file once it is listed: then it is not there any more.
    logs = sorted(path.glob("*.log"))
    for n, log in enumerate(logs):
        next_base = base_offset_of(logs[n + 1].name) if n + 1 < len(logs) else None
        if next_base is not None and next_base <= args.from_offset:
            continue
        with suppress(FileNotFoundError):
            yield from dump_log(log, options)
    is_about_some = args.key is not None or args.from_offset
    for side in () if is_about_some else side_files(path):
        with suppress(FileNotFoundError):
            yield dump_side_file(side, side.relative_to(path).as_posix(), report)


def _state(args: argparse.Namespace, report: Any) -> Iterator[Line]:
    path: Path = args.path
    given = {"--text": args.text, "--key": args.key, "--from-offset": args.from_offset or None}
    for name, value in given.items():
        if value:
            raise ConfigError(f"{name}: not with --state, which shows no records")
    if not path.is_dir():
        raise ConfigError(f"--state {path}: allowed is a partition or a log directory")
    if args.decode in DECODERS:
        partitions = {path: args.decode}
    else:
        partitions = internal_topics(path) if args.decode == _AUTO else {}
    if not partitions:
        raise ConfigError(
            f"--state {path}: holds no partition of an internal topic; "
            f"allowed with --decode {' or '.join(DECODERS)}"
        )
    for partition, kind in partitions.items():
        yield from dump_state(partition, kind, report)


def _as_json(line: Line) -> str:
    return msgspec.json.encode(line).decode() + os.linesep


def _as_text(line: Line) -> str:
    kind = line["type"]
    indent = "  " if kind in _INDENTED else ""
    shown = " ".join(f"{k}={_plain(v)}" for k, v in line.items() if k not in {"type", "sha256"})
    return f"{indent}{kind} {shown}{os.linesep}"


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return msgspec.json.encode(value).decode()
    return "null" if value is None else str(value)
