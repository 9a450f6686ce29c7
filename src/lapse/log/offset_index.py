"""`.index`: from an offset to a byte position near it, in Kafka's format.

What Kafka calls OffsetIndex.

Entries of 8 bytes: offset - base (int32), position (int32), big-endian. Which batches get one is
F-9. An index belongs to one segment: in memory while the segment is written; afterwards
its bytes if they are few, else the open file, of which a search reads some twenty entries. It is
never a map: a map of a file that shrinks kills the process. `IndexEntries` is what both index kinds
share.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_right
from contextlib import closing
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from lapse.base.errors import CorruptData, StorageError
from lapse.base.fs import Fs

_FILE_FROM_BYTES = 64 << 10
_UNKNOWN = -1
_TABLE = np.dtype([("offset", ">i4"), ("position", ">i4")])


class IndexFile:
    """An index file that is read entry by entry; closed when no reader holds it."""

    __slots__ = ("_fd", "_path", "_size")

    def __init__(self, path: Path, fd: int, size: int) -> None:
        self._path, self._fd, self._size = path, fd, size

    def __len__(self) -> int:
        return self._size

    def read(self, at: int, length: int) -> bytes:
        """Raises CorruptData where the file has become shorter."""
        data = os.pread(self._fd, length, at)
        if len(data) < length:
            raise CorruptData(str(self._path), at, "the index became shorter while it was used")
        return data

    def __bytes__(self) -> bytes:
        return self.read(0, self._size)

    def __del__(self) -> None:
        os.close(self._fd)


class IndexEntries:
    """Fixed-size entries, appended in memory and written out now and then.

    A crash loses what was not written out; the segment being written is always recovered then,
    and its indexes with it. Readers look in without a lock: an entry is complete before it counts.

    Attributes:
        count: entries that may be looked at.
    """

    ENTRY: struct.Struct

    def __init__(
        self, path: Path, base_offset: int, data: bytes | bytearray | IndexFile, *, from_file: bool
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
        at, data = n * self.ENTRY.size, self._data
        if isinstance(data, IndexFile):
            return self.ENTRY.unpack(data.read(at, self.ENTRY.size))
        return self.ENTRY.unpack_from(data, at)

    def _floor(self, key: int, field: int) -> int:
        """The last entry whose `field` is at most `key`; -1 if there is none."""
        data = self._data
        if isinstance(data, IndexFile):
            return bisect_right(range(self.count), key, key=lambda n: self.entry(n)[field]) - 1
        low, high = (
            0,
            self.count,
        )  # no `bisect`, for speed: most fetches of a log being written come here
        unpack_from, size = self.ENTRY.unpack_from, self.ENTRY.size
        while low < high:
            middle = (low + high) // 2
            if unpack_from(data, middle * size)[field] <= key:
                low = middle + 1
            else:
                high = middle
        return low - 1

    def growing(self) -> Self:
        """The same entries in memory, to be appended to."""
        self._data = bytearray(bytes(self._data))
        return self

    def _table(self, dtype: np.dtype[np.void]) -> NDArray[np.void]:
        """All entries; of a large file, read for this."""
        data = self._data
        return np.frombuffer(bytes(data) if isinstance(data, IndexFile) else data, dtype)

    @property
    def size_bytes(self) -> int:
        return self.count * self.ENTRY.size

    def write_out(self, fs: Fs) -> None:
        """Make the file hold the entries, no more and no fewer."""
        written = self._written
        if written == self.size_bytes:
            return
        data = bytes(self._data)[: self.size_bytes]
        self._written = _UNKNOWN  # until it succeeds, nothing is known of the file
        if 0 <= written < len(data):  # also of an empty file: ext4 writes one at once that was cut
            with closing(fs.open_append(self.path)) as file:
                file.write(data[written:])
        else:
            fs.write_file(self.path, data)
        self._written = len(data)


class OffsetIndex(IndexEntries):
    """Offset → position."""

    ENTRY = struct.Struct(">ii")

    def append(self, offset: int, position: int) -> None:
        """Note that the batch that ends with `offset` begins at `position`."""
        self._add(offset - self.base_offset, position)

    def entry_before(self, offset: int) -> tuple[int, int]:
        """From where a walk meets the first batch that reaches `offset`.

        (offset that the batch there ends with, its position); the base offset at the start.
        """
        n = self._floor(offset - self.base_offset, 0)
        relative, position = self.entry(n) if n >= 0 else (0, 0)
        return self.base_offset + relative, position

    def offset_from(self, position: int) -> int | None:
        """The offset of the first entry at or after a position; None where there is no entry."""
        n = self._floor(position - 1, 1) + 1
        return self.base_offset + self.entry(n)[0] if n < self.count else None

    def check(self, log_size: int, end_offset: int) -> str | None:
        """What is wrong with it for a segment of this size and next offset, or None."""
        table = self._table(_TABLE)
        if not len(table):
            return None
        offsets, positions = table["offset"].astype(np.int64), table["position"].astype(np.int64)
        return _check_ascending(offsets, positions, log_size, end_offset - self.base_offset)


def _check_ascending(
    offsets: NDArray[np.int64], positions: NDArray[np.int64], log_size: int, offset_end: int
) -> str | None:
    if offsets[0] < 0 or (offsets[1:] <= offsets[:-1]).any():
        return "offsets do not ascend"
    if positions[0] <= 0 or (positions[1:] <= positions[:-1]).any():
        return "positions do not ascend"
    if positions[-1] >= log_size or offsets[-1] >= offset_end:
        return "reaches past the end of its segment"
    return None


def read_entries(path: Path, entry_bytes: int) -> bytes | IndexFile:
    """The bytes of an index file where they are few, else the open file.

    Raises CorruptData if it is missing or not whole entries long.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise CorruptData(str(path), 0, "the file is missing") from None
    except OSError as e:
        raise StorageError(f"opening {path}: {e.strerror or e}") from e
    file = IndexFile(path, fd, os.fstat(fd).st_size)
    if len(file) % entry_bytes:
        raise CorruptData(str(path), len(file), f"not a multiple of {entry_bytes} bytes long")
    return bytes(file) if len(file) < _FILE_FROM_BYTES else file
