"""`lapse delete-records`: nothing before an offset or a time is served any more (KIP-107).

Options and file are those of Kafka's `kafka-delete-records`; the KIP's own name of the file's
option is taken too. A time instead of the file, or in place of the file's offsets, is ours; it goes
no further than every group has read, unless --force. `--dry-run` is ours, too.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import msgspec

from lapse.base.clock import SystemClock
from lapse.base.decoding import from_json
from lapse.base.errors import ConfigError, CorruptData, ErrorCode, KafkaError, StorageError
from lapse.base.ids import TopicPartition
from lapse.base.setting import INT_MAX, LONG_MAX
from lapse.base.sizes import size_text
from lapse.base.typed import EPOCH, moment_of
from lapse.cli.confirm import add_yes, agreed
from lapse.cli.quantities import moment_text
from lapse.cli.remote import add_remote, connection, request_timeout_ms
from lapse.cli.tables import print_rows
from lapse.client.admin import Admin
from lapse.client.cluster import Cluster, parse_bootstrap
from lapse.client.deletion import Before, delete_records_before
from lapse.client.deletion_plan import Extent, Judged, extent, judge, objections
from lapse.client.login import Login
from lapse.client.offsets import By
from lapse.client.settings import NO_LOW_WATERMARK, TOPIC, DeleteRecordsResult, Resource

FILE_VERSION = 1
_DONE, _FINDING = 0, 1
EXAMPLES = """\
examples:
  lapse delete-records --bootstrap-server 127.0.0.1:9092 --offset-json-file offsets.json
  lapse delete-records --topic clicks --before-time 2026-01-31T00:00:00Z
  lapse delete-records --topic clicks --before-time 30d
  lapse delete-records --topic clicks --before-time 30d --by append
  lapse delete-records --topic clicks --before-time 30d --dry-run

the file:
  {"version": 1, "partitions": [{"topic": "clicks", "partition": 0, "offset": 42}]}

An offset of -1 is the high watermark. A time is one with a time zone, milliseconds since 1970, or
an age such as 30d, 12h, 90m, 45s; records are kept from the first one on that is not before it. One
without a time is as old as its append.

By a time, a partition stays as it is where a group has yet to read what would go: --force deletes
it all the same. Offsets in a file are obeyed as by Kafka's tool, also where a group has not read so
far.

--dry-run reads what would go, so that it takes as long.
"""
_BY = {"time": By.AGE, "append": By.APPEND}


_Int = Annotated[int, msgspec.Meta(ge=-INT_MAX - 1, le=INT_MAX)]
_Long = Annotated[int, msgspec.Meta(ge=-LONG_MAX - 1, le=LONG_MAX)]


class _Row(msgspec.Struct, frozen=True):
    topic: str
    partition: _Int
    offset: _Long | None = None


class _File(msgspec.Struct, frozen=True):
    partitions: tuple[_Row, ...]
    version: int = FILE_VERSION  # Kafka's tool takes a file without one


def add_options(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
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
    parser.add_argument(
        "--force", action="store_true",
        help="with --before-time: also what some group has yet to read",
    )  # fmt: skip
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="say what would go, and which groups have yet to read it; delete nothing",
    )
    add_yes(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")


def run(args: argparse.Namespace) -> int:
    """Delete, and print what came of each partition; exit code 1 where one was refused."""
    at = connection(args)
    timeout_ms, who = request_timeout_ms(at.properties), at.login
    if args.file is None and not args.topic:
        raise ConfigError("--offset-json-file is missing; or name a --topic and a --before-time")
    if args.topic and args.before_time is None:
        raise ConfigError(f"--topic {args.topic[0]}: --before-time says what of it is to go")
    if args.by != "time" and args.before_time is None:
        raise ConfigError(f"--by {args.by}: there is no --before-time that it could be of")
    if args.force and args.before_time is None:
        raise ConfigError("--force: has no meaning without --before-time; offsets ask no group")
    moment = None
    if args.before_time is not None:
        moment = before_time(args.before_time, SystemClock().now_ms())
    before = {} if args.file is None else read_file(args.file, moment)
    by = _BY[args.by]
    task = _Task(at.bootstrap, who, timeout_ms, tuple(args.topic), before, moment, by)
    if args.dry_run:
        return _print_dry(asyncio.run(_look(task)), args)
    if not agreed("delete records for good?", yes=args.yes):
        return 1
    results = asyncio.run(_delete(task, force=args.force))
    rows = [_row(where, result) for where, result in sorted(results.items())]
    print_rows(
        rows,
        ["partition", "low watermark", "error"],
        _cells,
        as_json=args.json,
        sentences={"error"},
    )
    return _FINDING if any(result.error for result in results.values()) else _DONE


@dataclass(frozen=True, slots=True)
class _Task:
    """What the options say: partitions of the file, and topics with all their partitions."""

    bootstrap: str
    who: Login
    timeout_ms: int
    topics: tuple[str, ...]
    file: Mapping[TopicPartition, Before]
    moment: datetime | None
    by: By

    async def before(self, admin: Admin) -> dict[TopicPartition, Before]:
        """All partitions. Raises KafkaError where a topic is not there."""
        before = dict(self.file)
        for name in self.topics:
            topic = await admin.describe_topic(name)
            if self.moment is not None:
                before |= {TopicPartition(name, p.partition): self.moment for p in topic.partitions}
        return before


async def _delete(task: _Task, *, force: bool) -> Mapping[TopicPartition, DeleteRecordsResult]:
    async with await Admin.open(task.bootstrap, task.timeout_ms, login=task.who) as admin:
        before = await task.before(admin)
        if task.moment is None or force:
            return await admin.delete_records_before(before, by=task.by)
    async with Cluster(parse_bootstrap(task.bootstrap), task.who) as cluster:
        judged, ids = await judge(cluster, before, task.timeout_ms, task.by)
        refused = {
            partition: DeleteRecordsResult(NO_LOW_WATERMARK, one.error or _held(partition, one))
            for partition, one in judged.items()
            if one.error is not None or one.standing
        }
        # By the offset that was judged: the same time may stand for a later one by now.
        fine = {p: one.until for p, one in judged.items() if p not in refused}
        return refused | await delete_records_before(cluster, fine, task.timeout_ms, ids)


def _held(partition: TopicPartition, judged: Judged) -> KafkaError:
    said = "; ".join(objections(judged))
    return KafkaError(
        ErrorCode.POLICY_VIOLATION, f"{partition}: {said}; --force deletes it all the same"
    )


async def _look(task: _Task) -> dict[TopicPartition, tuple[Judged, Extent | None]]:
    """What would go of each partition; no extent where that is unknown."""
    async with await Admin.open(task.bootstrap, task.timeout_ms, login=task.who) as admin:
        before = await task.before(admin)
        barred = await _barred(admin, {partition.topic for partition in before})
    async with Cluster(parse_bootstrap(task.bootstrap), task.who) as cluster:
        judged, _ = await judge(cluster, before, task.timeout_ms, task.by)
        looked: dict[TopicPartition, tuple[Judged, Extent | None]] = {}
        for partition, one in sorted(judged.items()):
            refusal = one.error or barred.get(partition.topic)
            if refusal is not None:
                looked[partition] = Judged(error=refusal), None
                continue
            try:
                looked[partition] = one, await extent(cluster, partition, one)
            except KafkaError as e:
                looked[partition] = Judged(error=e), None
            except CorruptData as e:
                error = KafkaError(ErrorCode.CORRUPT_MESSAGE, str(e))
                looked[partition] = Judged(error=error), None
        return looked


async def _barred(admin: Admin, topics: Iterable[str]) -> dict[str, KafkaError]:
    """Topics from which the broker refuses to delete (D-4), by the settings that it shows us."""
    resources = [Resource(TOPIC, name) for name in sorted(topics)]
    described = await admin.describe_configs(resources, ["cleanup.policy"])
    barred = {}
    for resource, one in described.items():
        entry = one.entries.get("cleanup.policy")
        policy = set((entry.value or "").split(",")) if entry is not None else set()
        if "compact" in policy and "delete" not in policy:
            said = f"topic {resource.name}: its cleanup.policy is compact alone"
            barred[resource.name] = KafkaError(ErrorCode.POLICY_VIOLATION, said)
    return barred


def read_file(path: Path, moment: datetime | None = None) -> dict[TopicPartition, Before]:
    """KIP-107's file: its partitions, and their offsets or, where one is given, the moment.

    Raises:
        ConfigError: it is not of that form, of another version, or names a partition twice.
        StorageError: it cannot be read.
    """
    try:
        found = from_json(path.read_bytes(), _File)
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
    now = EPOCH + timedelta(milliseconds=now_ms)
    moment = moment_of(text.strip(), now)
    if moment is None:
        raise ConfigError(
            f"--before-time {text}: allowed is a time with a zone such as 2026-01-31T00:00:00Z, "
            "milliseconds since 1970, or an age such as 30d, 12h, 90m, 45s"
        )
    if not EPOCH <= moment <= now:
        raise ConfigError(f"--before-time {text}: allowed is a time from 1970 until now")
    return moment


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


# --- what would go --------------------------------------------------------------------------------


_DRY_HEADER = (
    "partition", "low watermark", "would delete up to", "records", "size", "segments",
    "from", "to", "yet to be read by",
)  # fmt: skip


def _print_dry(
    looked: Mapping[TopicPartition, tuple[Judged, Extent | None]], args: argparse.Namespace
) -> int:
    rows = [_dry_row(where, *found) for where, found in looked.items()]
    print_rows(rows, _DRY_HEADER, _dry_cells, as_json=args.json, sentences=_DRY_HEADER[-1:])
    asks_groups = args.before_time is not None and not args.force
    held = any(row["error"] or (asks_groups and row["groups"]) for row in rows)
    return _FINDING if held else _DONE


def _dry_row(where: TopicPartition, judged: Judged, found: Extent | None) -> dict[str, Any]:
    error = judged.error
    standing = judged.standing or {}
    return {
        "topic": where.topic,
        "partition": where.partition,
        "low_watermark": judged.start,
        "high_watermark": judged.end,
        "delete_before": judged.until if judged.goes else None,
        "records": None if found is None else found.records,
        "bytes": None if found is None else found.size,
        "segments": None if found is None else found.segments,
        "first_time": None if found is None or found.first_ms < 0 else found.first_ms,
        "last_time": None if found is None or found.last_ms < 0 else found.last_ms,
        "groups": {g: at if isinstance(at, int) else str(at) for g, at in standing.items()},
        "error": None if error is None else error.code.name,
        "message": None if error is None else str(error),
        "dry_run": True,
    }


def _dry_cells(row: Mapping[str, Any]) -> list[str]:
    name = f"{row['topic']}-{row['partition']}"
    if row["error"]:
        return [name, *["-"] * 7, row["message"]]
    until = row["delete_before"]
    return [
        name,
        str(row["low_watermark"]),
        "nothing" if until is None else str(until),
        *(
            "?" if row[key] is None else text(row[key])
            for key, text in (("records", str), ("bytes", size_text), ("segments", str))
        ),
        *(
            "-" if row[key] is None else moment_text(row[key])
            for key in ("first_time", "last_time")
        ),
        "; ".join(f"{group} (at {at})" for group, at in row["groups"].items()),
    ]
