"""An engine in this process: for tests, small tools and `--engine inline`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lapse.base.clock import Clock
from lapse.base.fs import Fs
from lapse.lifecycle.round.engine import OnProgress, Progress, run_plan, work_bytes
from lapse.lifecycle.round.plan import RoundPlan
from lapse.lifecycle.round.receipt import THIS_PROCESS, Receipt
from lapse.lifecycle.round.split.drive import run_split_here
from lapse.lifecycle.round.summarise import SummaryReceipt, SummaryRequest, summarise


class InlineEngine:
    """Runs plans one after the other in this process; progress moves per segment and plan."""

    name = "inline"

    def __init__(self, fs: Fs, clock: Clock) -> None:
        self._fs, self._clock = fs, clock

    def run(self, plans: Sequence[RoundPlan], on_progress: OnProgress) -> Iterator[Receipt]:
        total = sum(work_bytes(plan) for plan in plans)
        done = 0
        for plan in plans:
            receipt = self._run(plan)
            done += work_bytes(plan)
            on_progress(Progress(done, total))
            yield receipt

    def _run(self, plan: RoundPlan) -> Receipt:
        if plan.split is not None:
            return run_split_here(plan, self._fs, self._clock)
        return run_plan(plan, THIS_PROCESS, self._fs, self._clock)

    def summarise(
        self, requests: Sequence[SummaryRequest], on_progress: OnProgress
    ) -> Iterator[SummaryReceipt]:
        total = sum(request.size for request in requests)
        done = 0
        for request in requests:
            receipt = summarise(request)
            done += request.size
            on_progress(Progress(done, total))
            yield receipt
