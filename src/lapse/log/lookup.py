"""Searches in one segment: the batch that reaches an offset, the first record at a time.

Both start from an index and walk headers from there. Called by `PartitionLog.read` and
`offset_for_time`; never takes a lock.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass

import numpy as np

from lapse.base.errors import CorruptData
from lapse.kernels.layout import LOG_OVERHEAD
from lapse.kernels.scan import BAD_SIZE, REASONS
from lapse.log.headers import read_at, walk
from lapse.log.segment import LOG, Segment, SegmentFiles
from lapse.records.batch import records_of
from lapse.records.layout import NO_TIMESTAMP

_HEAD = struct.Struct(">qiibIhi")  # base offset, length, epoch, magic, crc, attributes, last delta
_CHUNK_BYTES = 4096
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


def batch_reaching(files: SegmentFiles, offset: int, size: int) -> FoundBatch | None:
    """The first batch in the first `size` bytes whose last offset is at least `offset` (Y-1).

    Raises CorruptData where there is no batch, which a checked log does not have.
    """
    fd = files.fileno()
    ends_with, position = files.offset_index.entry_before(offset)
    begin = files.offset_index.base_offset
    if position and not _fits(fd, begin, position, ends_with, size):
        position = 0  # an index that is not of this file, trusted after a clean shutdown
    chunk, chunk_at = b"", position
    while position < size:
        at = position - chunk_at
        if at + _HEAD.size > len(chunk):
            chunk, chunk_at, at = os.pread(fd, _CHUNK_BYTES, position), position, 0
            # The smallest v0 message is one byte shorter than the fields read here.
            chunk = chunk.ljust(_HEAD.size, b"\0")
        base_offset, length, _, magic, _, _, last_delta = _HEAD.unpack_from(chunk, at)
        if length <= 0:
            where = str(files.offset_index.path.with_suffix(LOG))
            raise CorruptData(where, position, REASONS[BAD_SIZE])  # or the file has become shorter
        last_offset = base_offset + last_delta if magic >= 2 else base_offset
        if last_offset >= offset:
            return FoundBatch(position, LOG_OVERHEAD + length, base_offset)
        position += LOG_OVERHEAD + length
    return None


def _fits(fd: int, begin: int, position: int, ends_with: int, size: int) -> bool:
    """Whether a batch of a segment that begins at offset `begin` is where its index says.

    It ends with the entry's offset, or, as Kafka wrote before 4.0, one of the next batches does
    that were appended with it.
    """
    base_offset, last_offset, after = _header_at(fd, position)
    if not begin <= base_offset <= last_offset <= ends_with or after > size:
        return False
    return last_offset == ends_with or last_offset < _header_at(fd, after)[0] <= ends_with


def _header_at(fd: int, position: int) -> tuple[int, int, int]:
    """Base and last offset of a batch, and where it ends; -1 where there is none."""
    head = os.pread(fd, _HEAD.size, position).ljust(_HEAD.size, b"\0")
    base_offset, length, _, magic, _, _, last_delta = _HEAD.unpack(head)
    if length <= 0 or magic not in {0, 1, 2}:
        return -1, -1, -1
    last_offset = base_offset + last_delta if magic == 2 else base_offset
    return base_offset, last_offset, position + LOG_OVERHEAD + length


def first_at(segment: Segment, timestamp: int, start_offset: int) -> FoundRecord | None:
    """The first record at or after `timestamp` with an offset from `start_offset` on (T-16)."""
    size, files = segment.size, segment.files()
    from_offset = max(files.time_index.offset_before(timestamp), start_offset)
    begin = batch_reaching(files, from_offset, size)
    if begin is None:
        return None
    where, fd = str(segment.path()), files.fileno()
    for rows in walk(fd, begin.position, size, where, block_bytes=_SEARCH_BLOCK_BYTES):
        for row in rows[rows["max_timestamp"] >= timestamp]:
            found = _first_in_batch(fd, row, timestamp, start_offset, where)
            if found is not None:
                return found
    return None


def _first_in_batch(
    fd: int, row: np.void, timestamp: int, start_offset: int, where: str
) -> FoundRecord | None:
    data = read_at(fd, int(row["position"]), int(row["size"]))
    here = row.copy()
    here["position"] = 0
    for record in records_of(data, here, where):
        if record.timestamp >= timestamp and record.offset >= start_offset:
            return FoundRecord(record.offset, record.timestamp)
    return None


def greatest_timestamp(segment: Segment, start_offset: int) -> FoundRecord | None:
    """The first record that has the segment's greatest timestamp, from `start_offset` on (T-19).

    Batches are asked in descending order of what their header claims: an emptied batch still
    claims the maximum it once had.
    """
    size, files = segment.size, segment.files()
    begin = batch_reaching(files, start_offset, size)
    if begin is None:
        return None
    where, fd = str(segment.path()), files.fileno()
    best: FoundRecord | None = None
    for rows in walk(fd, begin.position, size, where, block_bytes=_SEARCH_BLOCK_BYTES):
        for row in rows[np.argsort(-rows["max_timestamp"], kind="stable")]:
            if row["max_timestamp"] <= (best.timestamp if best else NO_TIMESTAMP):
                break
            found = _greatest_in_batch(fd, row, start_offset, where)
            if found and (best is None or found.timestamp > best.timestamp):
                best = found
    return best


def _greatest_in_batch(fd: int, row: np.void, start_offset: int, where: str) -> FoundRecord | None:
    data = read_at(fd, int(row["position"]), int(row["size"]))
    here = row.copy()
    here["position"] = 0
    records = [r for r in records_of(data, here, where) if r.offset >= start_offset]
    if not records:
        return None
    greatest = max(records, key=lambda r: r.timestamp)  # the first of equals
    return FoundRecord(greatest.offset, greatest.timestamp)
