"""`lapse verify --before DIR --after DIR`: checks a cleaning pass, Kafka's own or ours.

Each DIR is a Kafka data directory or one partition's directory, before and after one pass over it
(or none). Nothing newer may be lost, nothing may appear or change, tombstones and markers go only
after their delete horizon, transactions stay whole, every producer's last sequence can be told.
Only looks. Findings are lines: partition, offset, rule, text; docs/verify.md explains the rules.

Exit 0 if all is as it must be (warnings alone are fine), 1 on a finding, 2 on wrong usage.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from lapse.base.clock import Clock, SystemClock
from lapse.base.config import broker_config
from lapse.base.errors import ConfigError, StorageError
from lapse.base.ids import TopicPartition
from lapse.cli import options
from lapse.cli.output import progress_bar, show_table
from lapse.lifecycle.round.engine import Progress
from lapse.lifecycle.verify.check import Pass, Verdict, verify
from lapse.lifecycle.verify.files import find_log
from lapse.lifecycle.verify.findings import Level
from lapse.log.directory import list_partitions
from lapse.log.segment import LOG, base_offset_of
from lapse.metadata.kraft import FOLDER as KRAFT_FOLDER
from lapse.metadata.policies import find_policies

_EXAMPLES = """\
examples:
  cp -a KAFKA-LOGS before; lapse clean KAFKA-LOGS; lapse verify --before before --after KAFKA-LOGS
  lapse verify --before old/orders-0 --after new/orders-0 --now 1795229812219 --json
"""


def add_parser(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "verify",
        help="check a cleaning pass, Kafka's own or ours; only looks",
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--before", type=Path, required=True, metavar="DIR", help="as it was")
    add("--after", type=Path, required=True, metavar="DIR", help="as the pass left it")
    add("--partition", action="append", default=[], metavar="TOPIC-N", help="only this log")
    add("--now", type=int, metavar="MS", help="the pass's clock, ms since 1970 (default: now)")
    options.add_settings(parser)
    add("--json", action="store_true", help="one JSON object a line: findings, then logs")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Check every log that is on both sides."""
    clock = SystemClock()
    folders, alone = _pairs_of(args)
    passes = _passes(args, folders, clock)
    verdicts = list(_verdicts(passes, clock))
    (_show_json if args.json else _show)(verdicts)
    for name, side in alone:
        print(f"lapse: {name} is only in {side}: not checked", file=sys.stderr)
    return 0 if all(v.is_fine for v in verdicts) else 1


Folders = list[tuple[str, Path, Path]]


def _pairs_of(args: argparse.Namespace) -> tuple[Folders, list[tuple[str, Path]]]:
    """(name, before, after) of each log to check, and what is on one side only."""
    before, after = args.before, args.after
    for side in (before, after):
        if not side.is_dir():
            raise StorageError(f"{side}: no such directory")
    single = [_is_partition(side) for side in (before, after)]
    if any(single):
        if not all(single):
            raise ConfigError("--before and --after: allowed are two data directories or two logs")
        if args.partition:
            raise ConfigError("--partition: allowed only with data directories")
        return [(after.absolute().name, before, after)], []
    present = [_names(side) for side in (before, after)]
    wanted = set(args.partition) or present[0] | present[1]
    for name in args.partition:
        for side, names in zip((before, after), present, strict=True):
            if name not in names:
                raise StorageError(f"{side}: holds no log {name}")
    both = sorted(wanted & present[0] & present[1], key=_order)
    if not both:
        raise StorageError(f"{before} and {after} have no log in common")
    lone = [(n, s) for s, names in zip((before, after), present, strict=True) for n in names]
    alone = sorted((n, s) for n, s in lone if n in wanted and n not in both)
    return [(name, before / name, after / name) for name in both], alone


def _is_partition(path: Path) -> bool:
    names = os.listdir(path)
    return any(name.endswith(LOG) and base_offset_of(name) is not None for name in names)


def _names(path: Path) -> set[str]:
    return {str(p) for p in list_partitions(path) if str(p) != KRAFT_FOLDER}


def _order(name: str) -> tuple[str, int]:
    partition = TopicPartition.parse(name)
    return (name, 0) if partition is None else (partition.topic, partition.partition)


def _passes(args: argparse.Namespace, folders: Folders, clock: Clock) -> list[Pass]:
    said, said_defaults = options.settings(args.settings)
    policies = find_policies(folders[0][2].absolute().parent, said, said_defaults)
    broker = broker_config({**policies.defaults, **said_defaults})
    now_ms = clock.now_ms() if args.now is None else args.now
    salt = os.urandom(32)
    passes = []
    for name, before, after in folders:
        partition = TopicPartition.parse(name)
        config = None if partition is None else policies.config_of(partition)
        passes.append(
            Pass(
                name, find_log(before), find_log(after), config, now_ms,
                broker.producer_id_expiration_ms, salt,
            )
        )  # fmt: skip
    return passes


def _verdicts(passes: Sequence[Pass], clock: Clock) -> Iterator[Verdict]:
    started = clock.monotonic()
    total, done = sum(p.bytes_to_read for p in passes), 0
    with progress_bar("checking", lambda: clock.monotonic() - started) as on_progress:

        def tick(n_bytes: int) -> None:
            nonlocal done
            done += n_bytes
            on_progress(Progress(done, total))

        for checked in passes:
            try:
                yield verify(checked, tick)
            except FileNotFoundError as e:
                raise StorageError(f"{e.filename} went away; check a copy instead") from e


def _show_json(verdicts: Sequence[Verdict]) -> None:
    lines: list[dict[str, Any]] = []
    for verdict in verdicts:
        lines += [{"type": "finding", **msgspec.to_builtins(f)} for f in verdict.findings]
    for verdict in verdicts:
        told = msgspec.to_builtins(verdict)
        told["findings"] = len(verdict.findings)
        lines.append({"type": "log", **told, "fine": verdict.is_fine})
    for line in lines:
        sys.stdout.write(msgspec.json.encode(line).decode() + "\n")


def _show(verdicts: Sequence[Verdict]) -> None:
    findings = [finding for verdict in verdicts for finding in verdict.findings]
    if findings:
        columns = {
            "partition": lambda f: f.partition,
            "offset": lambda f: "-" if f.offset < 0 else str(f.offset),
            "rule": lambda f: f.rule,
            "": lambda f: "warning" if f.level is Level.WARNING else "error",
            "finding": lambda f: f.text,
        }
        show_table(findings, columns, as_json=False)
    show_table(
        verdicts,
        {
            "partition": lambda v: v.partition,
            "records": lambda v: f"{v.records_before} → {v.records_after}",
            "keys": lambda v: str(v.keys),
            "cleaned to": lambda v: str(v.reach) if v.reach_known else f"at most {v.reach}",
            "went": lambda v: ", ".join(f"{n} {why}" for why, n in v.removed.items()) or "nothing",
            "verdict": _verdict_text,
        },
        as_json=False,
    )


def _verdict_text(verdict: Verdict) -> str:
    if not verdict.is_fine:
        return "NOT as it must be"
    warnings = len(verdict.findings)
    return f"fine, {warnings} warnings" if warnings else "fine"
