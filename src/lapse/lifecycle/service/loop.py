"""The lifecycle service: asks the owner for facts, has due rounds run, hands the owner receipts.

What Kafka calls LogCleaner.

facts → decide, in KIP-354's order (L6) → plans with one `now` → engine → one commit → report.
Logs that lack summaries are looked through by the engine first, some of their bytes in each step,
so that rounds of others need not wait for a whole foreign directory to be read.

Rounds that have a deadline go before those that only tidy up (L6), and past them: one that falls
due while a long run is under way gets a run of its own beside it. One loop polls both
(`_see_through`): a run and what is done with it is a `Job`, what is learnt from it goes to
`Outcomes`. What people may ask of it they leave in files: rounds to wait, a round to be called off
(`pauses`, `cancel`).

Given an owner and an engine, it knows neither sockets nor Spark. Nothing durable is its own but the
time it last believed (`clock_guard`): it may be killed anywhere, and the next one begins from the
owner's facts. An owner that is away is waited for; while the clock is not believed nothing is
removed or stamped.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from lapse.base.backoff import backoff_ms
from lapse.base.clock import sleep_in_slices
from lapse.base.errors import LapseError, StorageError
from lapse.base.times import after_ms
from lapse.lifecycle.clock_guard import ClockGuard
from lapse.lifecycle.decide.clock import ClockVerdict
from lapse.lifecycle.decide.deadline import next_look_ms
from lapse.lifecycle.decide.select import (
    Decision,
    Due,
    LogInfo,
    Moment,
    RoundOptions,
    must_be_made,
    order,
)
from lapse.lifecycle.decide.verdict import Rules
from lapse.lifecycle.owner.protocol import Owner, OwnerGone, OwnerTaken
from lapse.lifecycle.round.engine import Engine
from lapse.lifecycle.round.plan import MapMemory, RoundPlan
from lapse.lifecycle.round.sizing import sized_plan
from lapse.lifecycle.round.summarise import (
    SummaryRequest,
    requests_due,
    wants_look,
)
from lapse.lifecycle.service.board import Board, RunProgress, at_rest, some
from lapse.lifecycle.service.jobs import AnyJob, Look, Rounds
from lapse.lifecycle.service.outcomes import Outcomes
from lapse.lifecycle.service.quiet import Quiet
from lapse.lifecycle.status.backoff import Setbacks
from lapse.lifecycle.status.pauses import PAUSES, Pause, Pauses, pause_text, pauses_or_all
from lapse.lifecycle.status.reports import (
    ENGINE_UP,
    HELD,
    NO_ENGINE,
    STOPPED,
    WAITING,
    EngineReport,
    Queue,
)
from lapse.lifecycle.status.wishes import WISHES, Wish, end_wishes, read_wishes
from lapse.log.env import LogEnv

logger = logging.getLogger(__name__)

OWNER_BACKOFF_MS_MAX = 5000
FIRST_OWNER_BACKOFF_MS = 100
_NOTICE_MS = 1000  # how soon a confirmation of the clock is noticed, or the end of a pause
_PAUSE_MS_MIN = 10
LOOK_BYTES_MAX = 16 << 30  # looked through in one step, or one segment if that is larger


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
        quiet_ms: how long nothing must be due for the service to end (lapse.lifecycle.idle.ms); -1:
            it never does.
    """

    memory: MapMemory
    pause_ms: int
    rounds_at_once: int = 1
    io_bytes_per_second: float = 0.0
    clock_jump_max_ms: int = 3_600_000
    quiet_ms: int = -1


class Service:
    """The loop. `run` returns after `request_stop`, or when nothing has been due for a while.

    Args:
        data_dir: where reports go, and the last time that was believed.
        engine_report: what is said of the engine in the files.
    """

    def __init__(
        self,
        owner: Owner,
        engine: Engine,
        env: LogEnv,
        data_dir: Path,
        options: ServiceOptions,
        engine_report: EngineReport | None = None,
    ) -> None:
        self._owner, self._engine = owner, engine
        self._env, self._clock = env, env.clock
        self._options, self._data_dir = options, data_dir
        report = engine_report or EngineReport(ENGINE_UP, env.clock.now_ms())
        self._board = Board(env, data_dir, report)
        self._setbacks = Setbacks(env.clock)
        self._outcomes = Outcomes(owner, engine, env.clock, self._board, self._setbacks)
        self._outcomes.when_made = self._end_wishes
        self._wishes: Mapping[str, Wish] = {}
        self._ahead_ms = 0  # of the wall clock, what is believed: more where that was set back
        self._guard = ClockGuard(env.fs, env.clock, data_dir, options.clock_jump_max_ms)
        self._undecided: set[str] = set()
        self._owner_missed = 0  # how often in a row
        self._is_quiet = False  # nothing was due at the last look
        self._has_left = False
        self._overtake_s = 0.0  # not before
        self._overtaken: set[str] = set()  # logs that had a round beside the others of this step

    @property
    def has_worked(self) -> bool:
        """Whether the engine has made anything yet."""
        return self._outcomes.has_worked

    def request_stop(self) -> None:
        """End soon: the round under way is cancelled or finished. Fit for a signal handler."""
        self._outcomes.is_stopping = True

    def leave(self) -> None:
        """As `request_stop`, and say nothing of it: another one follows at once."""
        self._has_left = True
        self._outcomes.is_stopping = True

    def run(self, quiet: Quiet | None = None) -> bool:
        """Work until a stop is requested; True where nothing was due for so long that it ended.

        What the engine cannot go on after (EngineLost, EngineWanted) comes out.

        Args:
            quiet: shared with the services of other brokers, which end together.
        """
        quiet = quiet or Quiet(self._clock, self._options.quiet_ms)
        try:
            while not self._outcomes.is_stopping:
                if not quiet.begin(self):
                    return True
                pause_ms = self.step()
                if quiet.end(self, was_quiet=self._is_quiet):
                    return True
                self._rest(pause_ms)
        finally:
            self._board.queue(Queue())
        if not self._has_left:
            self._board.engine = NO_ENGINE
            self._board.tell(STOPPED, "the service was stopped")
        return False

    def _rest(self, pause_ms: int) -> None:
        said, seconds = self._said(), pause_ms / 1000
        sleep_in_slices(
            self._clock, seconds, lambda: self._outcomes.is_stopping or self._said() != said
        )

    def _said(self) -> list[tuple[int, ...]]:
        """Changes when somebody pauses, resumes, or wishes for a round.

        Each writes the file anew, so it is another one even where the clock of files stands still.
        """
        found: list[tuple[int, ...]] = []
        for name in (PAUSES, WISHES):
            with contextlib.suppress(OSError):
                stat = (self._data_dir / name).stat()
                found.append((stat.st_ino, stat.st_mtime_ns, stat.st_size))
        return found

    def step(self) -> int:
        """Look once and run what is due; returns how many ms to rest before the next look."""
        self._is_quiet = False
        was_there = False
        try:
            infos = self._owner.logs()
            was_there = True
            self._board.is_silent = False
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
            self._end_vain_wishes(decisions, now_ms)
            self._setbacks.forget_but(str(info.facts.partition) for info in infos)
            ready = [d for d in order(decisions) if self._is_ready(d, pauses)]
            if ready:
                self._run_rounds(ready, now_ms)
            lacking = [d for d in decisions if wants_look(d) and not self._is_held(d, pauses)]
            if lacking and not self._outcomes.is_stopping:
                self._look_through(lacking, now_ms)
            if ready or lacking:
                return 0
        except OwnerGone as e:
            return self._wait_for_owner(e, was_there=was_there)
        pause_ms = self._pause_ms(decisions, now_ms)
        self._board.queue(Queue(held=self._setbacks.held()))
        due = [d for d in decisions if d.due or wants_look(d)]
        self._is_quiet = all(self._is_exhausted(d) for d in due)
        # By the wall clock, as all in that file: `now_ms` is ahead of one that was set back.
        progress = RunProgress(next_look_ms=after_ms(self._clock.now_ms(), pause_ms))
        names = [str(d.info.facts.partition) for d in due]
        self._board.tell(*at_rest(names, self._setbacks.held()), progress)
        return pause_ms

    def _decide(self, infos: Iterable[LogInfo], clock: ClockVerdict) -> list[Decision]:
        """What is decided of each; one that cannot be decided on is left out for a while."""
        plain, asked = Moment.by(clock), Moment.by(clock, RoundOptions(asked=True))
        wall_ms = self._clock.now_ms()  # by which wishes are stamped
        self._ahead_ms = clock.now_ms - wall_ms
        self._wishes = read_wishes(self._data_dir, wall_ms)
        decisions = []
        for info in infos:
            name = str(info.facts.partition)
            if name in self._undecided and self._setbacks.holds(name):
                continue
            self._undecided.discard(name)
            try:
                decisions.append((asked if name in self._wishes else plain).decide(info))
            except Exception as e:
                logger.exception("nothing can be decided of %s", name)
                self._setbacks.set_back(name, f"nothing can be decided of it: {e!r}")
                self._undecided.add(name)
        return decisions

    def _end_vain_wishes(self, decisions: Iterable[Decision], now_ms: int) -> None:
        """Of logs that are not here, or of which nothing can be cleaned now."""
        if not self._wishes:
            return
        may_come = {str(d.info.facts.partition) for d in decisions if d.due or wants_look(d)}
        vain = self._wishes.keys() - may_come
        if vain:
            logger.info("nothing is to be cleaned of %s, as was asked for", some(sorted(vain)))
            self._end_wishes(dict.fromkeys(vain, now_ms))

    def _end_wishes(self, until: Mapping[str, int]) -> None:
        """Those that were there at these times, which are as the service believes them."""
        if self._wishes.keys().isdisjoint(until):
            return
        by_wall = {log: ms - self._ahead_ms for log, ms in until.items()}
        try:
            end_wishes(self._env.fs, self._data_dir, by_wall, self._clock.now_ms())
        except StorageError as e:
            logger.warning("a wish is not ended: %s", e)  # it ends by itself

    # --- rounds ----------------------------------------------------------------------------------

    def _run_rounds(self, ready: Sequence[Decision], now_ms: int) -> None:
        """Rounds of all that are ready: in one run of the engine, or two, first things first."""
        self._guard.keep()
        self._overtaken.clear()
        decided = {str(d.info.facts.partition): d for d in ready}
        left = [
            run
            for is_urgent in (True, False)
            for run in self._outcomes.companions.runs(
                [name for name, d in decided.items() if must_be_made(d) is is_urgent]
            )
        ]
        while left and not self._outcomes.is_stopping:
            names, pauses = left.pop(0), self._pauses()
            # What overtook the run before was decided on later than this.
            wanted = [n for n in names if pauses.of(n) is None and n not in self._overtaken]
            plans = self._plans([decided[n] for n in wanted], now_ms)
            if plans:
                waiting = tuple(name for run in left for name in run)
                self._see_through(self._rounds(plans, now_ms), waiting)

    def _rounds(self, plans: Sequence[RoundPlan], now_ms: int) -> Rounds:
        job = Rounds(self._engine.submit(plans), plans, now_ms, self._outcomes)
        logger.info("running %d rounds: %s", len(plans), some(job.names))
        job.tell()
        return job

    def _see_through(self, first: AnyJob, waiting: tuple[str, ...] = ()) -> None:
        """Poll a run until it is over, and one that overtakes it; `waiting` are the logs after it.

        Where polling is the work (`Run.works_alone`), the run that overtakes has it to itself.
        """
        jobs: list[AnyJob] = [first]
        lost: LapseError | None = None
        self._overtake_later()
        try:
            while jobs:
                self._board.queue(self._queue(jobs, waiting))
                for job in reversed(jobs):
                    if self._outcomes.is_stopping or lost is not None:
                        job.run.cancel()
                    try:
                        self._advance(job, is_ahead=job is jobs[-1], is_first=job is first)
                    except OwnerGone:
                        raise
                    except LapseError as e:
                        lost = lost or e
                    if not job.run.works_alone:
                        break
                jobs = self._left_of(jobs, first)
        finally:
            for job in jobs:
                job.run.close()
        if lost is not None:
            raise lost

    def _advance(self, job: AnyJob, *, is_ahead: bool, is_first: bool) -> None:
        try:
            if job.advance() and is_ahead:
                job.tell()
        except OwnerGone as e:
            if is_first:
                raise
            logger.info("nothing overtakes: %s", e)  # the run under way will meet it too
            job.run.close()
            job.is_over = True

    def _left_of(self, jobs: Sequence[AnyJob], first: AnyJob) -> list[AnyJob]:
        """The jobs that are not over, and one that is to overtake, if there is one."""
        left = [job for job in jobs if not job.is_over]
        if first not in left:
            return left
        if len(left) < len(jobs):
            self._overtake_later()
        if left == [first]:
            beside = self._one_beside(first)
            return [first] if beside is None else [first, beside]
        return left

    def _queue(self, jobs: Sequence[AnyJob], waiting: tuple[str, ...]) -> Queue:
        """Who is being worked on, and who waits; a look has no queue of its own."""
        queue = Queue(logs=waiting, held=self._setbacks.held())
        for job in jobs:
            if isinstance(job, Rounds):
                queue = Queue(
                    job.now_ms, queue.running + len(job.names), job.names + queue.logs,
                    queue.held, job.under_way + queue.rounds,
                )  # fmt: skip
        return queue

    def _one_beside(self, under_way: AnyJob) -> Rounds | None:
        """Rounds that got a deadline to keep while a long run is under way.

        One such run at a time; the engine gives it the task slots that fall free.
        """
        if self._outcomes.is_stopping or self._clock.monotonic() < self._overtake_s:
            return None
        self._overtake_later()
        try:
            verdict, pauses = self._guard.look(), self._pauses()
            if verdict.held or pauses.all is not None:
                return None
            busy = {one.log for one in under_way.under_way}
            infos = [i for i in self._owner.logs() if str(i.facts.partition) not in busy]
        except OwnerGone as e:
            logger.info("nothing overtakes: %s", e)  # the run under way will meet it too
            return None
        decisions = order(self._decide(infos, verdict))
        urgent = [d for d in decisions if must_be_made(d) and self._is_ready(d, pauses)]
        for names in self._outcomes.companions.runs([str(d.info.facts.partition) for d in urgent])[
            :1
        ]:
            chosen = [d for d in urgent if str(d.info.facts.partition) in set(names)]
            plans = self._plans(chosen, verdict.now_ms, beside=True)
            if plans:
                self._guard.keep()
                self._overtaken.update(plan.name for plan in plans)
                return self._rounds(plans, verdict.now_ms)
        return None

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

    # --- summaries -------------------------------------------------------------------------------

    def _look_through(self, lacking: Sequence[Decision], now_ms: int) -> None:
        """Have summaries made where they are missing, and the owner take them over."""
        requests = _some_of(requests_due(lacking, records=True))
        names = list(dict.fromkeys(request.name for request in requests))
        for run in self._outcomes.companions.runs(names):
            if not self._outcomes.is_stopping:
                chosen = [r for r in requests if r.name in set(run)]
                self._see_through(self._look(chosen, run, now_ms))

    def _look(self, requests: Sequence[SummaryRequest], names: Sequence[str], now_ms: int) -> Look:
        job = Look(self._engine.summarise(requests), requests, names, now_ms, self._outcomes)
        logger.info("looking through %d segments of %s", len(requests), some(names))
        job.tell()
        return job

    def _round_ids(self, count: int, now_ms: int) -> list[str]:
        """Ordered by time, never two alike: `20261121T050000.123-<6 hex>`."""
        seconds, ms = divmod(now_ms, 1000)
        stamp = datetime.fromtimestamp(seconds, UTC).strftime("%Y%m%dT%H%M%S") + f".{ms:03d}"
        ids: dict[str, None] = {}
        while len(ids) < count:
            ids[f"{stamp}-{self._env.unique_name()[:6]}"] = None
        return list(ids)

    # --- waiting ---------------------------------------------------------------------------------

    def _is_ready(self, decision: Decision, pauses: Pauses) -> bool:
        """Whether its round may begin; what is to be looked through again comes before that."""
        if decision.look_again is not None or self._is_held(decision, pauses):
            return False
        return not self._is_exhausted(decision)

    def _is_exhausted(self, decision: Decision) -> bool:
        """Whether all that is due was tried, in exactly these files, and came to nothing."""
        if decision.due != (Due.TOMBSTONES,) or wants_look(decision):
            return False
        facts = decision.info.facts
        return self._setbacks.is_exhausted(str(facts.partition), facts.generation)

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
        self._board.queue(Queue(held=self._setbacks.held()))
        self._board.tell(HELD, self._guard.trouble, RunProgress(clock_ahead_ms=verdict.jumped_ms))
        return min(self._options.pause_ms, _NOTICE_MS)

    def _wait_for_resume(self, pause: Pause) -> int:
        self._board.queue(Queue(held=self._setbacks.held()))
        self._board.tell("paused", pause_text(pause))
        return min(self._options.pause_ms, _NOTICE_MS)

    def _wait_for_owner(self, reason: OwnerGone, *, was_there: bool) -> int:
        if not self._owner_missed:
            logger.warning("%s; waiting for it", reason)
        self._owner_missed += 1
        self._is_quiet = not was_there  # nothing that it has can be due; before, something was
        self._board.is_silent = isinstance(reason, OwnerTaken)
        self._board.queue(Queue(held=self._setbacks.held()))
        self._board.tell(WAITING, str(reason))
        return backoff_ms(self._owner_missed, FIRST_OWNER_BACKOFF_MS, OWNER_BACKOFF_MS_MAX)


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
