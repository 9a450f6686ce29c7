"""How far the bins of a run, or the stages of a split plan, have come, as attempts' folders tell.

Spark's accumulators arrive only when a task ends, so the driver looks at the disk: a round whose
folder is there has begun, and what its attempts have read they say in a file. A task takes its
plans in order; the last that has begun is under way, and all before it are done. There may be a
hundred thousand logs in a run: a look searches for the last one, and opens files of no other.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path

from lapse.base.clock import Clock
from lapse.lifecycle.round.plan import RoundPlan
from lapse.lifecycle.round.progress import (
    LogProgress,
    Progress,
    read_progress,
    work_bytes,
)
from lapse.lifecycle.round.receipt import attempt_dir
from lapse.spark.rounds.bins import Bin

LOOK_SECONDS_MIN = 0.03
STAGE_LOOK_SECONDS_MIN = 0.2
LOOK_SHARE = 20  # looking takes no more than one part in so many of the driver's time


class _Pace:
    """Looks as often as is worth it."""

    def __init__(self, clock: Clock, seconds_min: float) -> None:
        self._clock, self._seconds_min = clock, seconds_min
        self._next_s = 0.0

    def keep(self, look: Callable[[], None]) -> None:
        """Do it, unless the last time was just now."""
        start = self._clock.monotonic()
        if start >= self._next_s:
            look()
            took_s = self._clock.monotonic() - start
            self._next_s = start + max(self._seconds_min, took_s * LOOK_SHARE)


class Watch:
    """A run's bins, looked at as often as is worth it."""

    def __init__(self, bins: Sequence[Bin], clock: Clock) -> None:
        self._bins = [_BinWatch(b.plans) for b in bins]
        self._bin_of = {
            (plan.round_id, plan.name): n for n, b in enumerate(bins) for plan in b.plans
        }
        self._pace = _Pace(clock, LOOK_SECONDS_MIN)
        self._seen = Progress(0, sum(b.bytes_total for b in self._bins))

    def ended(self, round_id: str, name: str) -> None:
        """The task of this plan has ended; what its folders say is of no more interest."""
        self._bins[self._bin_of[round_id, name]].has_ended = True

    def look(self) -> Progress:
        """Never goes back."""
        self._pace.keep(self._look)
        return self._seen

    def _look(self) -> None:
        for one in self._bins:
            if not one.has_ended:
                one.look()
        done = max(sum(one.bytes_done for one in self._bins), self._seen.bytes_done)
        under_way = tuple(found for one in self._bins if (found := one.under_way()) is not None)
        self._seen = Progress(done, self._seen.bytes_total, under_way)


class _BinWatch:
    """One bin."""

    def __init__(self, plans: Sequence[RoundPlan]) -> None:
        self._plans = plans
        self._before = [0, *accumulate(work_bytes(plan) for plan in plans)]
        self._at = -1  # the last that is known to have begun
        self._furthest = 0  # bytes of it that an attempt has done
        self.has_ended = False

    @property
    def bytes_total(self) -> int:
        return self._before[-1]

    @property
    def bytes_done(self) -> int:
        if self.has_ended:
            return self.bytes_total
        return 0 if self._at < 0 else self._before[self._at] + self._furthest

    def look(self) -> None:
        at = self._last_begun()
        if at < 0:
            return
        plan = self._plans[at]
        said = max((read_progress(path) for path in _attempts(plan)), default=0)
        self._at, self._furthest = at, min(said, self._work(at))

    def under_way(self) -> LogProgress | None:
        if self._at < 0 or self.has_ended:
            return None
        plan = self._plans[self._at]
        return LogProgress(plan.name, plan.round_id, self._furthest, self._work(self._at))

    def _work(self, n: int) -> int:
        return self._before[n + 1] - self._before[n]

    def _last_begun(self) -> int:
        """Steps that double, then halves between: a bin may have thousands of plans."""
        last, step = len(self._plans) - 1, 1
        while self._at + step <= last and _has_begun(self._plans[self._at + step]):
            step *= 2
        first_unknown = self._at + step // 2 + 1
        not_begun = min(self._at + step, last + 1)
        ahead = range(first_unknown, not_begun)
        return (
            first_unknown
            - 1
            + bisect_left(ahead, 1, key=lambda n: 0 if _has_begun(self._plans[n]) else 1)
        )


def _has_begun(plan: RoundPlan) -> bool:
    return attempt_dir(Path(plan.dir), plan.round_id, "").exists()


def _attempts(plan: RoundPlan) -> list[Path]:
    try:
        entries = list(os.scandir(attempt_dir(Path(plan.dir), plan.round_id, "")))
    except OSError:  # swept by its owner
        return []
    return [Path(entry.path) for entry in entries if entry.is_dir()]


class StageWatch:
    """One job of a split plan; of attempts at one of its requests the furthest counts.

    Attempts have `prefix` and the number of their request in front of their names in `folder`.
    """

    def __init__(self, folder: Path, prefix: str, clock: Clock) -> None:
        self._folder, self._prefix = folder, prefix
        self._pace = _Pace(clock, STAGE_LOOK_SECONDS_MIN)
        self._bytes_done = 0

    def look(self) -> int:
        """Bytes done; never goes back."""
        self._pace.keep(self._look)
        return self._bytes_done

    def _look(self) -> None:
        furthest: dict[int, int] = {}
        for number, path in attempts_of_stage(self._folder, self._prefix):
            furthest[number] = max(furthest.get(number, 0), read_progress(path))
        self._bytes_done = max(self._bytes_done, sum(furthest.values()))


def attempts_of_stage(folder: Path, prefix: str) -> Iterator[tuple[int, Path]]:
    """Attempts of one job, each with the number of its request."""
    try:
        names = os.listdir(folder)
    except OSError:  # not begun, or swept by its owner
        return
    for name in names:
        if name.startswith(f"{prefix}-"):
            number = name.removeprefix(f"{prefix}-").partition("-")[0]
            yield int(number), folder / name
