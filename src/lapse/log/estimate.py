"""An estimate of a segment without reading it: a stand-in until a task has read it (`summary`).

Logs that Lapse did not write, a real Kafka's for example, have no summaries. Opening one must not
take as long as reading it. So only cheap facts are read: size, mtime, the last entry of the time
index, the header of the first batch, the base of the segment after it; of the last segment, the
headers behind the last entry of the offset index. Called by `loader` for segments whose files may
be trusted. Where one of these does not fit the others there is no estimate, and the segment is
read.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

from lapse.base.errors import CorruptData
from lapse.kernels.layout import (
    ATTRIBUTES,
    BASE_OFFSET,
    HEADER_SIZE,
    LEGACY_ATTRIBUTES,
    LENGTH,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    MAGIC,
    MAX_TIMESTAMP,
    V1_TIMESTAMP,
)
from lapse.log.append_clock import estimated_clock
from lapse.log.headers import read_at, walk
from lapse.log.offset_index import OffsetIndex
from lapse.log.summary import (
    NONE,
    NOT_KNOWN,
    Summary,
    read_clock,
    summary_path,
)
from lapse.log.time_index import TimeIndex

_I64 = struct.Struct(">q")
_LEGACY_SIZE_MIN = V1_TIMESTAMP + 8


def estimate_sealed(
    log_path: Path, base_offset: int, next_base: int, time_index: TimeIndex
) -> Summary | None:
    """An estimate of a segment with another behind it; None where its files do not match."""
    return _estimate(log_path, base_offset, time_index, lambda _fd, _size: (next_base, NONE))


def estimate_active(
    log_path: Path, base_offset: int, offset_index: OffsetIndex, time_index: TimeIndex
) -> Summary | None:
    """An estimate of the last segment; its end offset is read behind the last index entry."""
    return _estimate(
        log_path, base_offset, time_index,
        lambda fd, size: _tail(fd, size, str(log_path), offset_index),
    )  # fmt: skip


def _estimate(
    log_path: Path,
    base_offset: int,
    time_index: TimeIndex,
    last_of: Callable[[int, int], tuple[int, int] | None],
) -> Summary | None:
    """`last_of` a file and its size: end offset, and a timestamp that the index may lack."""
    with log_path.open("rb") as file:
        fd, stat = file.fileno(), os.fstat(file.fileno())
        if not stat.st_size:
            return Summary(base_offset, 0, base_offset)
        first, last = _first_batch(fd, stat.st_size), last_of(fd, stat.st_size)
    if first is None or last is None or not base_offset <= first[0] < last[0]:
        return None
    _, first_timestamp, by_append_time = first
    greatest = max(time_index.last[0], last[1], first_timestamp)
    known = read_clock(summary_path(log_path.parent, base_offset))
    clock = estimated_clock(first_timestamp, stat.st_mtime_ns // 1_000_000, known)
    return Summary(
        base_offset,
        stat.st_size,
        last[0],
        clock.append_first_ms,
        clock.append_last_ms,
        clock.append_estimated,
        max_timestamp=greatest,
        first_batch_max_timestamp=first_timestamp,
        append_time_greatest_ms=greatest if by_append_time else NONE,
        **NOT_KNOWN,
    )


def _first_batch(fd: int, size: int) -> tuple[int, int, bool] | None:
    """(base offset, max timestamp, is it LogAppendTime) of the first batch."""
    head = read_at(fd, 0, HEADER_SIZE)
    if len(head) < _LEGACY_SIZE_MIN:
        return None
    (base_offset,) = _I64.unpack_from(head, BASE_OFFSET)
    length = int.from_bytes(head[LENGTH : LENGTH + 4], "big", signed=True)
    magic = head[MAGIC]
    at = (None, V1_TIMESTAMP, MAX_TIMESTAMP)[magic] if magic <= 2 else len(head)
    if not 0 < length <= size - LOG_OVERHEAD or (at is not None and at + _I64.size > len(head)):
        return None
    timestamp = NONE if at is None else _I64.unpack_from(head, at)[0]
    attributes = head[ATTRIBUTES + 1] if magic == 2 else head[LEGACY_ATTRIBUTES]
    return base_offset, timestamp, bool(magic and attributes & LOG_APPEND_TIME)


def _tail(fd: int, size: int, where: str, offset_index: OffsetIndex) -> tuple[int, int] | None:
    """(end offset, greatest timestamp) of the batches from the last one that has an entry."""
    offset, position, end, greatest = NONE, 0, NONE, NONE
    if offset_index.count:
        relative, position = offset_index.entry(offset_index.count - 1)
        offset = offset_index.base_offset + relative
    if not 0 <= position < size:
        return None
    try:
        for rows in walk(fd, position, size, where):
            if end == NONE and offset not in (NONE, int(rows["last_offset"][0])):
                return None
            end = int(rows["last_offset"][-1]) + 1
            greatest = max(greatest, int(rows["max_timestamp"].max()))
    except CorruptData:
        return None
    return end, greatest
