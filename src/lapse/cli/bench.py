"""`lapse bench clean LOGDIR`: what a round over each log costs on this machine, CPU time first.

Each run cleans a fresh copy of one log, at any dirty ratio; LOGDIR stays as it was. Copies are in
the page cache and kernels are loaded (by a first run that is not counted), so that the times hold
neither disk nor compiler. The times cover a round: decide, plan, map, rewrite, commit, in this
process, one log after the other. They do not cover the summaries, which are made once for a log
that another program wrote; the time for those is `summaries_cpu_seconds`.

A log whose policy is unknown is left out and reported, and the exit code is 1.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lapse.base.clock import Clock, PinnedClock, SystemClock, cpu_seconds
from lapse.base.config import TopicConfig
from lapse.base.errors import ConfigError, LapseError
from lapse.base.fs import Fs, RealFs, temporary_folder
from lapse.base.ids import TopicPartition, random_id
from lapse.base.sizes import size_text
from lapse.cli import options
from lapse.cli.parser import Formatter
from lapse.cli.quantities import byte_size, whole_number
from lapse.cli.served_policies import policies_in
from lapse.cli.tables import show_table
from lapse.lifecycle.decide.explain import Context, explain
from lapse.lifecycle.decide.select import RoundOptions, decide
from lapse.lifecycle.decide.verdict import Rules
from lapse.lifecycle.owner.directory import DirectoryOwner
from lapse.lifecycle.round.inline import InlineEngine
from lapse.lifecycle.round.plan import MapMemory, make_plan
from lapse.lifecycle.round.run import receipts_of
from lapse.lifecycle.round.summarise import requests_of
from lapse.log.export import copy_logs
from lapse.metadata.policies import UNKNOWN

_EXAMPLES = """\
examples:
  lapse bench clean KAFKA-LOGS --partition orders-0 -c cleanup.policy=compact --runs 5 --json
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    clean = verbs.add_parser(
        "clean",
        help="what a round over each log costs",
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=Formatter,
    )
    options.add_partitions(clean)
    options.add_settings(clean)
    add = clean.add_argument
    add(
        "--now",
        type=whole_number(),
        metavar="MS",
        help="the rounds' clock, ms since 1970",
    )
    add("--runs", type=int, default=5, metavar="N", help="the best counts (default: %(default)s)")
    add("--memory", default="2g", metavar="SIZE", help="of the offset map (default: %(default)s)")
    add("--work", type=Path, metavar="DIR", help="where the copies go (default: the system's)")
    add("--json", action="store_true", help="one JSON object a log")


# --- one round, timed -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RoundCost:
    """The time that rounds over the logs of one directory took, and the data that they moved.

    Attributes:
        summaries_cpu_seconds: for missing summaries, made before the round; in no other number.
        cpu_seconds: of this process, all threads, user and system.
        first_dirty_after: the first dirty offset of the last log after its round.
    """

    logs: int
    cpu_seconds: float
    wall_seconds: float
    map_seconds: float
    rewrite_seconds: float
    commit_seconds: float
    summaries_cpu_seconds: float
    dirty_bytes: int
    bytes_read: int
    bytes_written: int
    records_read: int
    records_written: int
    map_entries: int
    first_dirty_after: int


def clean_directory(
    directory: Path,
    configs: Mapping[TopicPartition, TopicConfig],
    fs: Fs,
    clock: Clock,
    memory: MapMemory,
) -> RoundCost:
    """Clean all the logs in place, forced, and return the cost; raises LapseError."""
    engine = InlineEngine(fs, clock)
    with DirectoryOwner(directory, configs, fs, clock) as owner:
        cpu = cpu_seconds()
        requests = requests_of((info.facts for info in owner.logs()), records=False)
        for refusal in owner.adopt_summaries(list(receipts_of(engine.summarise(requests)))):
            if refusal is not None:
                raise LapseError(refusal)
        summaries = cpu_seconds() - cpu
        cpu, wall = cpu_seconds(), clock.monotonic()
        decisions = [
            decide(info, clock.now_ms(), RoundOptions(force=True)) for info in owner.logs()
        ]
        for decision in decisions:
            if not decision.due:
                text = explain(decision, Context(rules=Rules.LAPSE)).text
                raise LapseError(f"{decision.info.facts.partition}: {text}")
        round_id = f"bench-{random_id()}"  # differs from earlier rounds over this log
        plans = [make_plan(d, round_id, Rules.LAPSE, memory) for d in decisions]
        receipts = list(receipts_of(engine.submit(plans)))
        results = owner.commit(receipts)
        cpu, wall = cpu_seconds() - cpu, clock.monotonic() - wall
    for result in results:
        if result.error is not None:
            raise LapseError(result.error)
    return RoundCost(
        logs=len(receipts),
        cpu_seconds=round(cpu, 4),
        wall_seconds=round(wall, 4),
        map_seconds=round(sum(r.seconds.map for r in receipts), 4),
        rewrite_seconds=round(sum(r.seconds.rewrite for r in receipts), 4),
        commit_seconds=round(sum(r.seconds for r in results), 4),
        summaries_cpu_seconds=round(summaries, 4),
        dirty_bytes=sum(plan.dirty_bytes for plan in plans),
        bytes_read=sum(r.bytes_read for r in receipts),
        bytes_written=sum(r.bytes_written for r in receipts),
        records_read=sum(r.records_read for r in receipts),
        records_written=sum(r.records_written for r in receipts),
        map_entries=sum(r.map_entries for r in receipts),
        first_dirty_after=receipts[-1].end_offset,
    )


# --- the command ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Measured:
    """One log's line: the best of each time over all runs, and the data that a round moves."""

    partition: str
    outcome: str
    runs: int = 0
    cpu_seconds_best: float | None = None
    wall_seconds_best: float | None = None
    summaries_cpu_seconds: float | None = None
    log_bytes: int = 0
    dirty_bytes: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    records_read: int = 0
    records_written: int = 0
    map_entries: int = 0
    finding: bool = False


def run(args: argparse.Namespace) -> int:
    """Measure each log; exit 1 if a log could not be measured."""
    if args.runs < 1:
        raise ConfigError(f"--runs {args.runs}: allowed is 1 or more")
    memory = MapMemory(byte_size("--memory", args.memory))
    clock: Clock = SystemClock() if args.now is None else PinnedClock(args.now)
    partitions = options.chosen_partitions(args)
    configs = policies_in(args.logdir, args).configs(partitions)
    lines = []
    for partition in partitions:
        if partition not in configs:
            lines.append(Measured(str(partition), UNKNOWN, finding=True))
            continue
        try:
            costs = _runs(args, partition, configs[partition], clock, memory)
        except LapseError as e:
            lines.append(Measured(str(partition), str(e), finding=True))
            continue
        logs = (args.logdir / str(partition)).glob("*.log")
        lines.append(_line(partition, costs, sum(path.stat().st_size for path in logs)))
    show_table(lines, _COLUMNS, as_json=args.json, sentences={"outcome"})
    return 1 if any(line.finding for line in lines) else 0


def _runs(
    args: argparse.Namespace,
    partition: TopicPartition,
    config: TopicConfig,
    clock: Clock,
    memory: MapMemory,
) -> list[RoundCost]:
    """The costs of all runs but the first, which loads kernels."""
    fs = RealFs()
    costs = []
    if args.work is not None:
        fs.make_dir(args.work)
    with temporary_folder("bench", args.work) as folder:
        for _ in range(args.runs + 1):
            copy = folder / "copy"
            fs.remove_tree(copy)
            copy_logs(args.logdir, copy, [partition], fs)
            costs.append(clean_directory(copy, {partition: config}, fs, clock, memory))
    return costs[1:]


def _line(partition: TopicPartition, costs: Sequence[RoundCost], log_bytes: int) -> Measured:
    last = costs[-1]
    return Measured(
        partition=str(partition),
        outcome="measured",
        runs=len(costs),
        cpu_seconds_best=min(cost.cpu_seconds for cost in costs),
        wall_seconds_best=min(cost.wall_seconds for cost in costs),
        summaries_cpu_seconds=min(cost.summaries_cpu_seconds for cost in costs),
        log_bytes=log_bytes,
        dirty_bytes=last.dirty_bytes,
        bytes_read=last.bytes_read,
        bytes_written=last.bytes_written,
        records_read=last.records_read,
        records_written=last.records_written,
        map_entries=last.map_entries,
    )


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _speed(line: Measured) -> str:
    return f"{line.log_bytes / 1e6 / line.cpu_seconds_best:.0f}" if line.cpu_seconds_best else "-"


_COLUMNS: dict[str, Callable[[Measured], str]] = {
    "partition": lambda line: line.partition,
    "CPU s": lambda line: _seconds(line.cpu_seconds_best),
    "wall s": lambda line: _seconds(line.wall_seconds_best),
    "log MB per CPU s": _speed,
    "records": lambda line: f"{line.records_read} → {line.records_written}",
    "read / written": lambda line: (
        f"{size_text(line.bytes_read)} / {size_text(line.bytes_written)}"
    ),
    "outcome": lambda line: line.outcome,
}
