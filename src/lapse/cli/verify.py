"""`lapse verify --before DIR --after DIR`: checks cleaning passes, Kafka's own or ours.

Each DIR is a Kafka data directory or one partition's directory, before and after one pass over it
(or none). With several --after each is the next pass, over what the one before has left.

Nothing newer may be lost, nothing may appear or change, tombstones and markers go only after their
delete horizon, and no tombstone too soon after the value that it deletes, whichever pass took that.
Transactions stay whole, every producer's last sequence can be stated.
Only looks. Findings are lines: partition, offset, rule, text; docs/verify.md explains the rules.

Exit 0 if all is as it must be (warnings alone are fine), 1 on a finding, 2 on wrong usage.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from lapse.base.clock import Clock, SystemClock
from lapse.base.config import broker_config
from lapse.base.errors import ConfigError, StorageError
from lapse.base.ids import TopicPartition
from lapse.cli import options
from lapse.cli.output import progress_bar
from lapse.cli.quantities import whole_number
from lapse.cli.tables import show_table
from lapse.lifecycle.round.progress import Progress
from lapse.lifecycle.verify.chain import Chain
from lapse.lifecycle.verify.check import Pass, Verdict, verify
from lapse.lifecycle.verify.files import find_log
from lapse.lifecycle.verify.findings import Level
from lapse.log.segment import LOG, base_offset_of
from lapse.metadata.policies import find_policies

EXAMPLES = """\
examples:
  cp -a KAFKA-LOGS before; lapse clean KAFKA-LOGS; lapse verify --before before --after KAFKA-LOGS
  lapse verify --before old/orders-0 --after new/orders-0 --now 1795229812219 --json
  lapse verify --before monday --after tuesday --after wednesday -c delete.retention.ms=86400000
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    add = parser.add_argument
    add("--before", type=Path, required=True, metavar="DIR", help="as it was")
    add("--after", type=Path, action="append", required=True, metavar="DIR",
        help="as the pass left it; again for the next pass")  # fmt: skip
    add("--partition", action="append", default=[], metavar="TOPIC-N", help="only this log")
    add("--now", type=whole_number(), action="append", default=[], metavar="MS",
        help="the pass's clock, ms since 1970, one a pass (default: now)")  # fmt: skip
    options.add_settings(parser)
    add("--json", action="store_true", help="one JSON object a line: findings, then logs")


def run(args: argparse.Namespace) -> int:
    """Check every log that is on all sides."""
    clock = SystemClock()
    times = _times(args, clock)
    sides = [args.before, *args.after]
    logs, alone = logs_of(sides, args.partition)
    chains, unsettled = _chains(args, logs, times)
    verdicts = list(_verdicts(chains, clock))
    (_show_json if args.json else _show)(verdicts)
    for said in not_checked(alone):
        print(f"lapse: {said}", file=sys.stderr)
    for why in unsettled:
        print(f"lapse: {why}: judged as a log of unknown settings", file=sys.stderr)
    return 0 if all(v.is_fine for _, v in verdicts) and not unsettled else 1


def _times(args: argparse.Namespace, clock: Clock) -> list[int]:
    """The clock of each pass."""
    if len(args.after) == 1 and not args.now:
        return [clock.now_ms()]
    if len(args.now) != len(args.after):
        raise ConfigError(
            f"--now: allowed is one for each --after, in order; there are {len(args.after)} of "
            f"these and {len(args.now)} of those"
        )
    return list(args.now)


Sides = Sequence[Path]
_NAMED_MAX = 5  # logs in one line


def not_checked(alone: Sequence[tuple[str, Path]]) -> Iterator[str]:
    """What is said of logs that are not on all sides: one line a side may be of very many."""
    for side in dict.fromkeys(side for _, side in alone):
        names = [name for name, where in alone if where == side]
        more = len(names) - _NAMED_MAX
        listed = ", ".join(names[:_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
        is_one = len(names) == 1
        yield (f"{listed} {'is' if is_one else 'are'} not on all sides, but in {side}: not checked")


def logs_of(
    sides: Sides, wanted: Sequence[str]
) -> tuple[list[tuple[str, Sides]], list[tuple[str, Path]]]:
    """(name, its directory on each side) of each log to check, and what is not on all sides."""
    for side in sides:
        options.require_directory(side)
    single = [_is_partition(side) for side in sides]
    if any(single):
        if not all(single):
            raise ConfigError("--before and --after: allowed are data directories, or single logs")
        if wanted:
            raise ConfigError("--partition: allowed only with data directories")
        return [(sides[-1].absolute().name, sides)], []
    present = [{str(p) for p in options.partitions_in(side)} for side in sides]
    for name in wanted:
        for side, names in zip(sides, present, strict=True):
            if name not in names:
                raise StorageError(f"{side}: holds no log {name}")
    chosen = set(wanted) or set().union(*present)
    everywhere = sorted(chosen.intersection(*present), key=_order)
    if not everywhere:
        raise StorageError(f"{' and '.join(map(str, sides))} have no log in common")
    lone = [(n, s) for s, names in zip(sides, present, strict=True) for n in names]
    alone = sorted((n, s) for n, s in lone if n in chosen and n not in everywhere)
    return [(name, [side / name for side in sides]) for name in everywhere], alone


def _is_partition(path: Path) -> bool:
    names = os.listdir(path)
    return any(name.endswith(LOG) and base_offset_of(name) is not None for name in names)


def _order(name: str) -> tuple[str, int]:
    partition = TopicPartition.parse(name)
    return (name, 0) if partition is None else (partition.topic, partition.partition)


def _chains(
    args: argparse.Namespace, logs: Sequence[tuple[str, Sides]], times: Sequence[int]
) -> tuple[list[list[Pass]], list[str]]:
    """The passes over each log; what is wrong with the settings of some."""
    said, given_defaults = options.settings(args.settings)
    policies = find_policies(logs[0][1][-1].absolute().parent, said, given_defaults)
    broker = broker_config({**policies.defaults, **given_defaults})
    salt = os.urandom(32)
    chains, unsettled = [], []
    for name, sides in logs:
        partition, config = TopicPartition.parse(name), None
        try:
            config = None if partition is None else policies.config_of(partition)
        except ConfigError as e:
            unsettled.append(f"{name}: {e}")
        files = [find_log(side) for side in sides]
        chains.append([
            Pass(name, before, after, config, now_ms, broker.producer_id_expiration_ms, salt)
            for (before, after), now_ms in zip(pairwise(files), times, strict=True)
        ])  # fmt: skip
    return chains, unsettled


Numbered = tuple[int, Verdict]  # which pass it is of, from 1; 0 where there is but one


def _verdicts(chains: Sequence[Sequence[Pass]], clock: Clock) -> Iterator[Numbered]:
    total, done = sum(p.bytes_to_read for passes in chains for p in passes), 0
    with progress_bar("checking", clock) as on_progress:

        def tick(n_bytes: int) -> None:
            nonlocal done
            done += n_bytes
            on_progress(Progress(done, total))

        for passes in chains:
            chain = Chain()
            for n, checked in enumerate(passes, start=1):
                try:
                    yield (n if len(passes) > 1 else 0), verify(checked, tick, chain)
                except FileNotFoundError as e:
                    raise StorageError(f"{e.filename} went away; check a copy instead") from e


def _show_json(verdicts: Sequence[Numbered]) -> None:
    lines: list[dict[str, Any]] = []
    for number, verdict in verdicts:
        of_pass = {"pass": number} if number else {}
        lines += [
            {"type": "finding", **msgspec.to_builtins(f), **of_pass} for f in verdict.findings
        ]
    for number, verdict in verdicts:
        document = msgspec.to_builtins(verdict)
        document["findings"] = len(verdict.findings)
        of_pass = {"pass": number} if number else {}
        lines.append({"type": "log", **document, "fine": verdict.is_fine, **of_pass})
    show_table(lines, {}, as_json=True)


def _show(verdicts: Sequence[Numbered]) -> None:
    findings = [(n, finding) for n, verdict in verdicts for finding in verdict.findings]
    if findings:
        columns = {
            "partition": lambda f: _named(f[0], f[1].partition),
            "offset": lambda f: "-" if f[1].offset < 0 else str(f[1].offset),
            "rule": lambda f: f[1].rule,
            "": lambda f: "warning" if f[1].level is Level.WARNING else "error",
            "finding": lambda f: f[1].text,
        }
        show_table(findings, columns, as_json=False, sentences={"finding"})
    show_table(
        verdicts,
        {
            "partition": lambda v: _named(v[0], v[1].partition),
            "records": lambda v: f"{v[1].records_before} → {v[1].records_after}",
            "keys": lambda v: str(v[1].keys),
            "cleaned to": lambda v: f"{'' if v[1].reach_known else 'at most '}{v[1].reach}",
            "went": lambda v: ", ".join(f"{n} {w}" for w, n in v[1].removed.items()) or "nothing",
            "verdict": lambda v: _verdict_text(v[1]),
        },
        as_json=False,
        sentences={"went"},
    )


def _named(number: int, partition: str) -> str:
    return f"{partition}, pass {number}" if number else partition


def _verdict_text(verdict: Verdict) -> str:
    if not verdict.is_fine:
        return "NOT as it must be"
    warnings = len(verdict.findings)
    return f"fine, {warnings} warnings" if warnings else "fine"
