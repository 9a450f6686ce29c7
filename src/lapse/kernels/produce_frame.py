"""A whole Produce request judged in the buffer that it was read into.

For the fast path (`broker.fast`): where everything is as it nearly always is, one call says so and
where the batches are. Anything else is "not plain", and the readable path looks at it: it has the
words for what is wrong, and this has none.

Plain is a request of version 3 or later without tags, with nothing after its end, whose every batch
is the only one of its partition's bytes, of format v2, without a codec, of a transaction or not,
but without any other attribute, numbered from 0 as it says, with a right checksum, and whose
records parse and have no time later than the batch says. A batch of a transaction has a producer,
and its request a transactional id. Topics have names, from version 13 on ids of 16 bytes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lapse.kernels.crc32c import crc32c
from lapse.kernels.decode import RECORD_BYTES_MIN, headers_parse, next_record
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
    LENGTH,
    LOG_OVERHEAD,
    MAGIC,
    MAX_TIMESTAMP,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    TRANSACTIONAL,
)
from lapse.kernels.machine import load_i16_be, load_i32_be, load_i64_be
from lapse.kernels.request_parts import count_at, no_tags, size_at

NOT_PLAIN = -1
VERSION_MIN = 3  # record format v2, and a transactional id
FLEXIBLE_FROM, BY_ID_FROM = 9, 13
ID_BYTES = 16

# Columns of a row, one a partition; `topic` is where its topic's name or
# id is, in bytes of the buffer.
(
    PARTITION, POSITION, SIZE, RECORDS, BASE_TIME, GREATEST_TIME, LEAST_TIME, OF_PRODUCER,
    OF_EPOCH, SEQUENCE, CHECKSUM, KEYLESS, TOMBSTONES, ATTRIBUTE_BITS, TOPIC, TOPIC_SIZE,
) = range(16)  # fmt: skip
COLUMNS = 16

NO_TIME = -1
_LATEST = (1 << 63) - 1


@kernel
def judge(
    buf: NDArray[np.uint8], start: int, end: int, rows: NDArray[np.int64]
) -> tuple[int, int, int, int, int, int, int, int, int]:
    """Judge the request in buf[start:end], which is its API key and what follows.

    Fills `rows` (COLUMNS each), in the order of the request. Returns (number of rows or NOT_PLAIN,
    version, correlation id, position and size of the client id, acks, timeout in ms, position and
    size of the transactional id); an id that is null has the size -1. Nothing in the buffer is
    changed.
    """
    no = (NOT_PLAIN, 0, 0, 0, 0, 0, 0, 0, 0)
    if start < 0 or end > buf.shape[0] or end - start < 14:
        return no
    version = load_i16_be(buf, start + 2)
    if load_i16_be(buf, start) != 0 or version < VERSION_MIN:
        return no
    flexible, by_name = version >= FLEXIBLE_FROM, version < BY_ID_FROM
    correlation_id = load_i32_be(buf, start + 4)
    client_size = load_i16_be(buf, start + 8)
    client = start + 10
    if client_size < -1 or client_size > end - client:
        return no
    i = no_tags(buf, client + max(client_size, 0), end, flexible)
    transaction_size, transaction = size_at(buf, i, end, flexible)
    if transaction < 0 or transaction_size < -1 or transaction_size > end - transaction:
        return no
    i = transaction + max(transaction_size, 0)
    if end - i < 6:
        return no
    acks, timeout_ms = load_i16_be(buf, i), load_i32_be(buf, i + 2)
    topics, i = count_at(buf, i + 6, end, flexible)
    n = 0
    for _ in range(topics):
        topic_size, topic = size_at(buf, i, end, flexible) if by_name else (ID_BYTES, i)
        if topic_size < 1 or topic_size > end - topic:
            return no
        partitions, i = count_at(buf, topic + topic_size, end, flexible)
        if partitions < 1 or partitions > rows.shape[0] - n:
            return no
        for _ in range(partitions):
            if end - i < 4:
                return no
            row = rows[n]
            row[PARTITION] = load_i32_be(buf, i)
            row[TOPIC], row[TOPIC_SIZE] = topic, topic_size
            size, position = count_at(buf, i + 4, end, flexible)
            if size < HEADER_SIZE or size > end - position:
                return no
            is_plain = _is_plain(buf, position, size, row)
            if not is_plain or (row[ATTRIBUTE_BITS] and transaction_size < 1):
                return no
            i = no_tags(buf, position + size, end, flexible)
            n += 1
        i = no_tags(buf, i, end, flexible)
    if n == 0 or no_tags(buf, i, end, flexible) != end:
        return no
    return (
        n, version, correlation_id, client, client_size, acks, timeout_ms, transaction,
        transaction_size,
    )  # fmt: skip


@inlined
def _is_plain(buf: NDArray[np.uint8], at: int, size: int, row: NDArray[np.int64]) -> bool:
    """Whether buf[at:at + size], which is a header or more, is one plain batch; its row."""
    count = load_i32_be(buf, at + COUNT)
    producer_id = load_i64_be(buf, at + PRODUCER_ID)
    epoch, sequence = load_i16_be(buf, at + PRODUCER_EPOCH), load_i32_be(buf, at + BASE_SEQUENCE)
    checksum, attributes = (
        load_i32_be(buf, at + CRC) & 0xFFFFFFFF,
        load_i16_be(buf, at + ATTRIBUTES),
    )
    end = at + size
    if (
        load_i64_be(buf, at + BASE_OFFSET) != 0
        or load_i32_be(buf, at + LENGTH) + LOG_OVERHEAD != size
        or buf[at + MAGIC] != 2
        or (attributes != 0 and (attributes != TRANSACTIONAL or producer_id < 0))
        or count < 1
        or load_i32_be(buf, at + LAST_OFFSET_DELTA) != count - 1
        or count * RECORD_BYTES_MIN > size - HEADER_SIZE
        or producer_id < -1
        or (producer_id >= 0 and (epoch < 0 or sequence < 0))
        or np.int64(crc32c(buf, at + ATTRIBUTES, end)) != checksum
    ):
        return False
    base_time = load_i64_be(buf, at + BASE_TIMESTAMP)
    greatest, least = NO_TIME, _LATEST
    keyless = tombstones = 0
    i = at + HEADER_SIZE
    for n in range(count):
        after, _, time_delta, offset_delta, _, key_size, value, value_size = next_record(
            buf, i, end
        )
        if (
            after < 0
            or offset_delta != n
            or not headers_parse(buf, value + max(value_size, 0), after)
        ):
            return False
        time = base_time + time_delta
        greatest = max(greatest, time)
        if time != NO_TIME:
            least = min(least, time)
        keyless += key_size < 0
        tombstones += value_size < 0
        i = after
    if i != end or load_i64_be(buf, at + MAX_TIMESTAMP) != greatest:
        return False
    row[POSITION], row[SIZE], row[RECORDS] = at, size, count
    row[BASE_TIME], row[GREATEST_TIME], row[LEAST_TIME] = base_time, greatest, least
    row[OF_PRODUCER], row[OF_EPOCH], row[SEQUENCE] = producer_id, epoch, sequence
    row[CHECKSUM], row[KEYLESS], row[TOMBSTONES] = checksum, keyless, tombstones
    row[ATTRIBUTE_BITS] = attributes
    return True
