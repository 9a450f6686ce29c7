"""Batch headers of a segment file, block by block: what loading, recovery and searches walk.

Reads with `pread` into arrays, never through a map: a file that shrinks under a map kills the
process. Called by `loader`, `reader` and `lookup`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from lapse.base.errors import CorruptData
from lapse.kernels import scan
from lapse.kernels.layout import BATCH, LENGTH, LOG_OVERHEAD

_BLOCK_BYTES = 1 << 20  # stays in the cache between being read and being scanned
_ROWS = 4096


Pread = Callable[[int, int, int], bytes]  # as `os.pread`: descriptor, length, position

NOWAIT = getattr(os, "RWF_NOWAIT", None)  # Linux; None where there is no such flag


def pread_cached(fd: int, length: int, position: int) -> bytes:
    """As `os.pread`, but never waits for a disk: for the event loop.

    Raises BlockingIOError where the bytes are not all in memory, or the system cannot report that.
    """
    if NOWAIT is None:
        raise BlockingIOError
    data = bytearray(length)
    view = memoryview(data)
    read = 0
    while read < length:
        try:
            n = os.preadv(fd, [view[read:]], position + read, NOWAIT)
        except OSError as e:
            if e.errno == errno.EOPNOTSUPP:  # a file system that does not know the flag
                raise BlockingIOError from e
            raise
        if not n:
            break
        read += n
    return bytes(view[:read])


def read_at(fd: int, position: int, length: int, pread: Pread = os.pread) -> bytes:
    """Up to `length` bytes; fewer only where the file ends."""
    data = pread(fd, length, position)
    while len(data) < length:
        more = pread(fd, length - len(data), position + len(data))
        if not more:
            break
        data += more
    return data


def read_batch(fd: int, row: np.void) -> tuple[bytes, np.void]:
    """The bytes of a batch, and its row as of those bytes alone."""
    here = row.copy()
    here["position"] = 0
    return read_at(fd, int(row["position"]), int(row["size"])), here


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
    check = scan.CHECK_ALL if check_crc else scan.CHECK_NONE
    rows = np.empty(_ROWS, BATCH)
    block = np.empty(0, np.uint8)
    position, block_size = start, block_bytes
    while position < end:
        if len(block) < min(block_size, end - position):  # memory that was used already costs less
            block = np.empty(min(block_size, end - position), np.uint8)
        data = _read_into(block[: min(block_size, end - position)], fd, position)
        at, why = 0, scan.FULL
        while why == scan.FULL:
            n, at, why = scan.scan(data, at, len(data), rows, check)
            if n:
                yield _placed(rows[:n], position)
        at_end = len(data) < block_size
        if why != scan.DONE and (why != scan.TRUNCATED or at_end):
            raise CorruptData(where, position + at, scan.REASONS[why])
        if not len(data):
            raise CorruptData(where, position, f"the file ends before byte {end}")
        # A batch larger than a block: the next block is as large as it says.
        block_size = block_bytes if at else max(2 * block_size, _declared_size(data))
        position += at


def _read_into(target: NDArray[np.uint8], fd: int, position: int) -> NDArray[np.uint8]:
    """The bytes read, read-only as all that kernels read; fewer only where the file ends."""
    view = target.data
    read = 0
    while read < len(view):
        n = os.preadv(fd, [view[read:]], position + read)
        if not n:
            break
        read += n
    data = target[:read]
    data.flags.writeable = False
    return data


def _placed(rows: NDArray[np.void], position: int) -> NDArray[np.void]:
    """A copy, with positions in a file whose bytes from `position` on were scanned.

    As bytes: NumPy copies a structured array field by field, at a tenth of the speed.
    """
    placed = rows.view(np.uint8).copy().view(BATCH)
    placed["position"] += position
    return placed


def _declared_size(data: NDArray[np.uint8]) -> int:
    declared = data[LENGTH : LENGTH + 4].tobytes()
    return LOG_OVERHEAD + int.from_bytes(declared, "big", signed=True)
