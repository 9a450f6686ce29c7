"""The lifecycle service: asks the owner for facts, has due rounds run, hands the owner receipts.

facts → decide, in KIP-354's order (L6) → plans with one `now` → engine → one commit → report.
Logs that lack summaries are looked through by the engine first, some of their bytes in each step,
so that rounds of others need not wait for a whole foreign directory to be read.

Given an owner and an engine, it knows neither sockets nor Spark. Nothing durable is its own: it may
be killed anywhere, and the next one begins from the owner's facts. A log whose round fails is left
alone for a while, longer each time, and keeps no other waiting (L10); an owner that is away is
waited for.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from lapse.base.errors import StorageError
from lapse.lifecycle import reports
from lapse.lifecycle.decide.deadline import next_look_ms
from lapse.lifecycle.decide.select import Blocked, Decision, decide, order
from lapse.lifecycle.decide.verdict import Rules
from lapse.lifecycle.owner import Owner, OwnerGone
from lapse.lifecycle.reports import RoundReport, RunOf, ServiceProgress, round_report
from lapse.lifecycle.round.commit import CommitResult
from lapse.lifecycle.round.engine import Engine, Progress
from lapse.lifecycle.round.plan import MapMemory, RoundPlan, make_plan
from lapse.lifecycle.round.receipt import Receipt
from lapse.lifecycle.round.summarise import SummaryRequest, requests_of
from lapse.log.env import LogEnv

logger = logging.getLogger(__name__)

FIRST_BACKOFF_MS = 1000
BACKOFF_MS_MAX = 300_000
OWNER_BACKOFF_MS_MAX = 5000
_FIRST_OWNER_BACKOFF_MS = 100
_SLICE_SECONDS = 0.1  # how soon a request to stop is noticed
_PAUSE_MS_MIN = 10
_PROGRESS_SECONDS = 0.2
LOOK_BYTES_MAX = 16 << 30  # looked through in one step, or one segment if that is larger


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
    """

    memory: MapMemory
    pause_ms: int


@dataclass(frozen=True, slots=True)
class Setback:
    """A log whose last round came to nothing; it is left alone until `until_s`, monotonic."""

    count: int
    until_s: float


class Service:
    """The loop. `run` returns after `request_stop`.

    Args:
        data_dir: where reports go.
        jobs: the engine again, if it has what `JobControl` asks.
    """

    def __init__(
        self,
        owner: Owner,
        engine: Engine,
        env: LogEnv,
        data_dir: Path,
        options: ServiceOptions,
        jobs: JobControl | None = None,
    ) -> None:
        self._owner, self._engine, self._jobs = owner, engine, jobs
        self._env, self._clock = env, env.clock
        self._options = options
        self._board = _Board(env, data_dir)
        self._setbacks: dict[str, Setback] = {}
        self._owner_backoff_ms = 0
        self._stopping = False

    def request_stop(self) -> None:
        """End soon: the round under way is cancelled or finished. Fit for a signal handler."""
        self._stopping = True

    def run(self) -> None:
        """Work until asked to stop; what the engine cannot go on after (EngineLost) comes out."""
        while not self._stopping:
            self._rest(self.step())
        self._board.tell("stopped", "the service was told to stop")

    def _rest(self, pause_ms: int) -> None:
        until = self._clock.monotonic() + pause_ms / 1000
        while not self._stopping and (left := until - self._clock.monotonic()) > 0:
            self._clock.sleep(min(_SLICE_SECONDS, left))

    def step(self) -> int:
        """Look once and run what is due; returns how many ms to rest before the next look."""
        try:
            infos = self._owner.logs()
            if self._owner_backoff_ms:
                logger.info("the owner is back, with %d logs", len(infos))
                self._owner_backoff_ms = 0
            now_ms = self._clock.now_ms()
            decisions = [decide(info, now_ms) for info in infos]
            self._forget_but(str(d.info.facts.partition) for d in decisions)
            ready = [d for d in order(decisions) if not self._is_held(d)]
            if ready:
                self._run_rounds(ready, now_ms)
            lacking = [d for d in decisions if _lacks(d) and not self._is_held(d)]
            if lacking and not self._stopping:
                self._look_through(lacking, now_ms)
            if ready or lacking:
                return 0
        except OwnerGone as e:
            return self._wait_for_owner(e)
        pause_ms = self._pause_ms(decisions, now_ms)
        self._board.tell("idle", "nothing is due", next_look_ms=now_ms + pause_ms)
        return pause_ms

    # --- rounds ----------------------------------------------------------------------------------

    def _run_rounds(self, ready: Sequence[Decision], now_ms: int) -> None:
        ids = self._round_ids(len(ready), now_ms)
        plans = [
            make_plan(decision, round_id, Rules.LAPSE, self._options.memory)
            for decision, round_id in zip(ready, ids, strict=True)
        ]
        receipts = self._receipts(plans, now_ms)
        job_ids = () if self._jobs is None else self._jobs.last_job_ids
        run = RunOf(self._engine.name, job_ids, os.getpid())
        by_id = {plan.round_id: plan for plan in plans}
        try:
            results: Sequence[CommitResult] = self._owner.commit(receipts)
        except OwnerGone as e:
            self._report_gone(run, by_id, receipts, e)
            raise
        told = []
        for receipt, result in zip(receipts, results, strict=True):
            plan = by_id[receipt.round_id]
            told.append(round_report(run, plan, receipt, result))
            self._learn(plan, receipt, result)
        self._board.report(told)

    def _receipts(self, plans: Sequence[RoundPlan], now_ms: int) -> list[Receipt]:
        names = tuple(plan.name for plan in plans)
        logger.info("running %d rounds: %s", len(plans), _some(names))

        def on_progress(progress: Progress) -> None:
            if self._stopping and self._jobs is not None:
                self._jobs.cancel()
            self._board.tell(
                "running", _some(names), started_ms=now_ms, logs=names,
                bytes_done=progress.bytes_done, bytes_total=progress.bytes_total,
            )  # fmt: skip

        total = sum(2 * plan.bytes_to_read for plan in plans)
        on_progress(Progress(0, total))
        receipts = []
        for receipt in self._engine.run(plans, on_progress):
            receipts.append(receipt)
            if self._stopping and self._jobs is None:
                break  # what is done is committed, the rest is for the next service
        return receipts

    def _look_through(self, lacking: Sequence[Decision], now_ms: int) -> None:
        """Have summaries made where they are missing, and the owner take them over."""
        requests = _some_of(requests_of((d.info.facts for d in lacking), records=True))
        names = tuple(dict.fromkeys(request.name for request in requests))
        logger.info("looking through %d segments of %s", len(requests), _some(names))

        def on_progress(progress: Progress) -> None:
            if self._stopping and self._jobs is not None:
                self._jobs.cancel()
            self._board.tell(
                "looking", _some(names), started_ms=now_ms, logs=names,
                bytes_done=progress.bytes_done, bytes_total=progress.bytes_total,
            )  # fmt: skip

        receipts = []
        for receipt in self._engine.summarise(requests, on_progress):
            receipts.append(receipt)
            if self._stopping and self._jobs is None:
                break
        refusals = self._owner.adopt_summaries(receipts)
        refused = {r.name: why for r, why in zip(receipts, refusals, strict=True) if why}
        for name in names:
            if name not in refused:
                self._setbacks.pop(name, None)
                continue
            wait_ms = self._set_back(name)
            if not self._stopping:
                logger.warning("no summaries: %s; again in %d s", refused[name], wait_ms // 1000)

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
        # A round that changed nothing would be due again for the same reason, for ever.
        futile = result.groups == 0 and receipt.end_offset <= plan.dirty
        if result.error is None and not futile:
            self._setbacks.pop(plan.name, None)
            return
        wait_ms = self._set_back(plan.name)
        if result.error is not None and not self._stopping:
            logger.warning(
                "round %s failed: %s; again in %d s", plan.round_id, result.error, wait_ms // 1000
            )

    def _set_back(self, name: str) -> int:
        """Leave a log alone for longer than the last time; returns for how many ms."""
        before = self._setbacks.get(name)
        count = 1 if before is None else before.count + 1
        wait_ms = min(FIRST_BACKOFF_MS << min(count - 1, 30), BACKOFF_MS_MAX)
        self._setbacks[name] = Setback(count, self._clock.monotonic() + wait_ms / 1000)
        return wait_ms

    def _report_gone(
        self, run: RunOf, plans: dict[str, RoundPlan], receipts: Sequence[Receipt], e: OwnerGone
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

    def _forget_but(self, names: Iterable[str]) -> None:
        kept = set(names)
        self._setbacks = {name: s for name, s in self._setbacks.items() if name in kept}

    def _is_held(self, decision: Decision) -> bool:
        setback = self._setbacks.get(str(decision.info.facts.partition))
        return setback is not None and self._clock.monotonic() < setback.until_s

    def _pause_ms(self, decisions: Iterable[Decision], now_ms: int) -> int:
        """The usual rest, or less where a deadline or the end of a backoff comes before."""
        waits: list[float] = [self._options.pause_ms]
        for decision in decisions:
            setback = self._setbacks.get(str(decision.info.facts.partition))
            if (decision.due or _lacks(decision)) and setback is not None:
                waits.append((setback.until_s - self._clock.monotonic()) * 1000)
            look_ms = next_look_ms(decision)
            if look_ms is not None:
                waits.append(look_ms - now_ms)
        return max(round(min(waits)), _PAUSE_MS_MIN)

    def _wait_for_owner(self, reason: OwnerGone) -> int:
        if not self._owner_backoff_ms:
            logger.warning("%s; waiting for it", reason)
        twice = 2 * self._owner_backoff_ms or _FIRST_OWNER_BACKOFF_MS
        self._owner_backoff_ms = min(twice, OWNER_BACKOFF_MS_MAX)
        self._board.tell("waiting", str(reason))
        return self._owner_backoff_ms


class _Board:
    """Reports and progress; a disk that does not take them stops no round."""

    def __init__(self, env: LogEnv, data_dir: Path) -> None:
        self._fs, self._clock = env.fs, env.clock
        self._data_dir = data_dir
        self._told: tuple[str, float] = ("", 0.0)

    def report(self, told: Sequence[RoundReport]) -> None:
        for report in told:
            if report.error is None:
                logger.info("%s", describe(report))
        try:
            reports.append_reports(self._fs, self._data_dir, told)
        except StorageError as e:
            logger.warning("rounds are not reported: %s", e)

    def tell(
        self, state: str, detail: str, *, started_ms: int = 0, logs: tuple[str, ...] = (),
        bytes_done: int = 0, bytes_total: int = 0, next_look_ms: int = 0,
    ) -> None:  # fmt: skip
        """At most some times a second, but each change of state and the end of a run."""
        now = self._clock.monotonic()
        recent = self._told[0] == state and now - self._told[1] < _PROGRESS_SECONDS
        if recent and bytes_done < bytes_total:
            return
        self._told = (state, now)
        progress = ServiceProgress(
            state, detail, os.getpid(), self._clock.now_ms(), started_ms, logs, bytes_done,
            bytes_total, next_look_ms,
        )  # fmt: skip
        try:
            reports.write_progress(self._fs, self._data_dir, progress)
        except StorageError as e:
            logger.warning("progress is not told: %s", e)


def describe(report: RoundReport) -> str:
    """A round in one line."""
    why = ", ".join(f"{count} {reason}" for reason, count in sorted(report.removed.items()))
    jobs = f", Spark job {', '.join(map(str, report.job_ids))}" if report.job_ids else ""
    return (
        f"round {report.round_id} of {report.log} ({', '.join(report.due)}{jobs}): "
        f"removed {why or 'nothing'}; read {report.bytes_read} bytes, wrote "
        f"{report.bytes_written} in {report.segments_written} segments"
    )


def _lacks(decision: Decision) -> bool:
    return decision.blocked is Blocked.SUMMARIES


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


def _some(names: Sequence[str]) -> str:
    more = len(names) - 3
    return ", ".join(names[:3]) + (f" and {more} more" if more > 0 else "")
