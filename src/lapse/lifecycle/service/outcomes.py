"""What becomes of rounds: the commit of their receipts, the report, and what the service learns.

A log whose round fails is left alone for a while, longer each time; one with a place that cannot be
read goes on below it (L10). Jobs that come to nothing one after the other are the engine's doing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from lapse.base.clock import Clock
from lapse.lifecycle.decide.select import Due
from lapse.lifecycle.owner.protocol import Owner, OwnerGone, OwnerTaken
from lapse.lifecycle.round.cancel import is_cancelled
from lapse.lifecycle.round.commit import CommitResult
from lapse.lifecycle.round.engine import NO_ATTEMPT, Engine, EngineLost
from lapse.lifecycle.round.plan import RoundPlan
from lapse.lifecycle.round.receipt import Receipt
from lapse.lifecycle.service.board import Board
from lapse.lifecycle.status.backoff import Companions, Setbacks
from lapse.lifecycle.status.reports import RoundReport, round_report

logger = logging.getLogger(__name__)

JOBS_FAILED_MAX = 3  # that came to nothing as a whole, one after the other: it is the engine
_STAMPING_ONLY = (Due.TOMBSTONES.value,)


@dataclass(slots=True)
class Outcomes:
    """What a service makes of what its engine gives it.

    Attributes:
        setbacks: logs that are left alone, for how long and why.
        companions: logs that fail together, to be run apart.
        has_worked: whether the engine has made anything yet.
        is_stopping: the service ends: what fails now says nothing.
        when_made: is told the logs whose rounds are in place, each with the time it was judged by.
    """

    owner: Owner
    engine: Engine
    clock: Clock
    board: Board
    setbacks: Setbacks
    companions: Companions = field(default_factory=Companions)
    has_worked: bool = False
    is_stopping: bool = False
    when_made: Callable[[Mapping[str, int]], None] = lambda _made: None
    _jobs_failed: int = 0  # in a row

    def commit(
        self, by_id: Mapping[str, RoundPlan], receipts: Sequence[Receipt], job_ids: tuple[int, ...]
    ) -> None:
        """Have the owner commit, report the results, and learn from them. Raises OwnerGone."""
        called_off = {  # looked up now: the owner clears the folders of rounds away
            r.round_id
            for r in receipts
            if r.error is not None and is_cancelled(Path(by_id[r.round_id].dir), r.round_id)
        }

        def reported(receipt: Receipt, result: CommitResult) -> RoundReport:
            plan = by_id[receipt.round_id]
            report = round_report(self.engine.name, job_ids, plan, receipt, result)
            is_called_off = self.is_stopping or receipt.round_id in called_off
            has_failed = result.error is not None and result.bad is None
            return replace(report, cancelled=is_called_off and has_failed)

        try:
            results = self.owner.commit(receipts)
        except OwnerGone as e:
            self.board.is_silent = isinstance(e, OwnerTaken)
            now_ms = self.clock.now_ms()
            gone = [reported(r, _gone(r, e, now_ms)) for r in receipts]
            was_made = {r.round_id for r in receipts if r.error is None}
            # That the owner goes is no fault of a round that was made: see RoundTail.
            self.board.report(
                [replace(r, cancelled=r.cancelled or r.round_id in was_made) for r in gone]
            )
            raise
        rounds = []
        for receipt, result in zip(receipts, results, strict=True):
            plan = by_id[receipt.round_id]
            rounds.append(reported(receipt, result))
            if receipt.round_id in called_off:
                wait_ms = self.setbacks.put_off(plan.name, "its round was cancelled by hand")
                logger.warning("%s; again in %d s", result.error, wait_ms // 1000)
            else:
                self._learn(plan, receipt, result)
        self.board.report(rounds)
        made = {one.log: one.now_ms for one in rounds if one.error is None}
        if made:
            self.when_made(made)

    def _learn(self, plan: RoundPlan, receipt: Receipt, result: CommitResult) -> None:
        """Whether the log may have another round at once."""
        if receipt.attempt_id != NO_ATTEMPT:
            self.companions.went_well(plan.name)
        if result.error is None and not _is_futile(plan, receipt, result):
            self.setbacks.forgive(plan.name)
            return
        if result.bad is not None:
            self.setbacks.met_bad(plan.name, result.bad.reason)
            retry_ms = result.bad.next_try_ms - plan.now_ms
            logger.warning(
                "round %s: %s; rounds go on below offset %d, and there again in %d s",
                plan.round_id, result.error, result.bad.first_offset, retry_ms // 1000,
            )  # fmt: skip
            return
        if result.error is None and plan.due == _STAMPING_ONLY:
            self.setbacks.exhaust(plan.name, plan.generation)
            return
        wait_ms = self.setbacks.set_back(plan.name, result.error or "its round changed nothing")
        if result.error is not None and not self.is_stopping:
            logger.warning(
                "round %s failed: %s; again in %d s", plan.round_id, result.error, wait_ms // 1000
            )

    def no_summaries(self, name: str, why: str) -> None:
        """Leave a log alone whose segments could not be looked through."""
        wait_ms = self.setbacks.set_back(name, why)
        if not self.is_stopping:
            logger.warning("no summaries: %s; again in %d s", why, wait_ms // 1000)

    def note_job(self, *, came_to_nothing: bool, error: str) -> None:
        """Raises EngineLost where one job after the other comes to nothing, whatever it is about.

        One that fails for one log's sake is the doing of that log (`Companions`), and others
        succeed in between.
        """
        if self.is_stopping:
            return
        self._jobs_failed = self._jobs_failed + 1 if came_to_nothing else 0
        self.has_worked = self.has_worked or not came_to_nothing
        if self.engine.can_be_lost and self._jobs_failed >= JOBS_FAILED_MAX:
            raise EngineLost(f"{self._jobs_failed} jobs in a row came to nothing: {error}")


def _gone(receipt: Receipt, reason: OwnerGone, now_ms: int) -> CommitResult:
    """Nobody knows what became of it: the owner settles that when it is back."""
    error = receipt.error or f"the owner went away during the commit: {reason}"
    return CommitResult(receipt.round_id, receipt.name, 0, now_ms, 0.0, error)


def _is_futile(plan: RoundPlan, receipt: Receipt, result: CommitResult) -> bool:
    """A round that changed nothing would be due again for the same reason, for ever."""
    if Due.DELETED.value in plan.due and receipt.log_start >= 0:
        return False  # now the log knows that nothing is left to be taken out
    return result.groups == 0 and receipt.end_offset <= plan.dirty
