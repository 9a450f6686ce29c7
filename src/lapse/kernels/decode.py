"""Records of a batch, inflated or plain, to rows of `RECORD`.

`next_record` is the one parser of the house; every kernel that looks into records uses it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lapse.kernels.jit import inlined, kernel
from lapse.kernels.varint import read_varint, read_varlong, skip_varlong

BROKEN = -1
RECORD_BYTES_MIN = 6  # after its length: attributes, two deltas, key and value length, no headers


@inlined
def next_record(
    buf: NDArray[np.uint8], i: int, end: int
) -> tuple[int, int, int, int, int, int, int, int]:
    """The record at buf[i:end].

    Returns (next position or -1 if it does not parse, position of the attributes byte, timestamp
    delta, offset delta, key position, key length, value position, value length); lengths are -1
    for null. Headers are whatever lies between the value and the next position.
    """
    length, body = read_varint(buf, i, end)
    after = body + length
    if body < 0 or length < RECORD_BYTES_MIN or after > end:
        return BROKEN, 0, 0, 0, 0, 0, 0, 0
    timestamp_delta, at = read_varlong(buf, body + 1, after)
    if at < 0:
        return BROKEN, 0, 0, 0, 0, 0, 0, 0
    offset_delta, at = read_varint(buf, at, after)
    if at < 0:
        return BROKEN, 0, 0, 0, 0, 0, 0, 0
    key_length, key = read_varint(buf, at, after)
    if key < 0 or key_length < -1 or key_length > after - key:
        return BROKEN, 0, 0, 0, 0, 0, 0, 0
    at = key + max(key_length, 0)
    value_length, value = read_varint(buf, at, after)
    if value < 0 or value_length < -1 or max(value_length, 0) >= after - value:
        return BROKEN, 0, 0, 0, 0, 0, 0, 0  # ">=": at least the header count follows the value
    return after, body, timestamp_delta, offset_delta, key, key_length, value, value_length


@inlined
def next_key(buf: NDArray[np.uint8], i: int, end: int) -> tuple[int, int, int, int]:
    """As `next_record`, stepping over what a map of keys does not ask for.

    Returns (next position or -1, key position, key length, value length).
    """
    length, body = read_varint(buf, i, end)
    after = body + length
    if body < 0 or length < RECORD_BYTES_MIN or after > end:
        return BROKEN, 0, 0, 0
    at = skip_varlong(buf, body + 1, after)
    if at < 0:
        return BROKEN, 0, 0, 0
    at = skip_varlong(buf, at, after)
    if at < 0:
        return BROKEN, 0, 0, 0
    key_length, key = read_varint(buf, at, after)
    if key < 0 or key_length < -1 or key_length > after - key:
        return BROKEN, 0, 0, 0
    value_length, value = read_varint(buf, key + max(key_length, 0), after)
    if value < 0 or value_length < -1 or max(value_length, 0) >= after - value:
        return BROKEN, 0, 0, 0
    return after, key, key_length, value_length


@inlined
def headers_parse(buf: NDArray[np.uint8], i: int, end: int) -> bool:
    """Whether buf[i:end] is a header count and that many headers."""
    count, at = read_varint(buf, i, end)
    if at < 0 or count < 0:
        return False
    for _ in range(count):
        length, at = read_varint(buf, at, end)
        if at < 0 or length < 0 or length > end - at:
            return False
        length, at = read_varint(buf, at + length, end)
        if at < 0 or length < -1 or length > end - at:
            return False
        at += max(length, 0)
    return at == end


@kernel
def decode(buf: NDArray[np.uint8], start: int, end: int, rows: NDArray[np.void]) -> int:
    """Fill all of `rows` (RECORD) from the records in buf[start:end].

    Returns `end`, or -1 - k if record k does not parse, or -1 - len(rows) if bytes are left over.
    """
    i = start
    for n in range(rows.shape[0]):
        after, body, timestamp_delta, offset_delta, key, key_length, value, value_length = (
            next_record(buf, i, end)
        )
        if after < 0:
            return -1 - n
        row = rows[n]
        row.position, row.size, row.attributes = i, after - i, buf[body]
        row.timestamp_delta, row.offset_delta = timestamp_delta, offset_delta
        row.key_position, row.key_length = key, key_length
        row.value_position, row.value_length = value, value_length
        row.headers_position = value + max(value_length, 0)
        i = after
    return end if i == end else -1 - rows.shape[0]


# What a producer's records may have wrong in themselves, in the order Kafka looks.
OK = 0
UNPARSABLE = 1
BAD_OFFSET_DELTA = 2  # not 0, 1, 2 …: only the broker's own rewrites leave gaps
KEYLESS = 3  # no key on a compacted topic (T-7)
BAD_TIMESTAMP = 4  # outside [timestamp_min, timestamp_max] (T-1)


@kernel
def check_records(
    buf: NDArray[np.uint8], start: int, end: int, base_timestamp: int,
    need_key: bool, timestamp_min: int, timestamp_max: int, faults: NDArray[np.uint8],
) -> tuple[int, int, int]:  # fmt: skip
    """Judge a producer's records one by one; `faults` has one byte a record.

    Timestamp -1 (none) is always in range. Returns (faulty records, greatest timestamp or -1,
    tombstones). A record that does not parse ends the walk and faults itself and all after it,
    so do bytes left over (they fault the last record).
    """
    count = faults.shape[0]
    bad = 0
    tombstones = 0
    timestamp_greatest = -1
    i = start
    for n in range(count):
        after, _, timestamp_delta, offset_delta, _, key_length, value, value_length = next_record(
            buf, i, end
        )
        if (
            after < 0
            or (n == count - 1 and after != end)
            or not headers_parse(buf, value + max(value_length, 0), after)
        ):
            faults[n:] = 1
            return bad + count - n, timestamp_greatest, tombstones
        timestamp = base_timestamp + timestamp_delta
        fault = 0
        if offset_delta != n:
            fault = 2
        elif need_key and key_length < 0:
            fault = 3
        elif timestamp != -1 and (timestamp < timestamp_min or timestamp > timestamp_max):
            fault = 4
        faults[n] = fault
        bad += fault != 0
        tombstones += value_length < 0
        timestamp_greatest = max(timestamp_greatest, timestamp)
        i = after
    return bad, timestamp_greatest, tombstones
