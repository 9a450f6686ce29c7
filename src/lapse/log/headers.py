"""Batch headers of a segment file, block by block: what loading, recovery and searches walk.

Reads with `pread` into arrays, never through a map: a file that shrinks under a map kills the
process. Called by `loader`, `reader` and `lookup`.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lapse.base.errors import CorruptData
from lapse.kernels import scan
from lapse.kernels.layout import BATCH, LENGTH, LOG_OVERHEAD, MAGIC

_BLOCK_BYTES = 8 << 20
_ROWS = 4096
_V1_TIMESTAMP = 18  # of a v1 message; the scan kernel leaves it to us


class Header(NamedTuple):
    """A row of `BATCH` as Python numbers; `position` is where the batch lies in its file."""

    position: int
    size: int
    base_offset: int
    last_offset: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    crc: int
    leader_epoch: int
    base_sequence: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs here
    attributes: int
    producer_epoch: int
    magic: int


def headers_of(rows: NDArray[np.void]) -> list[Header]:
    """Rows of `BATCH` as Python numbers."""
    return [Header(*row) for row in rows.tolist()]


def read_at(fd: int, position: int, length: int) -> bytes:
    """Up to `length` bytes; fewer only where the file ends."""
    data = os.pread(fd, length, position)
    while len(data) < length:
        more = os.pread(fd, length - len(data), position + len(data))
        if not more:
            break
        data += more
    return data


def walk(
    fd: int,
    start: int,
    end: int,
    where: str,
    *,
    check_crc: bool = False,
    block_bytes: int = _BLOCK_BYTES,
) -> Iterator[NDArray[np.void]]:
    """Rows of the batches in bytes start..end-1 of a file, with positions in the file.

    Raises CorruptData (at a position in the file) after everything before it was handed out.
    """
    rows = np.empty(_ROWS, BATCH)
    position, asked = start, block_bytes
    while position < end:
        data = read_at(fd, position, min(asked, end - position))
        buf = np.frombuffer(data, np.uint8)
        at, why = 0, scan.FULL
        while why == scan.FULL:
            n, at, why = scan.scan(buf, at, len(buf), rows, check_crc)
            sound = _sound_legacy(rows[:n], data) if check_crc else n
            if sound:
                yield _placed(rows[:sound], data, position)
            if sound < n:
                bad_at = position + int(rows["position"][sound])
                raise CorruptData(where, bad_at, scan.REASONS[scan.BAD_CRC])
        at_end = len(data) < asked
        if why != scan.DONE and (why != scan.TRUNCATED or at_end):
            raise CorruptData(where, position + at, scan.REASONS[why])
        if not data:
            raise CorruptData(where, position, f"the file ends before byte {end}")
        # A batch larger than a block: the next block is as large as it says.
        asked = block_bytes if at else max(2 * asked, _declared_size(data))
        position += at


def _declared_size(data: bytes) -> int:
    return LOG_OVERHEAD + int.from_bytes(data[LENGTH : LENGTH + 4], "big", signed=True)


def _sound_legacy(rows: NDArray[np.void], data: bytes) -> int:
    """How many rows come before the first v0 or v1 message with a wrong checksum.

    Not only for old logs: a v2 batch whose tail reads as zeros from its magic byte on looks like
    a v0 message, and the checksum is all that tells (crc32, from the magic byte to the end).
    """
    for n in np.flatnonzero(rows["magic"] < 2):
        start, size = int(rows["position"][n]), int(rows["size"][n])
        stored = int.from_bytes(data[start + LOG_OVERHEAD : start + MAGIC], "big")
        if zlib.crc32(memoryview(data)[start + MAGIC : start + size]) != stored:
            return int(n)
    return len(rows)


def _placed(rows: NDArray[np.void], data: bytes, position: int) -> NDArray[np.void]:
    """A copy with positions in the file, and the timestamps of v1 messages filled in."""
    placed = rows.copy()
    for n in np.flatnonzero(placed["magic"] == 1):
        at = int(placed["position"][n]) + _V1_TIMESTAMP
        timestamp = int.from_bytes(data[at : at + 8], "big", signed=True)
        placed["max_timestamp"][n] = placed["base_timestamp"][n] = timestamp
    placed["position"] += position
    return placed


assert Header._fields == BATCH.names
