"""`.timeindex`: from a timestamp to an offset near it, in Kafka's format (T-13 to T-16).

What Kafka calls TimeIndex.

Entries of 12 bytes: the greatest timestamp so far (int64), offset - base (int32) of the last
record of the first batch that had it. Timestamps ascend strictly, offsets never go back. The last
slot of a full index is kept for the entry that sealing adds.
"""

from __future__ import annotations

import struct

import numpy as np

from lapse.log.offset_index import IndexEntries

NO_TIMESTAMP = -1
_TABLE = np.dtype([("timestamp", ">i8"), ("offset", ">i4")])


class TimeIndex(IndexEntries):
    """Timestamp → offset."""

    ENTRY = struct.Struct(">qi")
    _last: tuple[int, int] | None = None  # once it was read: every append reads it

    @property
    def last(self) -> tuple[int, int]:
        """The greatest timestamp and its offset; (-1, base offset) when there is no entry."""
        if self._last is None:
            timestamp, relative = self.entry(self.count - 1) if self.count else (NO_TIMESTAMP, 0)
            self._last = timestamp, self.base_offset + relative
        return self._last

    def append_if_later(self, timestamp: int, offset: int) -> None:
        """T-14: an entry only for a timestamp above the last entry's."""
        if timestamp > (self._last or self.last)[0]:
            self._add(timestamp, offset - self.base_offset)
            self._last = timestamp, offset

    def offset_before(self, timestamp: int) -> int:
        """T-16: where a search for the first record at or after `timestamp` may begin."""
        n = self._floor(timestamp, 0)
        return self.base_offset + (self.entry(n)[1] if n >= 0 else 0)

    def check(self, end_offset: int) -> str | None:
        """What is wrong with it for a segment with this next offset, or None."""
        table = self._table(_TABLE)
        if not len(table):
            return None
        timestamps, offsets = table["timestamp"].astype(np.int64), table["offset"].astype(np.int64)
        if timestamps[0] < 0 or (timestamps[1:] <= timestamps[:-1]).any():
            return "timestamps do not ascend"
        if offsets[0] < 0 or (offsets[1:] < offsets[:-1]).any():
            return "offsets go back"
        if self.base_offset + offsets[-1] >= end_offset:
            return "reaches past the end of its segment"
        return None
