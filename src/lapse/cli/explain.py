"""`lapse explain LOGDIR or TOPIC`: what holds each log back, and when that ends.

Per log: the rule that binds now, in words and as one word for scripts, with the moment at which it
ends by itself; what Lapse promises of the topic's records, as formulas; unreadable data and the
next try; timestamps from the future; how many logs have their round first. With --offset, the fate
of one record: when it was removed and by which rule (from the ledger), or where it is and why it
stays.

Read-only: writes, locks and rebuilds nothing, and works beside a running Kafka. An argument that is
no directory is a topic, searched for in the directories of --data.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from lapse.base.clock import Clock, SystemClock, time_text
from lapse.base.config import broker_config
from lapse.base.errors import (
    ConfigError,
    CorruptData,
    LapseError,
    StorageError,
    os_error,
    unreadable,
)
from lapse.base.host import processors
from lapse.base.ids import TopicPartition
from lapse.base.times import duration
from lapse.cli import options
from lapse.cli.plan import METADATA, REMEMBERED, policy_text
from lapse.cli.task_memory import memory_here
from lapse.lifecycle.clock_guard import CONFIRMED, KEEPERS, read_record
from lapse.lifecycle.decide.clock import ClockVerdict, clock_text, judge_clock
from lapse.lifecycle.decide.deadline import next_look_ms
from lapse.lifecycle.decide.explain import Context, explain
from lapse.lifecycle.decide.lateness import deadlines_of, overdue_ms
from lapse.lifecycle.decide.promises import Promise, bounds_of
from lapse.lifecycle.decide.select import Decision, decide
from lapse.lifecycle.decide.verdict import Rules
from lapse.lifecycle.owner.remote import ask_conditions
from lapse.lifecycle.record_history import RecordHistory, history_of
from lapse.lifecycle.round.plan import MapMemory
from lapse.lifecycle.round.sizing import sized_plan
from lapse.lifecycle.round.stamps import info_of
from lapse.lifecycle.status.conditions import LATE_WORDS, Condition, Seen, pipeline_conditions
from lapse.lifecycle.status.pauses import Pauses, pause_text, pauses_or_all
from lapse.lifecycle.status.reports import (
    Queue,
    ServiceProgress,
    is_running,
    read_progress,
    read_queue,
)
from lapse.log.facts import BadRange
from lapse.log.missing import Remembered
from lapse.log.reader import DirectoryView
from lapse.metadata.policies import UNKNOWN, Policies
from lapse.spark.session.local import within_cores

SERVICE = "(service)"  # instead of a log's name: the service's files cannot be read
HEALTH = "(health)"  # instead of a log's name: a problem of the directory as a whole
EXAMPLES = """\
examples:
  lapse explain /var/lib/kafka/data --partition orders-0
  lapse explain orders --data DATA --json
  lapse explain DATA --partition orders-0 --offset 4711
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    add = parser.add_argument
    add("target", metavar="LOGDIR|TOPIC", help="a data directory, or a topic's name")
    add("--data", type=Path, action="append", default=[], metavar="DIR",
        help="a data directory to search for TOPIC; may be repeated")  # fmt: skip
    add("--partition", action="append", default=[], metavar="TOPIC-N",
        help="only this log; may be repeated")  # fmt: skip
    add("--offset", type=options.whole_number(), metavar="N",
        help="the fate of one record of the one --partition")  # fmt: skip
    options.add_settings(parser)
    options.add_broker(parser)
    add("--now", type=options.whole_number(), metavar="MS", help="judge as of this moment")
    add("--json", action="store_true", help="one JSON object a line")


@dataclass(frozen=True, slots=True)
class FutureTimestamp:
    """A segment with a timestamp that no clock has reached (L9)."""

    segment: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Explained:
    """What `explain` reports of one log.

    Attributes:
        rule: the binding rule, a word of `decide.explain.RULES`.
        until_ms: when the rule ends by itself, None if unknown.
        next_look_ms: the earliest moment at which the decision may change.
        waiting_behind: number of logs that have their round first.
        plan: of the round that is due, small or split, and why.
        service: the state of this directory's lifecycle service, None where there is none.
        paused: since when and why rounds of the log are paused, due or not; None if they are not.
        overdue_ms: by how much the worst deadline of each kind is missed, 0 where none is.
    """

    partition: str
    policy: str
    rule: str
    text: str
    until_ms: int | None = None
    next_look_ms: int | None = None
    first_dirty: int | None = None
    first_uncleanable: int | None = None
    promises: tuple[Promise, ...] = ()
    bad: BadRange | None = None
    future_timestamps: tuple[FutureTimestamp, ...] = ()
    waiting_behind: int = 0
    plan: str | None = None
    service: str | None = None
    fate: RecordHistory | None = None
    finding: bool = False
    paused: str | None = None
    overdue_ms: dict[str, int] = field(default_factory=dict)


def run(args: argparse.Namespace) -> int:
    """Print the explanations; exit 1 where something cannot be judged."""
    if args.offset is not None and len(args.partition) != 1:
        raise ConfigError("--offset: allowed with exactly one --partition")
    clock = SystemClock()
    lines = []
    for remembered, partitions in _places(args):
        if isinstance(partitions, StorageError):
            lines.append(_unreadable(str(remembered.log_dir), "-", partitions))
            continue
        place = _Place.of(args, remembered, clock)
        lines += place.troubles()
        explained = [place.line(partition, args.offset) for partition in partitions]
        lines += [*place.health(explained), *explained]
    show = _as_json if args.json else _as_text
    sys.stdout.write("".join(show(line) for line in lines))
    return 1 if any(line.finding for line in lines) else 0


def _unreadable(name: str, policy: str, why: LapseError | OSError) -> Explained:
    error = unreadable(why) if isinstance(why, OSError) else why
    return Explained(name, policy, "unreadable", str(error), finding=True)


def _places(
    args: argparse.Namespace,
) -> Iterator[tuple[Remembered, list[TopicPartition] | StorageError]]:
    """The chosen logs of each data directory; or why a directory cannot be read.

    Raises StorageError where a directory or log does not exist, and ConfigError.
    """
    args.logdir = Path(args.target)
    if _is_dir(args.logdir):
        remembered = Remembered.of(args.logdir)
        try:
            also = remembered.missing_partitions()
            yield remembered, options.chosen_partitions(args, also)
        except StorageError as e:
            if os_error(e) is None:
                raise
            yield remembered, e
        return
    if not args.data:
        raise ConfigError(f"{args.target} is no directory; for a topic pass --data DIR too")
    found = False
    for logdir in args.data:
        remembered = Remembered.of(logdir)
        try:
            present = {*options.partitions_in(logdir), *remembered.missing_partitions()}
        except StorageError as e:
            if os_error(e) is None:
                raise
            found = True
            yield remembered, e
            continue
        named = set(args.partition)
        chosen = [p for p in sorted(present)
                  if p.topic == args.target and (not named or str(p) in named)]  # fmt: skip
        found = found or bool(chosen)
        if chosen:
            yield remembered, chosen
    if not found:
        where = ", ".join(map(str, args.data))
        raise StorageError(f"{where}: holds no such log of topic {args.target}")


def _is_dir(path: Path) -> bool:
    """Whether a path is a directory; True where it may not be read: reading it gives the reason."""
    try:
        return path.is_dir()
    except OSError:
        return True


@dataclass(frozen=True, slots=True)
class _Place:
    """A data directory, and what its logs have in common."""

    view: DirectoryView
    remembered: Remembered
    policies: Policies
    now_ms: int
    verdict: ClockVerdict | None
    queue: Queue
    places_in_queue: dict[str, int]
    progress: ServiceProgress | None
    service_trouble: LapseError | None
    pauses: Pauses
    memory: MapMemory
    is_judged_now: bool

    @staticmethod
    def of(args: argparse.Namespace, remembered: Remembered, clock: Clock) -> _Place:
        logdir = remembered.log_dir
        policies = options.policies_in(logdir, args)
        view = DirectoryView(logdir)
        verdict = None
        broker = broker_config({**policies.defaults, **policies.given_defaults})
        if args.now is None:
            verdict = _verdict(logdir, clock, broker.clock_jump_max_ms)
        queue, progress, trouble = _of_service(logdir)
        master = within_cores(broker.lifecycle_master, broker.lifecycle_cores_max, processors())
        return _Place(
            view,
            remembered,
            policies,
            clock.now_ms() if args.now is None else args.now,
            verdict,
            queue,
            {log: n for n, log in enumerate(queue.logs)},
            progress,
            trouble,
            pauses_or_all(logdir, clock.now_ms()),
            memory_here(broker.lifecycle_memory_bytes, master),
            args.now is None,
        )

    def line(self, partition: TopicPartition, offset: int | None) -> Explained:
        name, policy = str(partition), "unknown"
        try:
            self.remembered.require_whole(partition)
            config = self.policies.config_of(partition)
            if config is None:
                return Explained(name, policy, "policy", UNKNOWN, finding=True)
            policy = policy_text(config)
            facts = self.view.facts(partition)
            decision = decide(info_of(facts, config, self.now_ms), self.now_ms)
            context = self._context(decision)
            fate = None if offset is None else history_of(decision, offset, context)
            line = self._explained(decision, context, fate)
            contradictions = self.policies.contradictions_of(partition)
            return replace(line, text=f"{line.text}; {contradictions}") if contradictions else line
        except (LapseError, OSError) as e:
            return _unreadable(name, policy, e)

    def troubles(self) -> list[Explained]:
        """Files of the directory itself that cannot be read, a line each."""
        found: dict[str, LapseError | str | None] = {
            METADATA: self.policies.trouble,
            REMEMBERED: self.remembered.trouble,
            SERVICE: self.service_trouble,
        }
        return [
            Explained(name, "-", "unreadable", str(why), finding=True)
            for name, why in found.items()
            if why
        ]

    def health(self, explained: Sequence[Explained]) -> list[Explained]:
        """Problems of the broker and the service of the directory, a line each.

        As reported by its broker; where no broker answers, derived from files and `explained`.
        """
        if not self.is_judged_now:
            return []
        reported = ask_conditions(self.view.path)
        found = self._by_files(explained) if reported is None else reported
        return [Explained(HEALTH, "-", problem.reason, str(problem)) for problem in found]

    def _by_files(self, lines: Sequence[Explained]) -> Sequence[Condition]:
        """Empty where no Lapse service ever ran: lateness is then not Lapse's."""
        if self.progress is None:
            return ()
        held = {log.log: (log.count, log.reason) for log in self.queue.held}
        due = sum(line.plan is not None for line in lines)
        late = {(line.partition, k): ms for line in lines for k, ms in line.overdue_ms.items()}
        clock = "" if self.verdict is None or not self.verdict.held else clock_text(self.verdict)
        seen = Seen(self.now_ms, True, self.progress, None, due, held, late, clock)
        return pipeline_conditions(seen)

    def _context(self, decision: Decision) -> Context:
        name = str(decision.info.facts.partition)
        pause = self.pauses.of(name)
        held = next((h for h in self.queue.held if h.log == name), None)
        return Context(
            waiting_behind=self.places_in_queue.get(name, 0),
            setback_until_ms=None if held is None else held.until_ms,
            setback_reason="" if held is None else held.reason,
            clock=self.verdict,
            paused="" if pause is None else pause_text(pause),
            paused_until_ms=None if pause is None else pause.until_ms,
        )

    def _explained(
        self, decision: Decision, context: Context, fate: RecordHistory | None
    ) -> Explained:
        facts, config = decision.info.facts, decision.info.config
        why = explain(decision, context)
        future = tuple(
            FutureTimestamp(s.base_offset, s.largest_timestamp)
            for s in facts.segments
            if s.largest_timestamp > self.now_ms
        )
        return Explained(
            partition=str(facts.partition),
            policy=policy_text(config),
            rule=why.rule,
            text=why.text,
            until_ms=why.until_ms,
            next_look_ms=next_look_ms(decision),
            first_dirty=decision.bounds.dirty if config.compacts else None,
            first_uncleanable=decision.bounds.upper if config.compacts else None,
            promises=bounds_of(config),
            bad=facts.bad,
            future_timestamps=future,
            waiting_behind=context.waiting_behind,
            plan=self._plan(decision),
            service=self._service(),
            fate=fate,
            paused=context.paused or None,
            overdue_ms=overdue_ms(config, deadlines_of(decision), self.now_ms),
        )

    def _plan(self, decision: Decision) -> str | None:
        """The plan of a round that is due, with the service's memory on this machine."""
        if not decision.due:
            return None
        plan = sized_plan(decision, "explained", Rules.LAPSE, self.memory)
        return f"{plan.variant} plan: {plan.why}"

    def _service(self) -> str | None:
        """The service's reported state, or that it reports no more: rounds do not run then."""
        progress = self.progress
        if progress is None:
            return None
        if progress.state == "stopped":
            return "stopped: rounds are not running"
        if self.is_judged_now and not is_running(progress, self.now_ms):
            return f"silent since {time_text(progress.updated_ms)}: rounds are not running"
        return f"{progress.state}: {progress.detail}" if progress.detail else progress.state


def _of_service(logdir: Path) -> tuple[Queue, ServiceProgress | None, LapseError | None]:
    """The lifecycle service's queue and progress, and why they cannot be read."""
    try:
        return read_queue(logdir) or Queue(), read_progress(logdir), None
    except (CorruptData, StorageError) as e:
        return Queue(), None, e


def _verdict(logdir: Path, clock: Clock, jump_max_ms: int) -> ClockVerdict | None:
    """How the processes that remove records here judge the clock; None where there are none."""
    records = [r for name in KEEPERS if (r := read_record(logdir / name)) is not None]
    if not records:
        return None
    newest = max(records, key=lambda r: (r.now_ms, r.monotonic_s or 0.0))
    confirmed = (logdir / CONFIRMED).exists()
    return judge_clock(newest, clock.now_ms(), clock.monotonic(), jump_max_ms, confirmed=confirmed)


def _as_json(line: Explained) -> str:
    fields = msgspec.to_builtins(line)
    fields["promises"] = [promise._asdict() for promise in line.promises]
    del fields["finding"]
    return msgspec.json.encode(fields).decode() + "\n"


def _as_text(line: Explained) -> str:
    rows = [f"{line.partition}  {line.policy}"]
    if line.fate is not None:
        rows += _fate_text(line.fate)
    else:
        rows.append(f"  {line.text}{_until(line.until_ms)} [{line.rule}]")
        late = {kind: ms for kind, ms in line.overdue_ms.items() if ms}
        rows += [f"  late: {LATE_WORDS[kind]} by {duration(ms)}" for kind, ms in late.items()]
        rows += [f"  {text}" for text in _more(line)]
        rows += [f"  promised: {p.name}: {p.formula}" for p in line.promises]
    return "\n".join(rows) + "\n"


def _fate_text(fate: RecordHistory) -> Sequence[str]:
    rows = [f"  offset {fate.offset}: {fate.state}: {fate.text}{_until(fate.until_ms)}"]
    if fate.now_ms is not None and fate.committed_ms is not None:
        clock = f"the round's clock was {time_text(fate.now_ms)}"
        rows.append(f"  {clock}, it was committed {time_text(fate.committed_ms)}")
    if fate.place is not None:
        place = fate.place
        rows.append(f"  segment {place.segment}, batch {place.batch}, byte {place.position}")
    return rows


def _more(line: Explained) -> Iterator[str]:
    if line.bad is not None and line.rule != "bad-range":
        bad = line.bad
        yield (
            f"unreadable: segment {bad.segment_base}, byte {bad.position}, offset "
            f"{bad.first_offset}: {bad.reason}; next try {time_text(bad.next_try_ms)}"
        )
    for future in line.future_timestamps:
        yield f"segment {future.segment} has a timestamp from the future: " + time_text(
            future.timestamp_ms
        )
    if line.plan is not None:
        yield line.plan
    if line.paused is not None and line.rule != "paused":
        yield f"rounds of it are {line.paused}"
    if line.service is not None:
        yield f"lifecycle service {line.service}"


def _until(until_ms: int | None) -> str:
    return "" if until_ms is None else f", until {time_text(until_ms)}"
