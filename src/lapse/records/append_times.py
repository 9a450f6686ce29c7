"""When records were appended, by offset and to the second: what is known of it, for readers.

`log.append_times` keeps it beside segments and says what its numbers mean; Fetch hands it to our
own client, and `columns` shows it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lapse.base.times import FOREVER_MS

RESOLUTION_MS = 1000
NO_TIME = -1
UNKNOWN = -FOREVER_MS


@dataclass(frozen=True, slots=True, eq=False)
class AppendTimes:
    """Entries, ascending by offset.

    Attributes:
        offsets: where each begins to hold.
        times: when that was appended (ms); below 0 as in the file.
    """

    offsets: NDArray[np.int64]
    times: NDArray[np.int64]

    def held(self, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        """The time that holds at each of some offsets, as in the file; UNKNOWN where none does."""
        if not len(self.offsets):
            return np.full(len(offsets), UNKNOWN, np.int64)
        at = np.searchsorted(self.offsets, offsets, side="right") - 1
        return np.where(at >= 0, self.times[np.maximum(at, 0)], UNKNOWN)

    def latest(self) -> NDArray[np.int64]:
        """The latest time that each entry allows."""
        exact = np.minimum(self.times, FOREVER_MS - RESOLUTION_MS) + (RESOLUTION_MS - 1)
        return np.where(self.times >= 0, exact, -self.times)

    def first_not_before(self, cutoff_ms: int, base_offset: int) -> int | None:
        """The first offset whose append may not be before `cutoff_ms`; None: all are.

        `base_offset` is the segment's: what lies between it and the first entry may be of any time.
        """
        if not len(self.offsets) or self.offsets[0] > base_offset:
            return base_offset
        late = np.flatnonzero(self.latest() >= cutoff_ms)
        return int(self.offsets[late[0]]) if len(late) else None

    def shown(self, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        """The time of each of some offsets, up to `RESOLUTION_MS` early; -1 where it is unknown."""
        return np.maximum(self.held(offsets), NO_TIME)

    def between(self, offset_from: int, offset_until: int) -> AppendTimes:
        """What holds for offsets of that range, as few entries as that takes."""
        begin = max(int(np.searchsorted(self.offsets, offset_from, side="right")) - 1, 0)
        end = int(np.searchsorted(self.offsets, offset_until, side="left"))
        return AppendTimes(self.offsets[begin:end], self.times[begin:end])


NOTHING = AppendTimes(np.empty(0, np.int64), np.empty(0, np.int64))
