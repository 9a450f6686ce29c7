"""A run that the service has under way: what it does with each step, and at the end.

Rounds are committed as they come, many small ones at a time; a look through segments is handed to
the owner whole. Whatever breaks a run off, what came of it until then counts.
"""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Generic, TypeVar

from lapse.base.errors import LapseError
from lapse.lifecycle.round.engine import NO_ATTEMPT, failed
from lapse.lifecycle.round.plan import RoundPlan
from lapse.lifecycle.round.progress import Progress, work_bytes
from lapse.lifecycle.round.receipt import Receipt
from lapse.lifecycle.round.run import Run
from lapse.lifecycle.round.summarise import SummaryReceipt, SummaryRequest
from lapse.lifecycle.service.board import RunProgress, some
from lapse.lifecycle.service.commits import Portions
from lapse.lifecycle.service.outcomes import Outcomes
from lapse.lifecycle.status.reports import UnderWay

logger = logging.getLogger(__name__)

R = TypeVar("R", Receipt, SummaryReceipt)


class Job(ABC, Generic[R]):
    """One run of the engine.

    Attributes:
        names: its logs.
        now_ms: of its plans.
        under_way: its rounds.
        progress: how far it is.
        is_over: nothing more comes of it.
    """

    state: str
    under_way: tuple[UnderWay, ...] = ()

    def __init__(
        self, run: Run[R], names: Sequence[str], total_bytes: int, now_ms: int, outcomes: Outcomes
    ) -> None:
        self.run: Run[R] = run
        self.names, self.now_ms = tuple(names), now_ms
        self.is_over = False
        self._outcomes = outcomes
        self._begun_s = outcomes.clock.monotonic()
        self.progress = Progress(0, total_bytes)

    def advance(self) -> bool:
        """Poll once, and see to what came; returns whether it got further.

        Raises OwnerGone, and what the engine cannot go on after; the job is over then, and what
        had come is with the owner.
        """
        try:
            step = self.run.poll()
        except LapseError:
            self.is_over = True
            self.end(broke_off=True)
            raise
        except Exception as e:
            logger.exception("%s broke off", self)
            self.is_over = True
            self.broke(e)
            self.end()
            return False
        if isinstance(step, Progress):
            self.progress = step
            return True
        if step is None:
            self.is_over = True
            self.end()
        else:
            self.came(step)
        return False

    def tell(self) -> None:
        """Say how far it is."""
        more = RunProgress(self.now_ms, self._begun_s, self.names, self.progress)
        self._outcomes.board.tell(self.state, some(self.names), more)

    @abstractmethod
    def came(self, receipt: R) -> None:
        """See to a receipt."""

    @abstractmethod
    def broke(self, error: Exception) -> None:
        """The run broke off by a bug: what is missing has failed."""

    @abstractmethod
    def end(self, *, broke_off: bool = False) -> None:
        """See to what is left; `broke_off`: the engine can do nothing more."""


class Rounds(Job[Receipt]):
    """Rounds of some logs. None that is small waits for a split one, which may take long."""

    state = "running"

    def __init__(
        self, run: Run[Receipt], plans: Sequence[RoundPlan], now_ms: int, outcomes: Outcomes
    ) -> None:
        names, total_bytes = [plan.name for plan in plans], sum(map(work_bytes, plans))
        super().__init__(run, names, total_bytes, now_ms, outcomes)
        self.under_way = tuple(UnderWay(plan.name, plan.round_id, plan.dir) for plan in plans)
        self._by_id = {plan.round_id: plan for plan in plans}
        self._missing = dict(self._by_id)
        self._small = {plan.round_id for plan in plans if plan.split is None}
        self._portions = Portions(outcomes.clock, self._is_last)
        self._untried: list[str] = []  # logs without an attempt
        self._error = ""

    def __str__(self) -> str:
        return f"a run of {len(self._by_id)} rounds"

    def _is_last(self, receipt: Receipt) -> bool:
        self._small.discard(receipt.round_id)
        return not self._small or self._by_id[receipt.round_id].split is not None

    def came(self, receipt: Receipt) -> None:
        self._missing.pop(receipt.round_id, None)
        took_s = self._outcomes.clock.monotonic() - self._begun_s
        own = receipt.seconds
        seconds = replace(own, engine=max(took_s - own.map - own.rewrite, 0.0))
        self._commit(self._portions.add(replace(receipt, seconds=seconds)))

    def broke(self, error: Exception) -> None:
        for plan in tuple(self._missing.values()):
            self.came(failed(plan, NO_ATTEMPT, f"{plan.name}: the run broke off: {error!r}"))

    def end(self, *, broke_off: bool = False) -> None:
        self._commit(self._portions.rest())
        outcomes = self._outcomes
        if not outcomes.is_stopping:
            outcomes.companions.failed(self.names, self._untried)
        if not broke_off:
            nothing = len(self._untried) == len(self._by_id)
            outcomes.note_job(came_to_nothing=nothing, error=self._error)

    def _commit(self, receipts: Sequence[Receipt]) -> None:
        if not receipts:
            return
        self._untried += [r.name for r in receipts if r.attempt_id == NO_ATTEMPT]
        self._error = receipts[0].error or self._error
        self._outcomes.commit(self._by_id, receipts, self.run.job_ids)


class Look(Job[SummaryReceipt]):
    """A look through segments that have no summary."""

    state = "looking"

    def __init__(
        self, run: Run[SummaryReceipt], requests: Sequence[SummaryRequest], names: Sequence[str],
        now_ms: int, outcomes: Outcomes,
    ) -> None:  # fmt: skip
        super().__init__(run, names, sum(r.size for r in requests), now_ms, outcomes)
        self._requests = requests
        self._receipts: list[SummaryReceipt] = []
        self._refused: dict[str, str] = {}

    def __str__(self) -> str:
        return f"a look through {len(self._requests)} segments"

    def came(self, receipt: SummaryReceipt) -> None:
        self._receipts.append(receipt)

    def broke(self, error: Exception) -> None:
        unseen = self._requests[len(self._receipts) :]
        self._refused = {r.name: f"{r.name}: the look broke off: {error!r}" for r in unseen}
        self._outcomes.companions.failed(self.names, self._refused)

    def end(self, *, broke_off: bool = False) -> None:
        outcomes, receipts = self._outcomes, self._receipts
        refusals = outcomes.owner.adopt_summaries(receipts)
        if broke_off:
            return
        refused = self._refused
        refused |= {r.name: why for r, why in zip(receipts, refusals, strict=True) if why}
        for name in self.names:
            if name in refused:
                outcomes.no_summaries(name, refused[name])
            else:
                outcomes.setbacks.forgive(name)
                outcomes.companions.went_well(name)
        nothing = all(r.summary is None and r.pid == os.getpid() for r in receipts)
        outcomes.note_job(came_to_nothing=nothing, error="; ".join(list(refused.values())[:1]))


AnyJob = Rounds | Look
