"""`.index`: from an offset to a byte position near it, in Kafka's format.

Entries of 8 bytes: offset - base (int32), position (int32), big-endian. Which batches get one is
SEMANTICS F-9. An index belongs to one segment: in memory while the segment is written, a map of
the file (or its bytes, if few) afterwards. `IndexEntries` is what both index kinds share.
"""

from __future__ import annotations

import mmap
import os
import struct
from bisect import bisect_right
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from lapse.base.errors import CorruptData, StorageError
from lapse.base.fs import Fs

_MAP_FROM_BYTES = 64 << 10
_UNKNOWN = -1


class IndexEntries:
    """Fixed-size entries, appended in memory and written out now and then.

    A crash loses what was not written out; the segment being written is always recovered then,
    and its indexes with it. Readers look in without a lock: an entry is complete before it counts.

    Attributes:
        count: entries that may be looked at.
    """

    ENTRY: struct.Struct

    def __init__(
        self, path: Path, base_offset: int, data: bytes | bytearray | mmap.mmap, *, from_file: bool
    ) -> None:
        self.path = path
        self.base_offset = base_offset
        self.count = len(data) // self.ENTRY.size
        self._data = data
        self._written = len(data) if from_file else _UNKNOWN

    def _add(self, *fields: int) -> None:
        assert isinstance(self._data, bytearray)
        self._data += self.ENTRY.pack(*fields)
        self.count += 1

    def entry(self, n: int) -> tuple[int, ...]:
        """Fields of entry `n` as they are in the file."""
        return self.ENTRY.unpack_from(self._data, n * self.ENTRY.size)

    def _floor(self, key: int, field: int) -> int:
        """The last entry whose `field` is at most `key`; -1 if there is none."""
        return bisect_right(range(self.count), key, key=lambda n: self.entry(n)[field]) - 1

    def growing(self) -> Self:
        """The same entries in memory, to be appended to."""
        self._data = bytearray(self._data)
        return self

    @property
    def size_bytes(self) -> int:
        return self.count * self.ENTRY.size

    def write_out(self, fs: Fs) -> None:
        """Make the file hold the entries, no more and no fewer."""
        data, written = bytes(self._data[: self.size_bytes]), self._written
        if written == len(data):
            return
        self._written = _UNKNOWN  # until it succeeds, nothing is known of the file
        if 0 < written < len(data):
            file = fs.open_append(self.path)
            try:
                file.write(data[written:])
            finally:
                file.close()
        else:
            fs.write_file(self.path, data)
        self._written = len(data)


class OffsetIndex(IndexEntries):
    """Offset → position."""

    ENTRY = struct.Struct(">ii")
    SUFFIX = ".index"

    def append(self, offset: int, position: int) -> None:
        """Note that the batch that ends with `offset` begins at `position`."""
        self._add(offset - self.base_offset, position)

    def position_before(self, offset: int) -> int:
        """A batch boundary from which a walk meets the first batch that reaches `offset`."""
        n = self._floor(offset - self.base_offset, 0)
        return self.entry(n)[1] if n >= 0 else 0

    def check(self, log_size: int, end_offset: int) -> str | None:
        """What is wrong with it for a segment of this size and next offset, or None."""
        table = np.frombuffer(self._data, np.dtype([("offset", ">i4"), ("position", ">i4")]))
        if not len(table):
            return None
        offsets, positions = table["offset"].astype(np.int64), table["position"].astype(np.int64)
        return _check_ascending(offsets, positions, log_size, end_offset - self.base_offset)


def _check_ascending(
    offsets: NDArray[np.int64], positions: NDArray[np.int64], log_size: int, offset_end: int
) -> str | None:
    if offsets[0] < 0 or (np.diff(offsets) <= 0).any():
        return "offsets do not ascend"
    if positions[0] <= 0 or (np.diff(positions) <= 0).any():
        return "positions do not ascend"
    if positions[-1] >= log_size or offsets[-1] >= offset_end:
        return "reaches past the end of its segment"
    return None


def read_entries(path: Path, entry_bytes: int) -> bytes | mmap.mmap:
    """The whole file: its bytes where they are few, else a map.

    Raises CorruptData if it is missing or not whole entries long.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise CorruptData(str(path), 0, "the file is missing") from None
    except OSError as e:
        raise StorageError(f"opening {path}: {e.strerror or e}") from e
    try:
        size = os.fstat(fd).st_size
        if size % entry_bytes:
            raise CorruptData(str(path), size, f"not a multiple of {entry_bytes} bytes long")
        if size < _MAP_FROM_BYTES:
            return os.pread(fd, size, 0)
        return mmap.mmap(fd, size, access=mmap.ACCESS_READ)
    finally:
        os.close(fd)
