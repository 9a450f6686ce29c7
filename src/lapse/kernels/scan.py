"""Walk batch headers: bytes of a segment to rows of `BATCH`.

Reads no record, so it runs at the speed of the checksum, or of memory where it checks none. To
check small batches costs next to nothing: all of their bytes come through the cache anyway.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lapse.kernels.crc32 import crc32
from lapse.kernels.crc32c import crc32c
from lapse.kernels.jit import inlined, kernel
from lapse.kernels.layout import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_SEQUENCE,
    BASE_TIMESTAMP,
    COUNT,
    CRC,
    HEADER_SIZE,
    LAST_OFFSET_DELTA,
    LEADER_EPOCH,
    LEGACY_ATTRIBUTES,
    LEGACY_CRC,
    LEGACY_SIZES_MIN,
    LENGTH,
    LOG_OVERHEAD,
    MAGIC,
    MAX_TIMESTAMP,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    V1_TIMESTAMP,
)
from lapse.kernels.machine import load_i16_be, load_i32_be, load_i64_be, prefetch_until

# A batch's length says where the next one is, so a walk over small ones waits for DRAM at each:
# what lies so many bytes ahead is prefetched, unless most of it is no header.
AHEAD = 2048
SMALL = 1024

# Batches of so many bytes at most are checked against their checksum.
CHECK_NONE, CHECK_SMALL, CHECK_ALL = 0, SMALL, 1 << 32

# Why a scan stopped. Only DONE and FULL are normal; the others name what is wrong at `position`.
DONE = 0  # reached the end exactly
FULL = 1  # no row left; go on from `position`
TRUNCATED = 2  # the last batch is cut off by the end
BAD_SIZE = 3  # a length no batch can have
BAD_MAGIC = 4  # not 0, 1 or 2
BAD_CRC = 5  # checksum differs
BAD_COUNT = 6  # a record count or last offset delta below zero

REASONS = {
    TRUNCATED: "batch cut off",
    BAD_SIZE: "impossible batch length",
    BAD_MAGIC: "unknown message format",
    BAD_CRC: "checksum does not match",
    BAD_COUNT: "negative record count or offset delta",
}


@inlined
def _fill_from_message(buf: NDArray[np.uint8], i: int, magic: int, row: np.void) -> None:
    row.attributes = buf[i + LEGACY_ATTRIBUTES]
    row.base_offset = row.last_offset = load_i64_be(buf, i + BASE_OFFSET)
    timestamp = load_i64_be(buf, i + V1_TIMESTAMP) if magic == 1 else -1
    row.base_timestamp = row.max_timestamp = timestamp
    row.producer_id = row.leader_epoch = row.base_sequence = -1
    row.producer_epoch = row.count = -1


@kernel
def scan(
    buf: NDArray[np.uint8], start: int, end: int, rows: NDArray[np.void], checked_bytes_max: int
) -> tuple[int, int, int]:
    """Fill `rows` (BATCH) from buf[start:end].

    Returns (rows filled, position where it stopped, why).
    """
    size_least = LEGACY_SIZES_MIN[0]
    n = 0
    i = start
    while i < end:
        if n == rows.shape[0]:
            return n, i, 1
        if i + LOG_OVERHEAD > end:
            return n, i, 2
        size = LOG_OVERHEAD + load_i32_be(buf, i + LENGTH)
        if size < size_least:
            return n, i, 3
        if i + size > end:
            return n, i, 2
        magic = buf[i + MAGIC]
        if magic > 2:
            return n, i, 4
        row = rows[n]
        row.position, row.size, row.magic = i, size, magic
        if magic < 2:
            if size < LEGACY_SIZES_MIN[magic]:
                return n, i, 3
            crc = load_i32_be(buf, i + LEGACY_CRC) & 0xFFFFFFFF
            if size <= checked_bytes_max and crc32(buf, i + MAGIC, i + size) != crc:
                return n, i, 5
            row.crc = crc
            _fill_from_message(buf, i, magic, row)
        else:
            if size < HEADER_SIZE:
                return n, i, 3
            crc = load_i32_be(buf, i + CRC) & 0xFFFFFFFF
            if size <= checked_bytes_max and crc32c(buf, i + ATTRIBUTES, i + size) != crc:
                return n, i, 5
            last_delta = load_i32_be(buf, i + LAST_OFFSET_DELTA)
            count = load_i32_be(buf, i + COUNT)
            if last_delta < 0 or count < 0:
                return n, i, 6
            row.crc, row.count = crc, count
            row.base_offset = load_i64_be(buf, i + BASE_OFFSET)
            row.last_offset = row.base_offset + last_delta
            row.attributes = load_i16_be(buf, i + ATTRIBUTES)
            row.base_timestamp = load_i64_be(buf, i + BASE_TIMESTAMP)
            row.max_timestamp = load_i64_be(buf, i + MAX_TIMESTAMP)
            row.producer_id = load_i64_be(buf, i + PRODUCER_ID)
            row.producer_epoch = load_i16_be(buf, i + PRODUCER_EPOCH)
            row.base_sequence = load_i32_be(buf, i + BASE_SEQUENCE)
            row.leader_epoch = load_i32_be(buf, i + LEADER_EPOCH)
        n += 1
        if size <= SMALL:
            prefetch_until(buf, i + AHEAD, i + AHEAD + size)
        i += size
    return n, i, 0


@kernel
def first_bad_crc(buf: NDArray[np.uint8], rows: NDArray[np.void], wanted: NDArray[np.bool_]) -> int:
    """The first wanted batch whose checksum differs, -1 if all are right."""
    for n in range(rows.shape[0]):
        row = rows[n]
        if not wanted[n]:
            continue
        position, end = row.position, row.position + row.size
        if row.magic == 2:
            crc = crc32c(buf, position + ATTRIBUTES, end)
        else:
            crc = crc32(buf, position + MAGIC, end)
        if crc != row.crc:
            return n
    return -1
