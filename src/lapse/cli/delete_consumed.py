"""`lapse delete-consumed`: what every listed consumer has read is served no more (KIP-107).

Consumers are groups, by their committed offsets, and streaming queries of Spark, by their
checkpoints. The least of their offsets decides, and a consumer without any blocks deletion.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from lapse.base.clock import Clock, SystemClock
from lapse.base.errors import ConfigError, KafkaError
from lapse.base.ids import TopicPartition
from lapse.cli.confirm import add_yes, agreed, listed
from lapse.cli.remote import add_remote, connection, request_timeout_ms
from lapse.cli.tables import print_rows
from lapse.client.cluster import Cluster, parse_bootstrap
from lapse.client.connection import ConnectionLost
from lapse.client.login import Login
from lapse.lifecycle.delete_consumed import ConsumedOptions, ConsumedResult, Pass, delete_consumed
from lapse.spark.session.folders import directory
from lapse.spark.source.progress import checkpoint_consumer

_DONE, _FINDING = 0, 1
EXAMPLES = """\
examples:
  lapse delete-consumed --groups billing,search --topic orders --dry-run
  lapse delete-consumed --groups billing --checkpoint /data/checkpoints/orders-to-lake
  lapse delete-consumed --groups billing,search --watch 60 --command-config client.properties

Records below the least offset of all listed groups and checkpoints are deleted, partition by
partition. A group that does not exist, or has never committed an offset of a partition, blocks it.
Without --topic it is about every topic that one of the consumers has an offset in.

exit codes: 0 done, 1 something is blocked, 2 wrong usage, 3 no broker can be reached
"""


@dataclass(frozen=True, slots=True)
class Task:
    """What the options say."""

    bootstrap: str
    who: Login
    wish: ConsumedOptions
    checkpoints: tuple[Path, ...]
    as_json: bool


def add_options(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    add_remote(parser)
    parser.add_argument(
        "--groups", action="append", default=[], metavar="G1,G2",
        help="consumer groups that must have read a record; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--checkpoint", action="append", default=[], metavar="PATH",
        help="checkpoint directory of a streaming query that must have; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--topic", action="append", default=[], metavar="NAME",
        help="only this topic, all its partitions; may be repeated",
    )  # fmt: skip
    parser.add_argument("--dry-run", action="store_true", help="say what would go, delete nothing")
    add_yes(parser)
    parser.add_argument(
        "--watch", type=int, metavar="SECONDS",
        help="do it again every so often, until interrupted; prints what changed",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="one JSON object a line")


def run(args: argparse.Namespace) -> int:
    """One pass, or one after the other; exit code 1 where something was blocked."""
    task = task_of(args)
    if args.watch is not None and args.watch < 1:
        raise ConfigError(f"--watch {args.watch}: allowed is a number of seconds from 1 on")
    if not args.dry_run and not agreed(_question(task), yes=args.yes):
        return _FINDING
    if args.watch is not None:
        watch(task, args.watch, SystemClock())
    done = _pass(task)
    _print(done.outcomes, task)
    for one in done.consumers if not done.outcomes else ():  # why no partition came up at all
        why = one.problem or "has no offset in any topic"
        print(f"lapse: {one.name}: {why}", file=sys.stderr)
    is_blocked = any(outcome.blocked for outcome in done.outcomes)
    return _FINDING if is_blocked or not done.outcomes else _DONE


def _question(task: Task) -> str:
    names = [f"group {name}" for name in task.wish.groups]
    names += [f"checkpoint {path}" for path in task.checkpoints]
    have = "has" if len(names) == 1 else "all have"
    return f"delete for good what {listed(names)} {have} read?"


def watch(task: Task, seconds: int, clock: Clock) -> NoReturn:
    """Pass after pass for ever; a failed one is reported, and the next one tries again."""
    last: dict[TopicPartition, ConsumedResult] = {}
    while True:
        try:
            done = _pass(task)
        except (ConnectionLost, KafkaError) as e:
            print(f"lapse: {e}", file=sys.stderr)
        else:
            _print([one for one in done.outcomes if _is_news(one, last)], task)
            last = {one.verdict.partition: one for one in done.outcomes}
            sys.stdout.flush()
        clock.sleep(seconds)


def _is_news(outcome: ConsumedResult, last: Mapping[TopicPartition, ConsumedResult]) -> bool:
    """Another deletion, or another blockade; that there is nothing to do is none."""
    before = last.get(outcome.verdict.partition)
    if before is None:
        return True
    if outcome.verdict.delete_before is None and not outcome.blocked:
        return bool(before.blocked)
    return (outcome.verdict.delete_before, outcome.blocked) != (
        before.verdict.delete_before, before.blocked,
    )  # fmt: skip


def task_of(args: argparse.Namespace) -> Task:
    """What the options come to; raises ConfigError."""
    at = connection(args)
    groups = [name.strip() for text in args.groups for name in text.split(",")]
    if not groups and not args.checkpoint:
        raise ConfigError("--groups is missing, or a --checkpoint: somebody must have read")
    if not all(groups):
        raise ConfigError(f"--groups {','.join(args.groups)}: a group's name is empty")
    wish = ConsumedOptions(
        groups=tuple(dict.fromkeys(groups)),
        topics=tuple(args.topic),
        dry_run=args.dry_run,
        timeout_ms=request_timeout_ms(at.properties),
    )
    checkpoints = tuple(_local(text) for text in dict.fromkeys(args.checkpoint))
    return Task(at.bootstrap, at.login, wish, checkpoints, args.json)


def _local(text: str) -> Path:
    """A checkpoint's directory; Spark's `file:` before it is fine."""
    try:
        return directory(text)
    except ValueError as e:
        raise ConfigError(
            f"--checkpoint {text}: allowed is a directory of this machine; mount it, or copy "
            "its commits and then its offsets here"
        ) from e


def _pass(task: Task) -> Pass:
    """Checkpoints are read before the ends of the logs."""
    others = tuple(checkpoint_consumer(path) for path in task.checkpoints)
    return asyncio.run(_connected(task, replace(task.wish, others=others)))


async def _connected(task: Task, wish: ConsumedOptions) -> Pass:
    async with Cluster(parse_bootstrap(task.bootstrap), task.who) as cluster:
        await cluster.any_connection()
        return await delete_consumed(cluster, wish)


# --- what is printed ------------------------------------------------------------------------------


def _print(outcomes: Sequence[ConsumedResult], task: Task) -> None:
    rows = [_row(outcome, dry_run=task.wish.dry_run) for outcome in outcomes]
    if rows:
        goes = "would delete up to" if task.wish.dry_run else "deleted up to"
        header = ["partition", "low watermark", *rows[0]["consumers"], goes, "blocked by"]
        print_rows(rows, header, _cells, as_json=task.as_json, sentences=header[-1:])


def _row(outcome: ConsumedResult, *, dry_run: bool) -> dict[str, Any]:
    verdict, result = outcome.verdict, outcome.result
    ends = verdict.ends
    return {
        "topic": verdict.partition.topic,
        "partition": verdict.partition.partition,
        "low_watermark_before": None if ends is None else ends.low_watermark,
        "last_stable_offset": None if ends is None else ends.last_stable_offset,
        "high_watermark": None if ends is None else ends.high_watermark,
        "consumers": dict(verdict.offsets),
        "delete_before": verdict.delete_before,
        "dry_run": dry_run,
        "low_watermark": None if result is None or result.error else result.low_watermark,
        "blocked": list(outcome.blocked),
    }


def _cells(row: Mapping[str, Any]) -> list[str]:
    deleted = row["delete_before"] if row["dry_run"] else row["low_watermark"]
    nothing = "" if row["blocked"] else "nothing"
    return [
        f"{row['topic']}-{row['partition']}",
        _cell(row["low_watermark_before"]),
        *(_cell(offset) for offset in row["consumers"].values()),
        nothing if deleted is None else str(deleted),
        "; ".join(row["blocked"]),
    ]


def _cell(number: int | None) -> str:
    return "-" if number is None else str(number)
