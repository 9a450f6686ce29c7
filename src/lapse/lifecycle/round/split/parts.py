"""A file of parts: the output of one stage's tasks, read by the tasks of the next.

Each part belongs to a key, a small number (a hash range, or a segment); a key has any number of
parts, in the order in which they were added. At the end of the file: a row for each part, sorted by
key, then an entry for each key with the range and the checksum of its rows. So the reader of one
key reads only its entry, its rows and its parts, and checks each of these. The file's size is in
the writer's receipt.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lapse.base.errors import CorruptData, unreadable
from lapse.base.fs import Fs
from lapse.kernels.crc32c import crc32c, crc32c_more

_ROW = np.dtype([("start", "<u8"), ("length", "<u4"), ("crc", "<u4")])
_ENTRY = np.dtype([("first", "<u4"), ("rows", "<u4"), ("crc", "<u4"), ("zero", "<u4")])
_LENGTH_MAX = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class PartsReceipt:
    """The facts needed to read a file of parts.

    Attributes:
        size: size of the whole file.
        parts: number of parts.
        keys: number of keys, which are 0 to keys - 1.
    """

    size: int
    parts: int
    keys: int

    @property
    def rows_at(self) -> int:
        return self.entries_at - self.parts * _ROW.itemsize

    @property
    def entries_at(self) -> int:
        return self.size - self.keys * _ENTRY.itemsize


def checksum(data: NDArray[np.uint8], start: int = 0, end: int | None = None) -> int:
    """CRC-32C of some bytes."""
    return crc32c(data, start, len(data) if end is None else end)


class PartsWriter:
    """Writes one file; the caller closes it in any case."""

    def __init__(self, fs: Fs, path: Path, keys: int) -> None:
        self._file, self._n_keys = fs.open_append(path), keys
        self._keys: list[NDArray[np.int64]] = []
        self._rows: list[NDArray[np.void]] = []

    def add(self, key: int, data: NDArray[np.uint8]) -> None:
        """Add one part; an empty one is skipped."""
        self.add_all(np.array([key], np.int64), np.array([0, len(data)], np.int64), data)

    def add_all(
        self, keys: NDArray[np.int64], edges: NDArray[np.int64], data: NDArray[np.uint8]
    ) -> None:
        """Add consecutive parts: that of keys[n] is data[edges[n]:edges[n + 1]]."""
        wanted = np.flatnonzero(edges[1:] > edges[:-1])
        rows = np.zeros(len(wanted), _ROW)
        rows["start"] = edges[wanted] + self._file.size
        rows["length"] = edges[wanted + 1] - edges[wanted]
        assert int((edges[1:] - edges[:-1]).max(initial=0)) <= _LENGTH_MAX
        ends = zip(edges[wanted].tolist(), edges[wanted + 1].tolist(), strict=True)
        rows["crc"] = [checksum(data, start, end) for start, end in ends]
        if len(data):
            self._file.write(data.data)
        self._keys.append(keys[wanted])
        self._rows.append(rows)

    def finish(self) -> PartsReceipt:
        """Write the end of the file."""
        rows = np.concatenate([*self._rows, np.zeros(0, _ROW)])
        keys = np.concatenate([*self._keys, np.zeros(0, np.int64)])
        rows = rows[np.argsort(keys, kind="stable")]
        entries = np.zeros(self._n_keys, _ENTRY)
        entries["rows"] = np.bincount(keys, minlength=self._n_keys)
        entries["first"] = np.cumsum(entries["rows"]) - entries["rows"]
        data = np.frombuffer(rows.tobytes(), np.uint8)
        for key in range(self._n_keys):
            start = int(entries[key]["first"]) * _ROW.itemsize
            end = start + int(entries[key]["rows"]) * _ROW.itemsize
            entries[key]["crc"] = crc32c_more(key, data, start, end)
        self._file.write(data.data)
        self._file.write(memoryview(entries.tobytes()))
        return PartsReceipt(self._file.size, len(rows), self._n_keys)

    def close(self) -> None:
        self._file.close()


class PartsReader:
    """Reads the parts of some keys; no file stays open. Raises CorruptData, StorageError."""

    def __init__(self, path: Path, receipt: PartsReceipt, first: int, after: int) -> None:
        """For keys first..after-1."""
        self._path, self._first = path, first
        at = receipt.entries_at + first * _ENTRY.itemsize
        self._entries = _typed(read_at(path, at, (after - first) * _ENTRY.itemsize), _ENTRY)
        self._rows_first, rows = 0, 0
        if len(self._entries):
            last = self._entries[-1]
            self._rows_first = int(self._entries[0]["first"])
            rows = int(last["first"]) + int(last["rows"]) - self._rows_first
        if not 0 <= rows <= receipt.parts or self._rows_first + rows > receipt.parts:
            raise CorruptData(str(path), at, "its index says more than there is")
        at = receipt.rows_at + self._rows_first * _ROW.itemsize
        self._rows = read_at(path, at, rows * _ROW.itemsize)
        self._data_end = receipt.rows_at

    def sizes(self, key: int) -> list[int]:
        """Bytes of each part of a key."""
        return [int(length) for length in self._rows_of(key)["length"]]

    def parts(self, key: int, *, newest_first: bool = False) -> Iterator[NDArray[np.uint8]]:
        """Each part of a key, one at a time."""
        rows = self._rows_of(key)
        for row in rows[::-1] if newest_first else rows:
            start, length = int(row["start"]), int(row["length"])
            if start + length > self._data_end:
                raise CorruptData(str(self._path), start, "a part lies beyond the end")
            data = read_at(self._path, start, length)
            if checksum(data) != int(row["crc"]):
                raise CorruptData(str(self._path), start, "checksum of a part does not match")
            yield data

    def _rows_of(self, key: int) -> NDArray[np.void]:
        entry = self._entries[key - self._first]
        start = (int(entry["first"]) - self._rows_first) * _ROW.itemsize
        end = start + int(entry["rows"]) * _ROW.itemsize
        whole = 0 <= start <= end <= len(self._rows)
        if not whole or crc32c_more(key, self._rows, start, end) != int(entry["crc"]):
            raise CorruptData(str(self._path), start, f"checksum of key {key} does not match")
        return _typed(self._rows[start:end], _ROW)


def read_at(path: Path, position: int, length: int) -> NDArray[np.uint8]:
    """Read bytes of a file. Raises CorruptData if the file is shorter, StorageError."""
    data = np.empty(length, np.uint8)
    done = 0
    try:
        with path.open("rb", buffering=0) as file:
            while done < length:
                n = os.preadv(file.fileno(), [data.data[done:]], position + done)
                if n == 0:
                    raise CorruptData(str(path), position + done, "the file ends here")
                done += n
    except OSError as e:
        raise unreadable(e, path) from e
    return data


def _typed(data: NDArray[np.uint8], kind: np.dtype[np.void]) -> NDArray[np.void]:
    return np.frombuffer(data.tobytes(), kind)
