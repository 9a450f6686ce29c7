"""Searches in one segment: the batch that reaches an offset, the first record at a time.

Both start from an index and walk headers from there. Called by `PartitionLog.read` and
`offset_for_time`; never takes a lock.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lapse.base.errors import CorruptData
from lapse.kernels.layout import LOG_OVERHEAD
from lapse.kernels.scan import BAD_SIZE, REASONS
from lapse.log.headers import Pread, read_batch, walk
from lapse.log.segment import LOG, Segment, SegmentFiles
from lapse.records.batch import not_older_in, records_of
from lapse.records.layout import NO_TIMESTAMP

_HEAD = struct.Struct(">qiibIhi")  # base offset, length, epoch, magic, crc, attributes, last delta
_CHUNK_BYTES = 4096
V2 = 2
_SEARCH_BLOCK_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class FoundBatch:
    """Where a batch lies."""

    position: int
    size: int
    base_offset: int


@dataclass(frozen=True, slots=True)
class FoundRecord:
    """An offset and the timestamp of its record."""

    offset: int
    timestamp: int


class LastBatch(NamedTuple):
    """What a log ends with, and where it would end without that."""

    base_offset: int
    last_offset: int
    crc: int
    end_before: int


class Heads:
    """Heads of batches in a file, by positions that mostly rise by little: a chunk is kept."""

    __slots__ = ("_at", "_chunk", "_fd", "_pread")

    def __init__(self, fd: int, pread: Pread) -> None:
        self._fd, self._pread = fd, pread
        self._chunk, self._at = b"", 0

    def at(self, position: int) -> tuple[int, int, int]:
        """Base and last offset and size of a batch; size 0 where there is none."""
        skip = position - self._at
        if not 0 <= skip <= len(self._chunk) - _HEAD.size:
            # The smallest v0 message is one byte shorter than the fields read here.
            chunk = self._pread(self._fd, _CHUNK_BYTES, position).ljust(_HEAD.size, b"\0")
            self._chunk, self._at, skip = chunk, position, 0
        base_offset, length, _, magic, _, _, last_delta = _HEAD.unpack_from(self._chunk, skip)
        if length <= 0 or not 0 <= magic <= V2:
            return base_offset, base_offset, 0
        last_offset = base_offset + last_delta if magic == V2 else base_offset
        return base_offset, last_offset, LOG_OVERHEAD + length


def batch_reaching(
    files: SegmentFiles, offset: int, size: int, pread: Pread = os.pread
) -> FoundBatch | None:
    """The first batch in the first `size` bytes whose last offset is at least `offset` (Y-1).

    Raises CorruptData where there is no batch, which a checked log does not have.
    """
    heads = Heads(files.fileno(), pread)
    ends_with, position = files.offset_index.entry_before(offset)
    if position and not _fits(heads, files.offset_index.base_offset, position, ends_with, size):
        position = 0  # an index that is not of this file, trusted after a clean shutdown
    while position < size:
        base_offset, last_offset, batch_size = heads.at(position)
        if not batch_size:
            where = str(files.offset_index.path.with_suffix(LOG))
            raise CorruptData(where, position, REASONS[BAD_SIZE])  # or the file has become shorter
        if last_offset >= offset:
            return FoundBatch(position, batch_size, base_offset)
        position += batch_size
    return None


def last_batch(segments: Sequence[Segment]) -> LastBatch | None:
    """The last batch of a log, by its headers; None where it has none. Raises CorruptData."""
    segment = next((one for one in reversed(segments) if one.size), None)
    if segment is None:
        return None
    files, size = segment.files(), segment.size
    index = files.offset_index
    entry, _ = index.entry_before(segment.end_offset - 1)  # may be the last batch itself
    ends_with, position = index.entry_before(entry - 1)
    if position and not _fits(
        Heads(files.fileno(), os.pread), index.base_offset, position, ends_with, size
    ):
        position = 0
    end_before, found = segment.base_offset, None
    for rows in walk(files.fileno(), position, size, str(segment.path())):
        if found is not None:
            end_before = int(found["last_offset"]) + 1
        if len(rows) > 1:
            end_before = int(rows["last_offset"][-2]) + 1
        found = rows[-1]
    assert found is not None
    base_offset, last_offset, crc = (int(found[n]) for n in ("base_offset", "last_offset", "crc"))
    return LastBatch(base_offset, last_offset, crc, end_before)


def _fits(heads: Heads, begin: int, position: int, ends_with: int, size: int) -> bool:
    """Whether a batch of a segment that begins at offset `begin` is where its index says.

    It ends with the entry's offset, or, as Kafka wrote before 4.0, one of the next batches does
    that were appended with it.
    """
    base_offset, last_offset, batch_size = heads.at(position)
    after = position + batch_size
    if not batch_size or not begin <= base_offset <= last_offset <= ends_with or after > size:
        return False
    if last_offset == ends_with:
        return True
    next_offset, _, next_size = heads.at(after)
    return bool(next_size) and last_offset < next_offset <= ends_with


def _rows_from(segment: Segment, files: SegmentFiles, offset: int) -> Iterator[NDArray[np.void]]:
    """Rows of `BATCH` from the first batch that reaches an offset on, in blocks."""
    size = segment.size
    begin = batch_reaching(files, offset, size)
    if begin is not None:
        yield from walk(
            files.fileno(), begin.position, size, str(segment.path()),
            block_bytes=_SEARCH_BLOCK_BYTES,
        )  # fmt: skip


def first_at(segment: Segment, timestamp: int, start_offset: int) -> FoundRecord | None:
    """The first record at or after `timestamp` with an offset from `start_offset` on (T-16)."""
    files, where = segment.files(), str(segment.path())
    from_offset = max(files.time_index.offset_before(timestamp), start_offset)
    for rows in _rows_from(segment, files, from_offset):
        for row in rows[rows["max_timestamp"] >= timestamp]:
            found = _first_in_batch(files.fileno(), row, timestamp, start_offset, where)
            if found is not None:
                return found
    return None


def _first_in_batch(
    fd: int, row: np.void, timestamp: int, start_offset: int, where: str
) -> FoundRecord | None:
    for record in records_of(*read_batch(fd, row), where):
        if record.timestamp >= timestamp and record.offset >= start_offset:
            return FoundRecord(record.offset, record.timestamp)
    return None


def first_appended(segment: Segment, cutoff_ms: int) -> int | None:
    """The first offset of the segment whose append may not be before a time; None: all are.

    By the segment's append clock, and within it by its append times; where the former is a guess
    and the latter say nothing, nothing bounds it.
    """
    summary = segment.summary
    if not summary.append_estimated and 0 <= summary.append_last_ms < cutoff_ms:
        return None
    base_offset, end_offset = segment.base_offset, segment.end_offset
    known = segment.append_times(base_offset, end_offset)
    return known.first_not_before(cutoff_ms, base_offset)


def first_not_older(segment: Segment, cutoff_ms: int, start_offset: int) -> FoundRecord | None:
    """The first record from `start_offset` on that may not be older than `cutoff_ms`.

    One with a time is as old as that says. One without is as old as its append (`append_times`).
    """
    untimed_from = first_appended(segment, cutoff_ms)
    if untimed_from is None:
        late = segment.max_timestamp >= cutoff_ms
        return first_at(segment, cutoff_ms, start_offset) if late else None
    files, where = segment.files(), str(segment.path())
    for rows in _rows_from(segment, files, start_offset):
        for row in rows:
            data, here = read_batch(files.fileno(), row)
            found = not_older_in(data, here, cutoff_ms, start_offset, untimed_from, where)
            if found is not None:
                return FoundRecord(*found)
    return None


def greatest_timestamp(segment: Segment, start_offset: int) -> FoundRecord | None:
    """The first record that has the segment's greatest timestamp, from `start_offset` on (T-19).

    Batches are read in descending order of what their header claims: an emptied batch still
    claims the maximum it once had.
    """
    files, where = segment.files(), str(segment.path())
    best: FoundRecord | None = None
    for rows in _rows_from(segment, files, start_offset):
        for row in rows[np.argsort(-rows["max_timestamp"], kind="stable")]:
            if row["max_timestamp"] <= (best.timestamp if best else NO_TIMESTAMP):
                break
            found = _greatest_in_batch(files.fileno(), row, start_offset, where)
            if found and (best is None or found.timestamp > best.timestamp):
                best = found
    return best


def _greatest_in_batch(fd: int, row: np.void, start_offset: int, where: str) -> FoundRecord | None:
    timed = [
        record
        for record in records_of(*read_batch(fd, row), where)
        if record.offset >= start_offset and record.timestamp > NO_TIMESTAMP
    ]
    if not timed:
        return None
    greatest = max(timed, key=lambda r: r.timestamp)  # the first of equals
    return FoundRecord(greatest.offset, greatest.timestamp)
