"""What `explain` reports of one log: what holds it back, and when that ends. Only looks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from lapse.base.clock import Clock, time_text
from lapse.base.config import BrokerConfig
from lapse.base.errors import CorruptData, LapseError, StorageError, unreadable
from lapse.base.host import processors
from lapse.lifecycle.clock_guard import moment_by, seen
from lapse.lifecycle.decide.clock import ClockVerdict
from lapse.lifecycle.decide.deadline import next_look_ms
from lapse.lifecycle.decide.explain import Context, explain
from lapse.lifecycle.decide.lateness import deadlines_of, overdue_ms
from lapse.lifecycle.decide.promises import Promise, bounds_of
from lapse.lifecycle.decide.select import Decision, LogInfo, Moment
from lapse.lifecycle.decide.verdict import Rules
from lapse.lifecycle.outlook.memory import memory_here
from lapse.lifecycle.outlook.plan import policy_text
from lapse.lifecycle.outlook.rows import Row, plan_row
from lapse.lifecycle.record_history import RecordHistory, history_of
from lapse.lifecycle.round.plan import MapMemory
from lapse.lifecycle.round.sizing import sized_plan
from lapse.lifecycle.round.slots import within_cores
from lapse.lifecycle.status.pauses import Pauses, pause_text, pauses_or_all
from lapse.lifecycle.status.reports import (
    Queue,
    ServiceProgress,
    is_running,
    read_progress,
    read_queue,
)
from lapse.log.facts import BadRange

SERVICE = "(service)"  # instead of a log's name: the service's files cannot be read
HEALTH = "(health)"  # instead of a log's name: a problem of the directory as a whole


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
        broker: which says it; None where a directory was looked at.
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
    broker: int | None = None


def unreadable_log(name: str, policy: str, why: LapseError | OSError) -> Explained:
    """A log, or what concerns all of them, that cannot be judged."""
    error = unreadable(why) if isinstance(why, OSError) else why
    return Explained(name, policy, "unreadable", str(error), finding=True)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the logs of one data directory have in common.

    Attributes:
        moment: by which is decided.
        verdict: how the processes that remove records judge the clock; None where there are none.
        queue: which logs have a round, or wait for one.
        progress: what the lifecycle service reports; None where there never was one.
        service_trouble: why that cannot be read.
        is_judged_now: not as of another moment.
        wall_ms: the wall clock's time, by which the service writes its files.
    """

    moment: Moment
    verdict: ClockVerdict | None
    queue: Queue
    places_in_queue: dict[str, int]
    progress: ServiceProgress | None
    service_trouble: LapseError | None
    pauses: Pauses
    memory: MapMemory
    is_judged_now: bool
    wall_ms: int

    @staticmethod
    def of(
        data_dir: Path, config: BrokerConfig, clock: Clock, now_ms: int | None = None
    ) -> Surroundings:
        """As its files say; `now_ms`: to be judged as of that moment."""
        verdict, moment = None, Moment(clock.now_ms() if now_ms is None else now_ms)
        if now_ms is None:
            verdict = seen(data_dir, clock, config.clock_jump_max_ms)
            moment = moment_by(verdict, clock)
        queue, progress, trouble = _of_service(data_dir)
        if now_ms is None and progress is not None and not is_running(progress, clock.now_ms()):
            queue = Queue()  # it is nobody's
        master = within_cores(config.lifecycle_master, config.lifecycle_cores_max, processors())
        return Surroundings(
            moment,
            verdict,
            queue,
            {log: n for n, log in enumerate(queue.logs)},
            progress,
            trouble,
            pauses_or_all(data_dir, clock.now_ms()),
            memory_here(config.lifecycle_memory_bytes, master),
            now_ms is None,
            clock.now_ms(),
        )

    @property
    def now_ms(self) -> int:
        """The time to decide by."""
        return self.moment.now_ms

    def planned(self, info: LogInfo) -> Row:
        """A log's row of the plan view."""
        decision = self.moment.decide(info)
        return plan_row(decision, self._context(decision))

    def foreseen(self, info: LogInfo) -> Row:
        """As `planned`, if somebody asked for a round now (`status.wishes`)."""
        moment = replace(self.moment, options=replace(self.moment.options, asked=True))
        return replace(self, moment=moment).planned(info)

    def explained(self, info: LogInfo, offset: int | None = None) -> Explained:
        """A log; with `offset` the fate of one record. Raises CorruptData, StorageError."""
        decision = self.moment.decide(info)
        context = self._context(decision)
        fate = None if offset is None else history_of(decision, offset, context)
        return self._explained(decision, context, fate)

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
        if self.is_judged_now and not is_running(progress, self.wall_ms):
            return f"silent since {time_text(progress.updated_ms)}: rounds are not running"
        return f"{progress.state}: {progress.detail}" if progress.detail else progress.state


def _of_service(logdir: Path) -> tuple[Queue, ServiceProgress | None, LapseError | None]:
    """The lifecycle service's queue and progress, and why they cannot be read."""
    try:
        return read_queue(logdir) or Queue(), read_progress(logdir), None
    except (CorruptData, StorageError) as e:
        return Queue(), None, e
