"""`lapse plan LOGDIR`: what would be cleaned and why, or what holds each log back.

Only looks: writes, locks and rebuilds nothing, and works beside a running Kafka. For a log that is
due, the keys its round would map are estimated, and the memory they take; where no sketch of a
segment's keys is kept, its records are read for that (--no-keys does without). Where a task with
--memory could not hold all it needs, the plan is split into stages of smaller tasks. What the round
costs is at most what is said of it: it reads each segment up to the first uncleanable offset once,
and reads and writes again those that lose something. --count finds out: it goes through the round
in memory, throwing away what it would write, and counts how many records would go for which reason.

Without LOGDIR all brokers of a cluster say it of their logs, any of which is named: from what they
have in memory, so without keys and counts.

What cannot be read, a log, a file, the metadata, is a line that says so. Exit 1 if there is one, or
if a compacted log cannot be judged or cleaned.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from lapse.base.clock import SystemClock
from lapse.base.config import broker_config
from lapse.base.errors import LapseError, StorageError, os_error, unreadable
from lapse.base.ids import TopicPartition
from lapse.base.sizes import size_text
from lapse.cli import options
from lapse.cli.asked import SILENT, ask_brokers, refuse_beside, require_address
from lapse.cli.output import progress_bar
from lapse.cli.plan_count import count
from lapse.cli.quantities import byte_size, whole_number
from lapse.cli.served_policies import policies_in
from lapse.cli.tables import show_table
from lapse.lifecycle.clock_guard import moment_seen
from lapse.lifecycle.decide.select import Decision, Moment
from lapse.lifecycle.outlook.memory import memory_here
from lapse.lifecycle.outlook.plan import (
    PlanLine,
    line_of,
    line_without_facts,
    plan_of,
    policy_text,
)
from lapse.lifecycle.round.map_size import peak_bytes
from lapse.lifecycle.round.plan import MapMemory
from lapse.lifecycle.round.progress import Progress
from lapse.lifecycle.round.stamps import info_of
from lapse.log.look import SegmentFile, keys_of
from lapse.log.missing import Remembered
from lapse.log.reader import DirectoryView
from lapse.log.segment import LOG, segment_path
from lapse.log.sketch import estimate
from lapse.metadata.policies import UNKNOWN, Policies
from lapse.wire.schema.describe_outlook import PLAN, DescribeOutlookRequest

# In the place of a log, where what concerns all logs cannot be read: settings, what is missed.
METADATA = "(metadata)"
REMEMBERED = "(remembered)"

EXAMPLES = """\
examples:
  lapse plan /var/lib/kafka/data -c min.cleanable.dirty.ratio=0.3
  lapse plan /var/lib/kafka/data --bootstrap-server 127.0.0.1:9092
  lapse plan --bootstrap-server broker1:9092           all logs of all brokers of the cluster
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    options.add_partitions(parser, may_lack=True)
    options.add_settings(parser)
    options.add_broker(parser)
    parser.add_argument("--now", type=whole_number(), metavar="MS", help="judge as of this moment")
    parser.add_argument("--no-keys", action="store_true", help="do not estimate keys")
    parser.add_argument(
        "--count", action="store_true", help="count what would go, by going through the rounds"
    )
    parser.add_argument(
        "--memory",
        default="2g",
        metavar="SIZE",
        help="of all processes, as `lapse clean` has them on this machine (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a line")


def run(args: argparse.Namespace) -> int:
    """Print a line for each log."""
    if args.logdir is None:
        return _run_on_brokers(args)
    memory = memory_here(byte_size("--memory", args.memory))
    found = list(_found(args, memory))
    lines = [line if args.no_keys else with_keys(line, d, memory) for line, d in found]
    columns = {"partition": _partition_text, **_COLUMNS}
    if args.count:
        lines = _counted(lines, [decision for _, decision in found], memory)
        columns["would go, and cost"] = _would_text
    show_table(lines, columns, as_json=args.json, sentences=_SENTENCES)
    return 1 if any(line.finding for line in lines) else 0


def _run_on_brokers(args: argparse.Namespace) -> int:
    """The same, of all brokers' logs: from their facts, with no record read."""
    require_address(args, "LOGDIR")
    refuse_beside({"-c": args.settings, "--now": args.now, "--count": args.count})
    logs = tuple(str(options.partition(name)) for name in args.partition) or None
    said = ask_brokers(args, DescribeOutlookRequest(what=PLAN, logs=logs))
    lines = said.of(PlanLine)
    lines += [
        replace(line_without_facts(SILENT, "-", why), broker=broker)
        for broker, why in said.silent.items()
    ]
    lines.sort(key=lambda line: (line.partition, line.broker or 0))
    columns = {"partition": _partition_text, "broker": lambda line: str(line.broker), **_COLUMNS}
    del columns["keys, map"]
    show_table(lines, columns, as_json=args.json, sentences=_SENTENCES)
    return 1 if any(line.finding for line in lines) else 0


def _found(
    args: argparse.Namespace, memory: MapMemory
) -> Iterator[tuple[PlanLine, Decision | None]]:
    """Lines of the logs, and of what could not be read."""
    try:
        remembered = Remembered.of(args.logdir)
        partitions = options.chosen_partitions(args, also=remembered.missing_partitions())
        policies = policies_in(args.logdir, args)
        view = DirectoryView(args.logdir)
    except StorageError as e:
        if os_error(e) is None:
            raise  # it is not there, which is another matter
        yield line_without_facts(str(args.logdir), "-", str(e)), None
        return
    for name, trouble in ((METADATA, policies.trouble), (REMEMBERED, remembered.trouble)):
        if trouble:
            yield line_without_facts(name, "-", trouble), None
    broker = broker_config({**policies.defaults, **policies.given_defaults})
    moment = (
        moment_seen(args.logdir, SystemClock(), broker.clock_jump_max_ms)
        if args.now is None
        else Moment(args.now)
    )
    yield from plan_lines(view, remembered, partitions, policies, moment, memory)


def _counted(
    lines: Sequence[PlanLine], decisions: Sequence[Decision | None], memory: MapMemory
) -> list[PlanLine]:
    """The lines, with what due rounds would do."""
    plans = [None if d is None or not d.due else plan_of(d, memory) for d in decisions]
    total, done = sum(2 * plan.bytes_to_read for plan in plans if plan is not None), 0
    counted = []
    with progress_bar("counting", SystemClock()) as on_progress:

        def tick(n_bytes: int) -> None:
            nonlocal done
            done += n_bytes
            on_progress(Progress(min(done, total), total))

        for line, plan in zip(lines, plans, strict=True):
            try:
                counted.append(line if plan is None else replace(line, would=count(plan, tick)))
            except (LapseError, OSError) as e:
                counted.append(replace(line, explanation=_why(e), finding=True))
    return counted


def _held_text(line: PlanLine) -> str:
    return line.explanation + (f" until {line.until}" if line.until else "")


def _why(error: LapseError | OSError) -> str:
    return str(unreadable(error) if isinstance(error, OSError) else error)


def _would_text(line: PlanLine) -> str:
    if line.would is None:
        return "-"
    would = line.would
    went = ", ".join(f"{n} {reason}" for reason, n in would.removed.items()) or "nothing"
    return (
        f"{went}; reads {size_text(would.bytes_read)}, writes {size_text(would.bytes_written)}, "
        f"{would.segments_before} segments → {would.segments_after}"
    )


def plan_lines(
    view: DirectoryView, remembered: Remembered, partitions: list[TopicPartition],
    policies: Policies, moment: Moment, memory: MapMemory,
) -> Iterator[tuple[PlanLine, Decision | None]]:  # fmt: skip
    """One line a log, with its decision; a log that cannot be read is a line too."""
    for partition in partitions:
        policy = "unknown"
        try:
            remembered.require_whole(partition)
            config = policies.config_of(partition)
            if config is None:
                yield line_without_facts(str(partition), policy, UNKNOWN), None
                continue
            policy = policy_text(config)
            info = info_of(view.facts(partition), config, moment.now_ms)
            line, decision = line_of(info, moment, memory)
            contradictions = policies.contradictions_of(partition)
            if contradictions:
                line = replace(line, explanation=f"{line.explanation}; {contradictions}")
            yield line, decision
        except (LapseError, OSError) as e:
            yield line_without_facts(str(partition), policy, _why(e)), None


def with_keys(line: PlanLine, decision: Decision | None, memory: MapMemory) -> PlanLine:
    """The line with the keys of the round that is due, if one is."""
    if decision is None or not decision.due:
        return line
    facts, bounds = decision.info.facts, decision.bounds
    sketches = []
    for segment, after in zip(facts.segments[:-1], facts.segments[1:], strict=True):
        if after.base_offset <= bounds.dirty or segment.base_offset >= bounds.upper:
            continue
        path = segment_path(Path(facts.dir), segment.base_offset, LOG)
        file = SegmentFile(path, segment.base_offset, segment.size, after.base_offset)
        try:
            sketch = keys_of(file)
        except OSError:  # Kafka's own cleaner or retention was faster
            sketch = None
        if sketch is None:
            return line
        sketches.append(sketch)
    keys = estimate(sketches)
    plan = plan_of(decision, memory, keys)
    most = peak_bytes(keys, max(plan.map_entries_max, keys))
    return replace(line, keys=keys, map_bytes=most, plan=plan.variant, why=plan.why)


def _keys_text(line: PlanLine) -> str:
    if line.keys is None or line.map_bytes is None:
        return "-"
    return f"~{line.keys}, {size_text(line.map_bytes)}"


def _partition_text(line: PlanLine) -> str:
    return line.partition


_COLUMNS: dict[str, Callable[[PlanLine], str]] = {
    "policy": lambda line: line.policy,
    "dirty ratio": lambda line: "-" if line.dirty_ratio is None else f"{line.dirty_ratio:.2f}",
    "keys, map": _keys_text,
    "plan": lambda line: line.plan or "-",
    "to read": lambda line: size_text(line.bytes_to_read) if line.due else "-",
    "what holds it": _held_text,
}
_SENTENCES = {"what holds it", "would go, and cost"}
