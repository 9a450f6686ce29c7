"""What was just written, read in few steps and without waiting, for the event loop.

Only of the active segment, whose indexes are in memory, and only of the page cache. All else is for
`LogState.read`, which also has the words for what it refuses.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import numpy as np

from lapse.kernels.fetch_frame import find
from lapse.log import headers
from lapse.log.segment import SegmentFiles
from lapse.log.state import LogSlice, LogState

CHUNK_BYTES = 4096
# Below this a copy through the process is cheaper than a second call to the kernel.
SENDFILE_BYTES_MIN = 32 << 10
NOTHING = b""
NOWAIT: int = headers.NOWAIT or 0  # 0 where the system has no such flag


class _Found(NamedTuple):
    """A batch in a file, and in the chunk that was read of it, whose `filled` bytes are known."""

    position: int
    size: int
    at: int
    filled: int


class PlainReader:
    """Reads of all logs, one after the other: what it reads into is used again."""

    def __init__(self) -> None:
        self._chunk = np.empty(CHUNK_BYTES, np.uint8)
        self._view = self._chunk.data
        self._views = [self._view]

    def read(
        self, state: LogState, offset: int, bytes_max: int, upper: int, *, one_at_least: bool
    ) -> bytes | LogSlice | None:
        """As `LogState.read`; short ones as bytes. None where this is not the way to read it.

        The caller has checked that `offset` is in the log and below `upper`.
        """
        active = state.segments[-1]
        if not NOWAIT or offset < active.base_offset or active.may_lack_aborts:
            return None
        size, reaches = active.size, active.end_offset
        files = active.files()
        try:
            stop = size
            if upper < reaches:
                beyond = self._find(files, upper, size)
                if beyond is None:
                    return None
                stop = beyond.position
            found = self._find(files, offset, size)
            if found is None:
                return None
            size_max = max(bytes_max, found.size) if one_at_least else bytes_max
            length = min(size_max, stop - found.position)
            if length <= 0:
                return NOTHING
            if found.at + length <= found.filled:
                return self._view[found.at : found.at + length].tobytes()
            if length >= SENDFILE_BYTES_MIN:
                return LogSlice(files, found.position, length, active)
            data = bytearray(length)
            whole = os.preadv(files.fileno(), [data], found.position, NOWAIT) == length
            return bytes(data) if whole else None
        except OSError:  # it is not all in memory, or the disk has failed
            return None

    def _find(self, files: SegmentFiles, offset: int, size: int) -> _Found | None:
        """The first batch in the first `size` bytes that reaches an offset."""
        index = files.offset_index
        ends_with, position = index.entry_before(offset)
        if not position:
            ends_with = -1
        while position < size:
            filled = os.preadv(files.fileno(), self._views, position, NOWAIT)
            filled = min(filled, size - position)
            at, batch_size = find(self._chunk, filled, index.base_offset, ends_with, offset)
            if at >= 0:
                return _Found(position + at, batch_size, at, filled)
            if batch_size <= 0:
                return None
            position, ends_with = position + batch_size, -1
        return None
