"""`lapse clean LOGDIR`: rounds over a Kafka log directory that no broker is serving.

Without --now the machine's clock is used, unless it jumped since Lapse last looked at the directory
(lapse.clock.jump.max.ms): then nothing is removed until the file clock-confirmed is created there.

Cleans eligible logs only, unless --force. A log whose policy is unknown, or that holds data which
this version does not handle, is left exactly as it is and reported, and the exit code is 1. In
place, the directory's lock must be free; with --to the logs are copied first and the source stays
as it was.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from lapse.base.clock import Clock, PinnedClock, SystemClock
from lapse.base.config import BrokerConfig, TopicConfig, broker_config
from lapse.base.errors import ConfigError, LapseError
from lapse.base.extras import needed_for
from lapse.base.fs import Fs, RealFs
from lapse.base.ids import TopicPartition
from lapse.base.sizes import size_text
from lapse.cli import options
from lapse.cli.confirm import add_yes, agreed, listed
from lapse.cli.output import progress_bar, say_starting
from lapse.cli.quantities import byte_size, whole_number
from lapse.cli.tables import show_table
from lapse.cli.task_memory import memory_of
from lapse.cli.whole import whole_partitions
from lapse.lifecycle.clock_guard import TOOL, ClockGuard, seen
from lapse.lifecycle.decide.clock import ClockVerdict, judge_clock
from lapse.lifecycle.decide.explain import Context, explain
from lapse.lifecycle.decide.select import (
    Blocked,
    Decision,
    LogInfo,
    Moment,
    RoundKind,
    RoundOptions,
    order,
)
from lapse.lifecycle.decide.verdict import Rules
from lapse.lifecycle.owner.directory import DirectoryOwner
from lapse.lifecycle.owner.handover import Handed
from lapse.lifecycle.owner.protocol import Owner
from lapse.lifecycle.round.commit import CommitResult
from lapse.lifecycle.round.engine import Engine
from lapse.lifecycle.round.inline import InlineEngine
from lapse.lifecycle.round.plan import MapMemory, RoundPlan
from lapse.lifecycle.round.receipt import Receipt
from lapse.lifecycle.round.run import receipts_of
from lapse.lifecycle.round.sizing import sized_plan
from lapse.lifecycle.round.stamps import info_of
from lapse.lifecycle.round.summarise import requests_due
from lapse.lifecycle.service.commits import committed
from lapse.log.export import copy_logs, require_free
from lapse.log.incomplete import CLEAN
from lapse.log.reader import DirectoryView
from lapse.metadata.policies import UNKNOWN, Policies, find_policies

EXAMPLES = """\
examples:
  lapse clean KAFKA-LOGS --partition orders-0 --to CLEANED -c cleanup.policy=compact
  lapse clean KAFKA-LOGS --force --json
"""
_DONE = {RoundKind.CLEAN: "cleaned", RoundKind.TRIM: "trimmed"}


def add_options(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    options.add_partitions(parser)
    options.add_settings(parser)
    add = parser.add_argument
    add("--to", type=Path, metavar="DIR", help="clean copies in DIR; LOGDIR stays as it was")
    add(
        "--now",
        type=whole_number(),
        metavar="MS",
        help="the round's clock, ms since 1970",
    )
    add("--first-dirty", type=whole_number(), metavar="N",
        help="map from this offset on, if that is cleaned already")  # fmt: skip
    add("--force", action="store_true", help="skip dirty ratio and lags, never the policy")
    add("--replica-cleaned-to", type=whole_number(), metavar="N",
        help="a replica has cleaned to N only: tombstones and markers from N on stay")  # fmt: skip
    add("--kafka-exact", action="store_true", help="Kafka 4.3's result, its mistakes included")
    add("--dry-run", action="store_true", help="say what would be cleaned, change nothing")
    add_yes(parser)
    add("--engine", choices=("spark", "inline"), default="spark", help="default: %(default)s")
    options.add_spark(parser)
    add("--memory", default="2g", metavar="SIZE", help="of all processes (default: %(default)s)")
    add("--json", action="store_true", help="one JSON object a log")


@dataclass(frozen=True, slots=True)
class Cleaned:
    """One log's line of the result.

    Attributes:
        plan: small (one task for the whole round) or split (stages of tasks).
        why: the reason for this plan.
        kind: of the round, clean or trim.
        bytes_per_dirty_byte: bytes read and written per dirty byte; None where nothing was dirty.
    """

    partition: str
    outcome: str
    first_dirty_before: int | None = None
    first_dirty_after: int | None = None
    bytes_read: int = 0
    bytes_written: int = 0
    records_read: int = 0
    records_written: int = 0
    map_entries: int = 0
    plan: str | None = None
    why: str | None = None
    kind: str | None = None
    due: tuple[str, ...] = ()
    dirty_bytes: int = 0
    bytes_per_dirty_byte: float | None = None
    engine: str | None = None
    seconds: Mapping[str, float] | None = None
    finding: bool = False


@dataclass(frozen=True, slots=True)
class Job:
    """The command line's options, checked."""

    args: argparse.Namespace
    fs: Fs
    clock: Clock
    broker: BrokerConfig
    wish: RoundOptions
    memory: MapMemory

    @property
    def now_ms(self) -> int:
        return self.clock.now_ms()


def run(args: argparse.Namespace) -> int:
    """Clean the logs that are due; exit 1 if a compacted log was left alone or failed."""
    partitions, wrong = whole_partitions(args)
    given, given_defaults = options.settings(args.settings)
    policies = find_policies(args.logdir, given, given_defaults)
    job = job_of(args, broker_config({**policies.defaults, **given_defaults}))
    if args.to is not None:
        require_free(args.logdir, args.to, CLEAN)
    configs, lines = configs_of(policies, partitions)
    lines += [Cleaned(str(one), why, finding=True) for one, why in wrong.items()]
    due, untouched = look(args.logdir, configs, job)
    lines += untouched
    if args.dry_run:
        lines += [would_be(decision, job) for decision in due.values()]
    elif due:
        if args.to is None and not agreed(_question(args.logdir, due), yes=args.yes):
            return 1
        lines += _clean_there({p: configs[p] for p in due}, job)
    show_table(
        sorted(lines, key=lambda line: line.partition),
        _COLUMNS,
        as_json=args.json,
        sentences={"outcome"},
    )
    return 1 if any(line.finding for line in lines) else 0


def _question(logdir: Path, due: Iterable[TopicPartition]) -> str:
    names = sorted(map(str, due))
    return f"clean {len(names)} log{'s'[: len(names) != 1]} in {logdir}, in place: {listed(names)}?"


def configs_of(
    policies: Policies, partitions: Sequence[TopicPartition]
) -> tuple[dict[TopicPartition, TopicConfig], list[Cleaned]]:
    """Settings of the logs, and lines for the logs whose settings are unknown or wrong."""
    configs, lines = {}, []
    for partition in partitions:
        try:
            config, why = policies.config_of(partition), UNKNOWN
        except ConfigError as e:
            config, why = None, str(e)
        if config is None:
            lines.append(Cleaned(str(partition), why, finding=True))
            continue
        configs[partition] = config
        contradictions = policies.contradictions_of(partition)
        if contradictions:
            print(f"lapse: {partition}: {contradictions}", file=sys.stderr)
    return configs, lines


def job_of(args: argparse.Namespace, broker: BrokerConfig) -> Job:
    """Raises ConfigError for what the parser cannot know."""
    rules = Rules.KAFKA_43 if args.kafka_exact else Rules.LAPSE
    memory = MapMemory(byte_size("--memory", args.memory))
    if args.kafka_exact:
        load_factor = broker.log_cleaner_io_buffer_load_factor
        memory = MapMemory(broker.log_cleaner_dedupe_buffer_size, load_factor)
    wish = RoundOptions(
        rules=rules,
        force=args.force,
        dirty=args.first_dirty,
        removable_below=args.replica_cleaned_to,
    )
    clock: Clock = SystemClock() if args.now is None else PinnedClock(args.now)
    return Job(args, RealFs(), clock, broker, wish, memory)


def look(
    logdir: Path, configs: Mapping[TopicPartition, TopicConfig], job: Job
) -> tuple[dict[TopicPartition, Decision], list[Cleaned]]:
    """Logs with a round due, or to be looked through for it, and lines for all other logs.

    Opens no file of a log, and changes none.
    """
    view = DirectoryView(logdir)
    verdict = None
    if job.args.now is None:
        verdict = seen(logdir, job.clock, job.broker.clock_jump_max_ms)
    moment = Moment(job.now_ms, job.wish)
    if verdict is not None and not verdict.held:
        moment = Moment.by(verdict, job.wish)
    due: dict[TopicPartition, Decision] = {}
    untouched = []
    for partition, config in configs.items():
        try:
            decision = moment.decide(info_of(view.facts(partition), config, moment.now_ms))
        except LapseError as e:
            untouched.append(Cleaned(str(partition), str(e), finding=True))
            continue
        if decision.due or decision.look_again is not None:
            due[partition] = decision
        else:
            untouched.append(left_alone(decision, job.wish.rules))
    return due, untouched


def would_be(decision: Decision, job: Job) -> Cleaned:
    """A dry run's line of a log that is due, or must be looked through before that is known."""
    if not decision.due:
        line = left_alone(decision, job.wish.rules)
        return replace(line, outcome=f"would be looked through first: {line.outcome}")
    plan = sized_plan(decision, "dry-run", job.wish.rules, job.memory)
    return replace(
        _planned(plan, f"would be {_DONE[plan.kind]}"),
        first_dirty_after=plan.upper if plan.kind is RoundKind.CLEAN else plan.dirty,
        bytes_read=plan.bytes_to_read,
    )


def left_alone(decision: Decision, rules: Rules) -> Cleaned:
    """The line of a log that has no round due."""
    dirty = decision.bounds.dirty
    return Cleaned(
        partition=str(decision.info.facts.partition),
        outcome=explain(decision, Context(rules=rules)).text,
        first_dirty_before=dirty,
        first_dirty_after=dirty,
        finding=decision.blocked in {Blocked.UNHANDLED, Blocked.SUMMARIES},
    )


def _clean_there(configs: Mapping[TopicPartition, TopicConfig], job: Job) -> list[Cleaned]:
    """Clean in place, or in copies, made after the engine's start: if that fails, none is left."""
    args = job.args
    if args.to is None:
        return list(_clean(args.logdir, configs, job, _engine(job)))
    with _engine(job) as running:
        copy_logs(args.logdir, args.to, list(configs), job.fs, CLEAN)
        return list(_clean(args.to, configs, job, contextlib.nullcontext(running)))


def _clean(
    directory: Path,
    configs: Mapping[TopicPartition, TopicConfig],
    job: Job,
    opened: AbstractContextManager[tuple[Engine, int]],
) -> Iterator[Cleaned]:
    with Owned.of(directory, configs, job) as owned, opened as (engine, at_once):
        if owned.doubt:
            yield from (Cleaned(str(partition), owned.doubt, finding=True) for partition in configs)
            return
        lines, due = due_now(owned.owner, engine, owned.clock, job)
        yield from lines
        plans = plans_of(due, _task_memory(job, at_once), at_once, job)
        yield from _run(engine, plans, owned.owner, job)


@dataclass(frozen=True, slots=True)
class Owned:
    """A directory that is ours for a while.

    Attributes:
        clock: the time to decide by. doubt: why it is not trusted; then nothing may be cleaned.
    """

    owner: DirectoryOwner
    clock: ClockVerdict
    doubt: str

    @staticmethod
    @contextlib.contextmanager
    def of(
        directory: Path,
        configs: Mapping[TopicPartition, TopicConfig],
        job: Job,
        handed: Handed | None = None,
    ) -> Iterator[Owned]:
        """Open and close it; `handed`: as another process left it for us. Raises LockHeld."""
        time = functools.cache(functools.partial(time_of, directory, job))

        def believed() -> int | None:  # called once this process holds the directory
            clock, doubt = time()
            return None if doubt else clock.latest_ms

        with DirectoryOwner(
            directory, configs, job.fs, job.clock,
            producer_id_expiration_ms=job.broker.producer_id_expiration_ms,
            believed=believed, noted=lambda: time()[0].latest_ms,
            heals_txn_indexes=job.wish.rules is not Rules.KAFKA_43,
            clock_jump_max_ms=job.broker.clock_jump_max_ms, handed=handed,
        ) as owner:  # fmt: skip
            clock, doubt = time()
            if not doubt and job.args.now is None:
                owner.see(clock.latest_ms)
            yield Owned(owner, clock, doubt)


def due_now(
    owner: Owner, engine: Engine, clock: ClockVerdict, job: Job,
    chosen: Container[str] | None = None,
) -> tuple[list[Cleaned], list[Decision]]:  # fmt: skip
    """The rounds that are due, in their order, and lines of the other logs.

    `chosen`: the only logs that count, by name. What lacks summaries is looked through first.
    """
    moment = Moment.by(clock, job.wish)

    def infos() -> Iterator[LogInfo]:
        for info in owner.logs():
            if chosen is None or str(info.facts.partition) in chosen:
                yield info

    refused = _look_through(engine, owner, infos(), job, moment)
    decisions = [moment.decide(info) for info in infos()]
    lines = [left_alone(d, job.wish.rules) for d in decisions if not d.due]
    lines = [replace(line, outcome=refused.get(line.partition, line.outcome)) for line in lines]
    return lines, order(decisions, job.wish.rules)


def plans_of(due: Sequence[Decision], memory: MapMemory, at_once: int, job: Job) -> list[RoundPlan]:
    """A plan each; so many of them run `at_once`, with so much memory each."""
    rules = job.wish.rules
    rate = job.broker.log_cleaner_io_max_bytes_per_second / max(min(at_once, len(due)), 1)
    round_id = f"clean-{SystemClock().now_ms()}-{os.getpid()}"
    return [sized_plan(d, round_id, rules, memory, rate) for d in due]


def _task_memory(job: Job, at_once: int) -> MapMemory:
    """The memory of one task; under Kafka's rules that of a setting, whatever the machine has."""
    if job.wish.rules is Rules.KAFKA_43:
        return job.memory
    return memory_of(job.memory.bytes, at_once, job.args.master)


def time_of(directory: Path, job: Job) -> tuple[ClockVerdict, str]:
    """The time to decide by, and why it is not trusted (ADR-11); --now is always trusted."""
    if job.args.now is not None:
        return judge_clock(None, job.now_ms, 0.0, 0), ""
    guard = ClockGuard(job.fs, job.clock, directory, job.broker.clock_jump_max_ms, TOOL)
    verdict = guard.look()
    if verdict.held:
        return verdict, guard.trouble
    guard.keep()
    return verdict, ""


def _look_through(
    engine: Engine, owner: Owner, infos: Iterable[LogInfo], job: Job, moment: Moment
) -> dict[str, str]:
    """Make the missing summaries; returns, by log, why that failed.

    Of dirty segments only headers are read: the rounds that follow read the records.
    """
    decisions = (moment.decide(info) for info in infos)
    requests = requests_due(decisions, records=False)
    if not requests:
        return {}
    with progress_bar("looking", job.clock) as on_progress:
        receipts = list(receipts_of(engine.summarise(requests), on_progress))
    refusals = owner.adopt_summaries(receipts)
    return {r.name: why for r, why in zip(receipts, refusals, strict=True) if why is not None}


def _run(
    engine: Engine, plans: Sequence[RoundPlan], owner: DirectoryOwner, job: Job
) -> Iterator[Cleaned]:
    with progress_bar("cleaning", job.clock) as on_progress:
        receipts = receipts_of(engine.submit(plans), on_progress)
        yield from commit(plans, receipts, owner, job.clock, engine.name)


def commit(
    plans: Sequence[RoundPlan], receipts: Iterable[Receipt], owner: Owner, clock: Clock, engine: str
) -> Iterator[Cleaned]:
    """Commit receipts as they come; a line each."""
    by_name = {plan.name: plan for plan in plans}
    for receipt, result in committed(receipts, owner, clock):
        yield _line(by_name[receipt.name], receipt, result, engine)


@contextlib.contextmanager
def _engine(job: Job) -> Iterator[tuple[Engine, int]]:
    """The engine of `--engine`, and how many rounds it runs at once: they share the memory.

    Under Kafka's rules the map's size decides where a round ends, so each round gets all memory.
    """
    if job.args.engine == "inline":
        yield InlineEngine(job.fs, job.clock), 1
        return
    with needed_for("--engine spark"):  # imported only if chosen
        from lapse.spark.rounds.engine import open_engine  # noqa: PLC0415
        from lapse.spark.session.session import SessionOptions  # noqa: PLC0415

    said = options.spark_settings(job.args.conf)
    wish = SessionOptions(job.args.master, "lapse clean", said=said, when_starting=say_starting)
    with contextlib.closing(open_engine(wish)) as engine:
        yield engine, 1 if job.wish.rules is Rules.KAFKA_43 else engine.task_slots


def _line(plan: RoundPlan, receipt: Receipt, result: CommitResult, engine: str) -> Cleaned:
    seconds = receipt.seconds
    moved = result.error is None and receipt.end_offset >= 0  # a trim moves nothing
    io = receipt.bytes_read + receipt.bytes_written
    return replace(
        _planned(plan, result.error or _DONE[plan.kind]),
        first_dirty_after=receipt.end_offset if moved else plan.dirty,
        bytes_read=receipt.bytes_read,
        bytes_written=receipt.bytes_written,
        records_read=receipt.records_read,
        records_written=receipt.records_written,
        map_entries=receipt.map_entries,
        plan=receipt.plan,
        bytes_per_dirty_byte=round(io / plan.dirty_bytes, 3) if plan.dirty_bytes else None,
        engine=engine,
        seconds={"map": seconds.map, "rewrite": seconds.rewrite, "commit": result.seconds},
        finding=result.error is not None,
    )


def _planned(plan: RoundPlan, outcome: str) -> Cleaned:
    """What a plan says, made or not."""
    return Cleaned(
        partition=plan.name,
        outcome=outcome,
        first_dirty_before=plan.dirty,
        first_dirty_after=plan.dirty,
        plan=plan.variant,
        why=plan.why,
        kind=plan.kind.value,
        due=plan.due,
        dirty_bytes=plan.dirty_bytes,
    )


def _moved(line: Cleaned) -> str:
    before, after = line.first_dirty_before, line.first_dirty_after
    return "-" if before is None else f"{before} → {after}"


def _ratio(line: Cleaned) -> str:
    return "-" if line.bytes_per_dirty_byte is None else f"{line.bytes_per_dirty_byte:.1f}"


_COLUMNS: dict[str, Callable[[Cleaned], str]] = {
    "partition": lambda line: line.partition,
    "first dirty": _moved,
    "records": lambda line: f"{line.records_read} → {line.records_written}",
    "read / written": lambda line: (
        f"{size_text(line.bytes_read)} / {size_text(line.bytes_written)}"
    ),
    "per dirty byte": _ratio,
    "outcome": lambda line: line.outcome,
}
