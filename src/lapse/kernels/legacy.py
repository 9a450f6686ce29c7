"""Messages of formats v0 and v1 to rows of `RECORD`.

A message set, plain on disk or inflated out of a wrapper's value, is one message after the other.
What is put into a row is what the message says; `records.legacy` makes offsets and times of it
that count from the wrapper (T-10 to T-12).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lapse.kernels.crc32 import crc32
from lapse.kernels.jit import kernel
from lapse.kernels.layout import (
    BASE_OFFSET,
    CODEC_MASK,
    LEGACY_ATTRIBUTES,
    LEGACY_CRC,
    LEGACY_SIZES_MIN,
    LENGTH,
    LOG_OVERHEAD,
    MAGIC,
    V0_KEY,
    V1_KEY,
    V1_TIMESTAMP,
)
from lapse.kernels.machine import load_i32_be, load_i64_be

BAD_MESSAGE = -1
BAD_MESSAGE_CRC = -2
NESTED = -3


@kernel
def count_messages(buf: NDArray[np.uint8], start: int, end: int) -> int:
    """Messages in buf[start:end]; -1 if their lengths do not fill it."""
    n = 0
    i = start
    while i + LOG_OVERHEAD <= end:
        size = LOG_OVERHEAD + load_i32_be(buf, i + LENGTH)
        if size < LEGACY_SIZES_MIN[0] or size > end - i:
            return -1
        i += size
        n += 1
    return n if i == end else -1


@kernel
def decode_messages(
    buf: NDArray[np.uint8], start: int, end: int, magic: int, check_crc: bool,
    rows: NDArray[np.void],
) -> int:  # fmt: skip
    """Fill all of `rows` (RECORD) from the messages in buf[start:end], as many as were counted.

    The offset is left in `offset_delta` and the timestamp (-1 in v0) in `timestamp_delta`, both as
    they are in the message; `headers_position` is the end, for there are none. Returns 0,
    or why the message after the last good one is refused: BAD_MESSAGE (a length that does not fit,
    or another magic than the wrapper's), BAD_MESSAGE_CRC, NESTED (a wrapper inside a wrapper).
    """
    key_at = V1_KEY if magic == 1 else V0_KEY
    i = start
    for n in range(rows.shape[0]):
        if i + key_at + 8 > end:
            return -1
        size = LOG_OVERHEAD + load_i32_be(buf, i + LENGTH)
        if size < key_at + 8 or size > end - i or buf[i + MAGIC] != magic:
            return -1
        after = i + size
        if check_crc:
            crc = load_i32_be(buf, i + LEGACY_CRC) & 0xFFFFFFFF
            if crc32(buf, i + MAGIC, after) != crc:
                return -2
        attributes = buf[i + LEGACY_ATTRIBUTES]
        if attributes & CODEC_MASK:
            return -3
        key_length = load_i32_be(buf, i + key_at)
        key = i + key_at + 4
        if key_length < -1 or key_length > after - key - 4:
            return -1
        value = key + max(key_length, 0) + 4
        value_length = load_i32_be(buf, value - 4)
        if value_length < -1 or value + max(value_length, 0) != after:
            return -1
        row = rows[n]
        row.position, row.size, row.attributes = i, size, attributes
        row.offset_delta = load_i64_be(buf, i + BASE_OFFSET)
        row.timestamp_delta = load_i64_be(buf, i + V1_TIMESTAMP) if magic == 1 else -1
        row.key_position, row.key_length = key, key_length
        row.value_position, row.value_length = value, value_length
        row.headers_position = after
        i = after
    return 0 if i == end else -1
