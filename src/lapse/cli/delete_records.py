"""`lapse delete-records`: nothing before an offset or a time is served any more (KIP-107).

Options and file are those of Kafka's `kafka-delete-records`; the KIP's own name of the file's
option is taken too. A time instead of the file, or in place of the file's offsets, is ours.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import msgspec

from lapse.base.clock import SystemClock
from lapse.base.errors import ConfigError, StorageError
from lapse.base.ids import TopicPartition
from lapse.base.setting import INT_MAX, LONG_MAX
from lapse.cli.remote import add_remote, client_properties, print_table, request_timeout_ms
from lapse.client.admin import Admin
from lapse.client.deletion import Before
from lapse.client.login import Login, login
from lapse.client.offsets import By
from lapse.client.settings import DeleteRecordsResult

FILE_VERSION = 1
_DONE, _FINDING = 0, 1
_EXAMPLES = """\
examples:
  lapse delete-records --bootstrap-server 127.0.0.1:9092 --offset-json-file offsets.json
  lapse delete-records --topic clicks --before-time 2026-01-31T00:00:00Z
  lapse delete-records --topic clicks --before-time 30d
  lapse delete-records --topic clicks --before-time 30d --by append

the file:
  {"version": 1, "partitions": [{"topic": "clicks", "partition": 0, "offset": 42}]}

An offset of -1 is the high watermark. A time is one with a time zone, milliseconds since 1970, or
an age such as 30d, 12h, 90m, 45s; records are kept from the first one on that is not before it. One
without a time is as old as its append.
"""
_BY = {"time": By.AGE, "append": By.APPEND}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_AGES = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds"}


_Int = Annotated[int, msgspec.Meta(ge=-INT_MAX - 1, le=INT_MAX)]
_Long = Annotated[int, msgspec.Meta(ge=-LONG_MAX - 1, le=LONG_MAX)]


class _Row(msgspec.Struct, frozen=True):
    topic: str
    partition: _Int
    offset: _Long | None = None


class _File(msgspec.Struct, frozen=True):
    partitions: tuple[_Row, ...]
    version: int = FILE_VERSION  # Kafka's tool takes a file without one


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `delete-records`."""
    parser = subparsers.add_parser(
        "delete-records",
        help="delete records before an offset or a time",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_remote(parser)
    parser.add_argument(
        "--offset-json-file", "--delete-offset-json-file", dest="file", type=Path, metavar="FILE",
        help="partitions, and the offset before which records go",
    )  # fmt: skip
    parser.add_argument(
        "--topic", action="append", default=[], metavar="NAME",
        help="all partitions of a topic, with --before-time; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--before-time", metavar="TIME",
        help="delete what is older; with the file, for its partitions whatever their offsets",
    )  # fmt: skip
    parser.add_argument(
        "--by", choices=sorted(_BY), default="time",
        help="what --before-time means: a record's own time, or the append's where it has none "
        "(time, the default); that of its append, to the second (append)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Delete, and print what came of each partition; exit code 1 where one was refused."""
    properties = client_properties(args.command_config)
    timeout_ms, who = request_timeout_ms(properties), login(properties)
    if args.file is None and not args.topic:
        raise ConfigError("--offset-json-file is missing; or name a --topic and a --before-time")
    if args.topic and args.before_time is None:
        raise ConfigError(f"--topic {args.topic[0]}: --before-time says what of it is to go")
    if args.by != "time" and args.before_time is None:
        raise ConfigError(f"--by {args.by}: there is no --before-time that it could be of")
    moment = None
    if args.before_time is not None:
        moment = before_time(args.before_time, SystemClock().now_ms())
    before = {} if args.file is None else read_file(args.file, moment)
    results = asyncio.run(_delete(args, before, moment, timeout_ms, who))
    _print(results, as_json=args.json)
    return _FINDING if any(result.error for result in results.values()) else _DONE


async def _delete(
    args: argparse.Namespace,
    before: Mapping[TopicPartition, Before],
    moment: datetime | None,
    timeout_ms: int,
    who: Login,
) -> Mapping[TopicPartition, DeleteRecordsResult]:
    async with await Admin.open(args.bootstrap_server, timeout_ms, login=who) as admin:
        asked = dict(before)
        for name in args.topic:
            topic = await admin.describe_topic(name)
            if moment is not None:
                asked |= {TopicPartition(name, p.partition): moment for p in topic.partitions}
        return await admin.delete_records_before(asked, by=_BY[args.by])


def read_file(path: Path, moment: datetime | None = None) -> dict[TopicPartition, Before]:
    """KIP-107's file: its partitions, and their offsets or, where one is given, the moment.

    Raises:
        ConfigError: it is not of that form, of another version, or names a partition twice.
        StorageError: it cannot be read.
    """
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_File)
    except OSError as e:
        raise StorageError(f"{path}: {e.strerror}") from e
    except msgspec.DecodeError as e:
        raise ConfigError(f"{path}: {e}; `lapse delete-records --help` shows the form") from e
    if found.version != FILE_VERSION:
        raise ConfigError(f"{path}: version {found.version}: allowed is {FILE_VERSION}")
    before: dict[TopicPartition, Before] = {}
    for row in found.partitions:
        where = TopicPartition(row.topic, row.partition)
        until = row.offset if moment is None else moment
        if until is None:
            raise ConfigError(f"{path}: partition {where} has no offset, and no --before-time")
        if where in before:
            raise ConfigError(f"{path}: partition {where} is there twice")
        before[where] = until
    if not before:
        raise ConfigError(f"{path}: no partition is named")
    return before


def before_time(text: str, now_ms: int) -> datetime:
    """`--before-time`: a date and time with a zone, milliseconds since 1970, or an age.

    Raises:
        ConfigError: it is none of these, or in the future: that would be all there is.
    """
    now = _EPOCH + timedelta(milliseconds=now_ms)
    moment = _moment(text.strip(), now)
    if moment is None:
        raise ConfigError(
            f"--before-time {text}: allowed is a time with a zone such as 2026-01-31T00:00:00Z, "
            "milliseconds since 1970, or an age such as 30d, 12h, 90m, 45s"
        )
    if not _EPOCH <= moment <= now:
        raise ConfigError(f"--before-time {text}: allowed is a time from 1970 until now")
    return moment


def _moment(text: str, now: datetime) -> datetime | None:
    number, unit = text[:-1], text[-1:]
    try:
        if text.isdecimal():
            return _EPOCH + timedelta(milliseconds=int(text))
        if unit in _AGES and number.isdecimal():
            return now - timedelta(**{_AGES[unit]: int(number)})
        moment = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        return None
    return moment if moment.tzinfo is not None else None


def _print(results: Mapping[TopicPartition, DeleteRecordsResult], *, as_json: bool) -> None:
    rows = [_row(where, result) for where, result in sorted(results.items())]
    if as_json:
        for row in rows:
            print(json.dumps(row))
        return
    print_table([["partition", "low watermark", "error"], *(_cells(row) for row in rows)])


def _row(where: TopicPartition, result: DeleteRecordsResult) -> dict[str, Any]:
    error = result.error
    return {
        "topic": where.topic,
        "partition": where.partition,
        "low_watermark": result.low_watermark,
        "error": None if error is None else error.code.name,
        "message": None if error is None else str(error),
    }


def _cells(row: Mapping[str, Any]) -> list[str]:
    return [f"{row['topic']}-{row['partition']}", str(row["low_watermark"]), row["message"] or ""]
