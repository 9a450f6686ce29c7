"""The lifecycle service: asks the owner for facts, has due rounds run, hands the owner receipts.

What Kafka calls LogCleaner.

facts → decide, in KIP-354's order (L6) → plans with one `now` → engine → one commit → report.
Logs that lack summaries are looked through by the engine first, some of their bytes in each step,
so that rounds of others need not wait for a whole foreign directory to be read.

Rounds that have a deadline go before those that only tidy up (L6), and past them: one that falls
due while a long run is under way gets a run of its own beside it (`_overtake`). What people may
ask of it they leave in files: rounds to wait, a round to be called off (`asked`).

Given an owner and an engine, it knows neither sockets nor Spark. Nothing durable is its own but the
time it last believed (`clock_guard`): it may be killed anywhere, and the next one begins from the
owner's facts. A log whose round fails is left alone for a while, longer each time, and keeps no
other waiting; one with a place that cannot be read goes on below it (L10). An owner that is away
is waited for; while the clock is not believed nothing is removed or stamped.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol, TypeVar

from lapse.base.backoff import backoff_ms
from lapse.base.errors import LapseError
from lapse.base.times import after_ms
from lapse.lifecycle.clock_guard import ClockGuard
from lapse.lifecycle.decide.clock import ClockVerdict
from lapse.lifecycle.decide.deadline import next_look_ms
from lapse.lifecycle.decide.select import (
    Decision,
    Due,
    LogInfo,
    RoundOptions,
    decide,
    must_be_made,
    order,
)
from lapse.lifecycle.decide.verdict import Rules
from lapse.lifecycle.owner.protocol import Owner, OwnerGone
from lapse.lifecycle.round.cancel import is_cancelled
from lapse.lifecycle.round.commit import CommitResult
from lapse.lifecycle.round.engine import (
    NO_ATTEMPT,
    Engine,
    EngineLost,
    OnProgress,
    Progress,
    failed,
)
from lapse.lifecycle.round.plan import MapMemory, RoundPlan
from lapse.lifecycle.round.receipt import Receipt
from lapse.lifecycle.round.sizing import sized_plan
from lapse.lifecycle.round.summarise import (
    SummaryReceipt,
    SummaryRequest,
    requests_due,
    wants_look,
)
from lapse.lifecycle.service.board import Board, RunProgress, at_rest, some
from lapse.lifecycle.service.commits import in_portions
from lapse.lifecycle.status.backoff import Companions, Setbacks
from lapse.lifecycle.status.pauses import PAUSES, Pause, Pauses, pause_text, pauses_or_all
from lapse.lifecycle.status.reports import (
    ENGINE_UP,
    HELD,
    NO_ENGINE,
    STOPPED,
    WAITING,
    EngineReport,
    Queue,
    RunOf,
    UnderWay,
    round_report,
)
from lapse.log.env import LogEnv

logger = logging.getLogger(__name__)

OWNER_BACKOFF_MS_MAX = 5000
_FIRST_OWNER_BACKOFF_MS = 100
_NOTICE_MS = 1000  # how soon a confirmation of the clock is noticed, or the end of a pause
_SLICE_SECONDS = 0.1  # how soon a request to stop is noticed
_PAUSE_MS_MIN = 10
LOOK_BYTES_MAX = 16 << 30  # looked through in one step, or one segment if that is larger
JOBS_FAILED_MAX = 3  # that came to nothing as a whole, one after the other: it is the engine
_STAMPING_ONLY = (Due.TOMBSTONES.value,)

_R = TypeVar("_R", Receipt, SummaryReceipt)


class JobControl(Protocol):
    """An engine whose run can be cut short, and which can tell what its jobs were called."""

    last_job_ids: tuple[int, ...]

    def cancel(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """How a service goes about it.

    Attributes:
        memory: of one round's map; as many rounds run at once as the engine has task slots.
        pause_ms: how long it rests when nothing is due (log.cleaner.backoff.ms).
        rounds_at_once: those task slots.
        io_bytes_per_second: of all rounds together (log.cleaner.io.max.bytes.per.second); 0 is no
            limit.
        clock_jump_max_ms: lapse.clock.jump.max.ms.
    """

    memory: MapMemory
    pause_ms: int
    rounds_at_once: int = 1
    io_bytes_per_second: float = 0.0
    clock_jump_max_ms: int = 3_600_000


class Service:
    """The loop. `run` returns after `request_stop`.

    Args:
        data_dir: where reports go, and the last time that was believed.
        jobs: the engine again, if it has what `JobControl` asks.
        engine_report: what is said of it in the files.

    Attributes:
        has_worked: whether the engine has made anything yet.
    """

    def __init__(
        self,
        owner: Owner,
        engine: Engine,
        env: LogEnv,
        data_dir: Path,
        options: ServiceOptions,
        jobs: JobControl | None = None,
        engine_report: EngineReport | None = None,
    ) -> None:
        self._owner, self._engine, self._jobs = owner, engine, jobs
        self._env, self._clock = env, env.clock
        self._options = options
        told = engine_report or EngineReport(ENGINE_UP, env.clock.now_ms())
        self._board = Board(env, data_dir, told)
        self._jobs_failed = 0  # in a row
        self.has_worked = False
        self._guard = ClockGuard(env.fs, env.clock, data_dir, options.clock_jump_max_ms)
        self._setbacks = Setbacks(env.clock)
        self._companions = Companions()
        self._undecided: set[str] = set()
        self._owner_missed = 0  # how often in a row
        self._stopping = False
        self._data_dir = data_dir
        self._queue = Queue()  # of the run under way, and of one that overtakes it
        self._overtaking = False
        self._overtake_s = 0.0  # not before
        self._overtaken: set[str] = set()  # logs that had a round beside the others of this step

    def request_stop(self) -> None:
        """End soon: the round under way is cancelled or finished. Fit for a signal handler."""
        self._stopping = True

    def run(self) -> None:
        """Work until asked to stop; what the engine cannot go on after (EngineLost) comes out."""
        while not self._stopping:
            self._rest(self.step())
        self._board.engine = NO_ENGINE
        self._board.tell(STOPPED, "the service was told to stop")

    def _rest(self, pause_ms: int) -> None:
        until, said = self._clock.monotonic() + pause_ms / 1000, self._said()
        while not self._stopping and (left := until - self._clock.monotonic()) > 0:
            self._clock.sleep(min(_SLICE_SECONDS, left))
            if self._said() != said:
                return

    def _said(self) -> int:
        """Moves when somebody pauses or resumes."""
        try:
            return (self._data_dir / PAUSES).stat().st_mtime_ns
        except OSError:
            return 0

    def step(self) -> int:
        """Look once and run what is due; returns how many ms to rest before the next look."""
        try:
            infos = self._owner.logs()
            if self._owner_missed:
                logger.info("the owner is back, with %d logs", len(infos))
                self._owner_missed = 0
            verdict = self._guard.look()
            if verdict.held:
                return self._wait_for_clock(verdict)
            now_ms = verdict.now_ms
            pauses = self._pauses()
            if pauses.all is not None:
                return self._wait_for_resume(pauses.all)
            decisions = self._decide(infos, verdict)
            self._setbacks.forget_but(str(info.facts.partition) for info in infos)
            ready = [d for d in order(decisions) if self._is_ready(d, pauses)]
            if ready:
                self._run_rounds(ready, now_ms)
            lacking = [d for d in decisions if wants_look(d) and not self._is_held(d, pauses)]
            if lacking and not self._stopping:
                self._look_through(lacking, now_ms)
            if ready or lacking:
                return 0
        except OwnerGone as e:
            return self._wait_for_owner(e)
        pause_ms = self._pause_ms(decisions, now_ms)
        self._board.queue(Queue(held=self._setbacks.held()))
        due = (str(d.info.facts.partition) for d in decisions if d.due or wants_look(d))
        told = RunProgress(next_look_ms=after_ms(now_ms, pause_ms))
        self._board.tell(*at_rest(due, self._setbacks.held()), told)
        return pause_ms

    def _decide(self, infos: Iterable[LogInfo], clock: ClockVerdict) -> list[Decision]:
        """What is decided of each; one that cannot be decided on is left out for a while."""
        wish = RoundOptions(stamp_ms=clock.latest_ms, steps=clock.record.steps)
        decisions = []
        for info in infos:
            name = str(info.facts.partition)
            if name in self._undecided and self._setbacks.holds(name):
                continue
            self._undecided.discard(name)
            try:
                decisions.append(decide(info, clock.now_ms, wish))
            except Exception as e:
                logger.exception("nothing can be decided of %s", name)
                self._setbacks.set_back(name, f"nothing can be decided of it: {e!r}")
                self._undecided.add(name)
        return decisions

    # --- rounds ----------------------------------------------------------------------------------

    def _run_rounds(self, ready: Sequence[Decision], now_ms: int) -> None:
        """Rounds of all that are ready: in one run of the engine, or two, first things first."""
        self._guard.keep()
        self._overtaken.clear()
        decided = {str(d.info.facts.partition): d for d in ready}
        left = [
            run
            for is_urgent in (True, False)
            for run in self._companions.runs(
                [name for name, d in decided.items() if must_be_made(d) is is_urgent]
            )
        ]
        while left and not self._stopping:
            names, pauses = left.pop(0), self._pauses()
            # What overtook the run before was decided on later than this.
            wanted = [n for n in names if pauses.of(n) is None and n not in self._overtaken]
            plans = self._plans([decided[n] for n in wanted], now_ms)
            if plans:
                waiting = tuple(name for run in left for name in run)
                self._run_queued(plans, waiting, now_ms)

    def _run_queued(
        self, plans: Sequence[RoundPlan], waiting: tuple[str, ...], now_ms: int
    ) -> None:
        """A run, and the queue for as long; `waiting` are the logs that come after it."""
        before, names = self._queue, tuple(plan.name for plan in plans)
        rounds = tuple(UnderWay(plan.name, plan.round_id, plan.dir) for plan in plans)
        self._queue = Queue(
            now_ms, len(names) + before.running, names + before.logs + waiting,
            self._setbacks.held(), rounds + before.rounds,
        )  # fmt: skip
        self._board.queue(self._queue)
        try:
            self._run(plans, now_ms)
        finally:
            self._queue = replace(before, held=self._setbacks.held())
            if self._overtaking:
                self._board.queue(self._queue)

    def _overtake(self) -> None:
        """Have rounds made that got a deadline to keep while a long run is under way.

        Called by that run whenever it tells how far it is. One such run at a time; the engine gives
        it the task slots that fall free.
        """
        now_s = self._clock.monotonic()
        if self._overtaking or self._stopping or now_s < self._overtake_s:
            return
        self._overtaking = True
        try:
            verdict = self._guard.look()
            pauses = self._pauses()
            if verdict.held or pauses.all is not None:
                return
            under_way = {one.log for one in self._queue.rounds}
            infos = [i for i in self._owner.logs() if str(i.facts.partition) not in under_way]
            decisions = order(self._decide(infos, verdict))
            urgent = [d for d in decisions if must_be_made(d) and self._is_ready(d, pauses)]
            for names in self._companions.runs([str(d.info.facts.partition) for d in urgent])[:1]:
                some_of = [d for d in urgent if str(d.info.facts.partition) in set(names)]
                plans = self._plans(some_of, verdict.now_ms, beside=True)
                if plans:
                    self._guard.keep()
                    self._overtaken.update(plan.name for plan in plans)
                    self._run_queued(plans, (), verdict.now_ms)
        except OwnerGone as e:
            logger.info("nothing overtakes: %s", e)  # the run under way will meet it too
        finally:
            self._overtaking = False
            self._overtake_later()

    def _overtake_later(self) -> None:
        self._overtake_s = self._clock.monotonic() + self._options.pause_ms / 1000

    def _plans(
        self, ready: Sequence[Decision], now_ms: int, *, beside: bool = False
    ) -> list[RoundPlan]:
        """`beside` another run each may take a slot's part of the io budget, and no more."""
        slots = self._options.rounds_at_once
        at_once = slots if beside else max(min(slots, len(ready)), 1)
        rate, memory = self._options.io_bytes_per_second / at_once, self._options.memory
        plans = []
        for decision, round_id in zip(ready, self._round_ids(len(ready), now_ms), strict=True):
            try:
                plans.append(sized_plan(decision, round_id, Rules.LAPSE, memory, rate))
            except Exception as e:
                name = str(decision.info.facts.partition)
                logger.exception("no plan can be made for %s", name)
                self._setbacks.set_back(name, f"no plan can be made for it: {e!r}")
        return plans

    def _run(self, plans: Sequence[RoundPlan], now_ms: int) -> None:
        """One run of the engine, and the commit of what came of it, even if the engine is lost.

        Small rounds are committed many at a time, while others are made; none of them waits for
        a split one, which may take long.
        """
        lost: LapseError | None = None
        by_id = {plan.round_id: plan for plan in plans}
        small = {plan.round_id for plan in plans if plan.split is None}
        unasked: list[str] = []  # logs that nobody attempted
        error = ""

        def is_last(receipt: Receipt) -> bool:
            small.discard(receipt.round_id)
            return not small or by_id[receipt.round_id].split is not None

        try:
            for some_of in in_portions(self._receipts(plans, now_ms), self._clock, is_last):
                job_ids = () if self._jobs is None else self._jobs.last_job_ids
                unasked += [r.name for r in some_of if r.attempt_id == NO_ATTEMPT]
                error = some_of[0].error or error
                self._commit(by_id, some_of, job_ids)
        except OwnerGone:
            raise
        except LapseError as e:
            lost = e
        if not self._stopping:
            self._companions.failed([plan.name for plan in plans], unasked)
        if lost is not None:
            raise lost
        self._note_job(came_to_nothing=len(unasked) == len(plans), error=error)

    def _note_job(self, *, came_to_nothing: bool, error: str) -> None:
        """Raises EngineLost where one job after the other comes to nothing, whatever it is about.

        One that fails for one log's sake is the doing of that log (`Companions`), and others
        succeed in between.
        """
        if self._stopping:
            return
        self._jobs_failed = self._jobs_failed + 1 if came_to_nothing else 0
        self.has_worked = self.has_worked or not came_to_nothing
        if self._jobs is not None and self._jobs_failed >= JOBS_FAILED_MAX:
            raise EngineLost(f"{self._jobs_failed} jobs in a row came to nothing: {error}")

    def _commit(
        self, by_id: Mapping[str, RoundPlan], receipts: Sequence[Receipt], job_ids: tuple[int, ...]
    ) -> None:
        """Have the owner commit, tell of it, and learn from it."""
        called_off = {  # asked now: the owner clears the folders of rounds away
            r.round_id
            for r in receipts
            if r.error is not None and is_cancelled(Path(by_id[r.round_id].dir), r.round_id)
        }
        run = RunOf(self._engine.name, job_ids, os.getpid())
        try:
            results = self._owner.commit(receipts)
        except OwnerGone as e:
            self._report_gone(run, by_id, receipts, e)
            raise
        told = []
        for receipt, result in zip(receipts, results, strict=True):
            plan = by_id[receipt.round_id]
            told.append(round_report(run, plan, receipt, result))
            if receipt.round_id in called_off:
                wait_ms = self._setbacks.put_off(plan.name, "its round was cancelled by hand")
                logger.warning("%s; again in %d s", result.error, wait_ms // 1000)
            else:
                self._learn(plan, receipt, result)
        self._board.report(told)

    def _receipts(self, plans: Sequence[RoundPlan], now_ms: int) -> Iterator[Receipt]:
        """As they come; where the engine's run breaks off, the rest are failed ones.

        What the engine cannot go on after comes out as it is.
        """
        names = tuple(plan.name for plan in plans)
        logger.info("running %d rounds: %s", len(plans), some(names))
        told = self._telling("running", names, now_ms)
        told(Progress(0, sum(2 * plan.bytes_to_read for plan in plans)))
        missing = {plan.round_id: plan for plan in plans}
        try:
            for receipt in self._until_stopped(self._engine.run(plans, told)):
                missing.pop(receipt.round_id, None)
                yield receipt
        except LapseError:
            raise
        except Exception as e:
            logger.exception("a run of %d rounds broke off", len(plans))
            for plan in missing.values():
                yield failed(plan, NO_ATTEMPT, f"{plan.name}: the run broke off: {e!r}")

    def _telling(self, state: str, names: tuple[str, ...], now_ms: int) -> OnProgress:
        begun_s = self._clock.monotonic()
        if not self._overtaking:
            self._overtake_later()

        def on_progress(progress: Progress) -> None:
            if self._stopping and self._jobs is not None:
                self._jobs.cancel()
            self._board.tell(state, some(names), RunProgress(now_ms, begun_s, names, progress))
            self._overtake()

        return on_progress

    def _until_stopped(self, receipts: Iterator[_R]) -> Iterator[_R]:
        for receipt in receipts:
            yield receipt
            if self._stopping and self._jobs is None:
                break  # what is done is committed, the rest is for the next service

    # --- summaries -------------------------------------------------------------------------------

    def _look_through(self, lacking: Sequence[Decision], now_ms: int) -> None:
        """Have summaries made where they are missing, and the owner take them over."""
        requests = _some_of(requests_due(lacking, records=True))
        names = list(dict.fromkeys(request.name for request in requests))
        for run in self._companions.runs(names):
            if not self._stopping:
                self._look_through_together(
                    run, [r for r in requests if r.name in set(run)], now_ms
                )

    def _look_through_together(
        self, names: Sequence[str], requests: Sequence[SummaryRequest], now_ms: int
    ) -> None:
        logger.info("looking through %d segments of %s", len(requests), some(names))
        told = self._telling("looking", tuple(names), now_ms)
        receipts: list[SummaryReceipt] = []
        refused: dict[str, str] = {}
        try:
            for receipt in self._until_stopped(self._engine.summarise(requests, told)):
                receipts.append(receipt)  # noqa: PERF402  (here too)
        except LapseError:
            self._owner.adopt_summaries(receipts)
            raise
        except Exception as e:
            logger.exception("a look through %d segments broke off", len(requests))
            unseen = requests[len(receipts) :]
            refused = {r.name: f"{r.name}: the look broke off: {e!r}" for r in unseen}
            self._companions.failed(names, refused)
        refusals = self._owner.adopt_summaries(receipts)
        nobody = all(r.summary is None and r.pid == os.getpid() for r in receipts)
        refused |= {r.name: why for r, why in zip(receipts, refusals, strict=True) if why}
        for name in names:
            if name not in refused:
                self._setbacks.forgive(name)
                self._companions.went_well(name)
                continue
            wait_ms = self._setbacks.set_back(name, refused[name])
            if not self._stopping:
                logger.warning("no summaries: %s; again in %d s", refused[name], wait_ms // 1000)
        self._note_job(came_to_nothing=nobody, error="; ".join(list(refused.values())[:1]))

    def _round_ids(self, count: int, now_ms: int) -> list[str]:
        """Ordered by time, never two alike: `20261121T050000.123-<6 hex>`."""
        seconds, ms = divmod(now_ms, 1000)
        stamp = datetime.fromtimestamp(seconds, UTC).strftime("%Y%m%dT%H%M%S") + f".{ms:03d}"
        ids: dict[str, None] = {}
        while len(ids) < count:
            ids[f"{stamp}-{self._env.unique_name()[:6]}"] = None
        return list(ids)

    def _learn(self, plan: RoundPlan, receipt: Receipt, result: CommitResult) -> None:
        """Whether the log may have another round at once."""
        if receipt.attempt_id != NO_ATTEMPT:
            self._companions.went_well(plan.name)
        if result.error is None and not _is_futile(plan, receipt, result):
            self._setbacks.forgive(plan.name)
            return
        if result.bad is not None:
            self._setbacks.met_bad(plan.name, result.bad.reason)
            retry_ms = result.bad.next_try_ms - plan.now_ms
            logger.warning(
                "round %s: %s; rounds go on below offset %d, and there again in %d s",
                plan.round_id, result.error, result.bad.first_offset, retry_ms // 1000,
            )  # fmt: skip
            return
        if result.error is None and plan.due == _STAMPING_ONLY:
            self._setbacks.exhaust(plan.name, plan.generation)
            return
        wait_ms = self._setbacks.set_back(plan.name, result.error or "its round changed nothing")
        if result.error is not None and not self._stopping:
            logger.warning(
                "round %s failed: %s; again in %d s", plan.round_id, result.error, wait_ms // 1000
            )

    def _report_gone(
        self, run: RunOf, plans: Mapping[str, RoundPlan], receipts: Sequence[Receipt], e: OwnerGone
    ) -> None:
        """Nobody knows what became of them: the owner settles that when it is back."""
        now_ms = self._clock.now_ms()
        told = []
        for receipt in receipts:
            error = receipt.error or f"the owner went away during the commit: {e}"
            result = CommitResult(receipt.round_id, receipt.name, 0, now_ms, 0.0, error)
            told.append(round_report(run, plans[receipt.round_id], receipt, result))
        self._board.report(told)

    # --- waiting ---------------------------------------------------------------------------------

    def _is_ready(self, decision: Decision, pauses: Pauses) -> bool:
        """Whether its round may begin; what is to be looked through again comes before that."""
        if decision.look_again is not None or self._is_held(decision, pauses):
            return False
        if decision.due != (Due.TOMBSTONES,):
            return True
        facts = decision.info.facts
        return not self._setbacks.is_exhausted(str(facts.partition), facts.generation)

    def _is_held(self, decision: Decision, pauses: Pauses) -> bool:
        name = str(decision.info.facts.partition)
        return self._setbacks.holds(name) or pauses.of(name) is not None

    def _pauses(self) -> Pauses:
        return pauses_or_all(self._data_dir, self._clock.now_ms())

    def _pause_ms(self, decisions: Iterable[Decision], now_ms: int) -> int:
        """The usual rest, or less where a deadline or the end of a backoff comes before."""
        waits: list[float] = [self._options.pause_ms]
        for decision in decisions:
            left_ms = self._setbacks.left_ms(str(decision.info.facts.partition))
            if (decision.due or wants_look(decision)) and left_ms is not None and left_ms > 0:
                waits.append(left_ms)  # else something other than a setback holds it
            look_ms = next_look_ms(decision)
            if look_ms is not None:
                waits.append(look_ms - now_ms)
        return max(round(min(waits)), _PAUSE_MS_MIN)

    def _wait_for_clock(self, verdict: ClockVerdict) -> int:
        """Until somebody confirms it, or sets it right."""
        self._board.tell(HELD, self._guard.trouble, RunProgress(clock_ahead_ms=verdict.jumped_ms))
        return min(self._options.pause_ms, _NOTICE_MS)

    def _wait_for_resume(self, pause: Pause) -> int:
        self._board.queue(Queue(held=self._setbacks.held()))
        self._board.tell("paused", pause_text(pause))
        return min(self._options.pause_ms, _NOTICE_MS)

    def _wait_for_owner(self, reason: OwnerGone) -> int:
        if not self._owner_missed:
            logger.warning("%s; waiting for it", reason)
        self._owner_missed += 1
        self._board.tell(WAITING, str(reason))
        return backoff_ms(self._owner_missed, _FIRST_OWNER_BACKOFF_MS, OWNER_BACKOFF_MS_MAX)


def _is_futile(plan: RoundPlan, receipt: Receipt, result: CommitResult) -> bool:
    """A round that changed nothing would be due again for the same reason, for ever."""
    if Due.DELETED.value in plan.due and receipt.log_start >= 0:
        return False  # now the log knows that nothing is left to be taken out
    return result.groups == 0 and receipt.end_offset <= plan.dirty


def _some_of(requests: Sequence[SummaryRequest]) -> list[SummaryRequest]:
    """As many as one step takes: what is left is lacking in the next."""
    chosen: list[SummaryRequest] = []
    left = LOOK_BYTES_MAX
    for request in requests:
        if chosen and request.size > left:
            break
        chosen.append(request)
        left -= request.size
    return chosen
