"""The append times of a rewritten segment: those of its sources, as far as batches are left.

Called by `rewrite`. An entry without a remaining batch is left out: otherwise a log with constant
appends would keep one entry for each second of its life.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lapse.lifecycle.round.plan import PlanSegment, RoundPlan
from lapse.lifecycle.round.receipt import APPENDED
from lapse.log.append_times import encode, joined, read_append_times, thinned
from lapse.records.append_times import UNKNOWN, AppendTimes


class AppendTimesLeft:
    """Collects the append times of all batches that are written."""

    def __init__(self, plan: RoundPlan, sources: Sequence[PlanSegment]) -> None:
        self._base_offset = sources[0].base_offset
        self._known = joined(_of(Path(plan.dir), source) for source in sources)
        self._used = np.zeros(len(self._known.offsets), np.bool_)

    def add(self, rows: NDArray[np.void]) -> None:
        """Add batches (rows of BATCH) that are written to the new segment."""
        if not len(rows):
            return
        offsets = self._known.offsets
        within = [int(rows[0]["base_offset"]), int(rows[-1]["base_offset"])]
        lo, hi = np.searchsorted(offsets, within, side="right").tolist()
        lo = max(lo - 1, 0)  # the entry that the first batch falls under, if there is one
        if hi - lo == 1:
            self._used[lo] = True
            return
        begins = np.searchsorted(rows["base_offset"], offsets[lo:hi])
        self._used[lo:hi] |= np.diff(begins, append=len(rows)) > 0

    def side_files(self, end_offset: int, size: int) -> list[tuple[str, bytes]]:
        """The attempt's file for a log file of that size; none where no time is known."""
        left = thinned(self._known, self._used, end_offset)
        data = encode(left, self._base_offset, size)
        return [(APPENDED, data)] if len(left.offsets) else []


def _of(log_dir: Path, source: PlanSegment) -> AppendTimes:
    """A source's append times; if unknown, an entry says so, to end those of the source before."""
    known = read_append_times(log_dir, source.base_offset, source.size)
    if len(known.offsets):
        return known
    return AppendTimes(np.array([source.base_offset]), np.array([UNKNOWN]))
