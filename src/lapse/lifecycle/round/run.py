"""A run: work that an engine has taken on, as its caller sees it.

The engine writes a run down as a generator of steps: how far it is now, or a receipt. `Run` takes
one step a poll, so one thread can have several runs under way and look to other things in between.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator
from typing import Generic, TypeAlias, TypeVar

from lapse.lifecycle.round.progress import OnProgress, Progress

R = TypeVar("R")
Step: TypeAlias = Progress | R
Steps: TypeAlias = Generator[Step[R], None, None]


class Run(Generic[R]):
    """Work that an engine has taken on; for one thread, which polls it until it is over.

    Args:
        steps: makes the generator, which looks at `is_cancelled` and keeps `job_ids`.
        works_alone: whether the work goes on between polls; otherwise polling is the work.

    Attributes:
        job_ids: Spark's ids of the jobs so far; none of other engines.
        is_cancelled: the run is to end soon.
    """

    def __init__(self, steps: Callable[[Run[R]], Steps[R]], *, works_alone: bool = False) -> None:
        self.works_alone, self.is_cancelled = works_alone, False
        self.job_ids: tuple[int, ...] = ()
        self._steps = steps(self)

    def poll(self) -> Step[R] | None:
        """What is new: a receipt, or how far the run is; None once it is over.

        Waits a moment where nothing is. Raises EngineLost, after which the run is over.
        """
        return next(self._steps, None)

    def cancel(self) -> None:
        """Have it end soon: what is not done gets a failed receipt, or none."""
        self.is_cancelled = True

    def close(self) -> None:
        """End it at once, whatever is under way; nothing more comes of it."""
        self._steps.close()


def receipts_of(run: Run[R], on_progress: OnProgress = lambda _: None) -> Iterator[R]:
    """The receipts of a run as they come; for who has nothing else to do meanwhile."""
    with contextlib.closing(run):
        while (step := run.poll()) is not None:
            if isinstance(step, Progress):
                on_progress(step)
            else:
                yield step
