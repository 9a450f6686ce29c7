"""An engine in this process: for tests, small tools and `--engine inline`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from threading import Lock

from lapse.base.clock import Clock
from lapse.base.fs import Fs
from lapse.lifecycle.round.engine import run_plan
from lapse.lifecycle.round.plan import RoundPlan
from lapse.lifecycle.round.progress import Progress, work_bytes
from lapse.lifecycle.round.receipt import THIS_PROCESS, Receipt
from lapse.lifecycle.round.run import Run, Steps
from lapse.lifecycle.round.split.drive import run_split_here
from lapse.lifecycle.round.summarise import SummaryReceipt, SummaryRequest, summarise


class InlineEngine:
    """Runs plans one after the other in this process, one a poll; what is cancelled ends there.

    Services of several threads take turns: what a round may use of memory is there once.
    """

    name = "inline"
    can_be_lost = False

    def __init__(self, fs: Fs, clock: Clock) -> None:
        self._fs, self._clock = fs, clock
        self._turn = Lock()

    def submit(self, plans: Sequence[RoundPlan]) -> Run[Receipt]:
        return Run(partial(self.rounds, plans))

    def summarise(self, requests: Sequence[SummaryRequest]) -> Run[SummaryReceipt]:
        return Run(partial(self.looks, requests))

    def rounds(self, plans: Sequence[RoundPlan], run: Run[Receipt]) -> Steps[Receipt]:
        """The steps of a run of plans."""
        total, done = sum(work_bytes(plan) for plan in plans), 0
        for plan in plans:
            if run.is_cancelled:
                return
            with self._turn:
                receipt = self._receipt(plan)
            done += work_bytes(plan)
            yield Progress(done, total)
            yield receipt

    def looks(
        self, requests: Sequence[SummaryRequest], run: Run[SummaryReceipt]
    ) -> Steps[SummaryReceipt]:
        """The steps of a look through segments."""
        total, done = sum(request.size for request in requests), 0
        for request in requests:
            if run.is_cancelled:
                return
            with self._turn:
                receipt = summarise(request)
            done += request.size
            yield Progress(done, total)
            yield receipt

    def _receipt(self, plan: RoundPlan) -> Receipt:
        if plan.split is not None:
            return run_split_here(plan, self._fs, self._clock)
        return run_plan(plan, THIS_PROCESS, self._fs, self._clock)
