"""The bytes of keys, looked for where no record can be read."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lapse.kernels.find_key import KeyTable, find_raw
from lapse.lifecycle.erase.findings import SPOTS_MAX, RawSpot
from lapse.lifecycle.erase.search import Search
from lapse.log.headers import read_at
from lapse.records.batch import as_array

_BLOCK_BYTES = 4 << 20


class RawSearch:
    """Counts, and the first places, over all that is searched of a file.

    Attributes:
        counts: places of each key.
        spots: the first SPOTS_MAX places.
    """

    def __init__(self, search: Search, table: KeyTable) -> None:
        self._table = table
        self._longest = max(map(len, search.keys), default=0)
        self.counts = np.zeros(len(search.keys), np.int64)
        self.spots: list[RawSpot] = []

    def search_inflated(self, plain: NDArray[np.uint8], position: int) -> None:
        """What a batch at this position inflated to."""
        counts = np.zeros_like(self.counts)
        found = self._find(plain, 0, len(plain), counts)
        self._note([RawSpot(target, position, inflated=True) for _, target in found], counts)

    def search_file(self, fd: int, start: int, end: int) -> bool:
        """Bytes start..end-1 of a file; whether they are all zeros, which are no key."""
        counts = np.zeros_like(self.counts)
        spots: list[RawSpot] = []
        zeros, position = True, start
        while position < end:
            # A key may begin in one block and end in the next.
            data = read_at(fd, position, min(_BLOCK_BYTES + self._longest, end - position))
            if not data:
                break
            buf = as_array(data)
            zeros = zeros and not buf.any()
            starts_end = min(_BLOCK_BYTES, len(buf))
            found = self._find(buf, 0, starts_end, counts)
            spots += [RawSpot(target, position + at) for at, target in found]
            position += starts_end
        if not zeros:
            self._note(spots, counts)
        return zeros

    def _find(
        self, buf: NDArray[np.uint8], start: int, starts_end: int, counts: NDArray[np.int64]
    ) -> list[tuple[int, int]]:
        if not len(counts):
            return []
        positions, targets = np.empty(SPOTS_MAX, np.int64), np.empty(SPOTS_MAX, np.int64)
        n = find_raw(buf, start, starts_end, len(buf), self._table, counts, positions, targets, 0)
        return list(zip(positions[:n].tolist(), targets[:n].tolist(), strict=True))

    def _note(self, spots: list[RawSpot], counts: NDArray[np.int64]) -> None:
        self.counts += counts
        self.spots += spots[: SPOTS_MAX - len(self.spots)]
