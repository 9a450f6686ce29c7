"""A whole Fetch request parsed in the buffer that it was read into, and heads of batches found.

For the fast path (`broker.fast`), as `produce_frame`: what is not a plain consumer's request is for
the readable path. Plain is one of version 4 or later, of no replica, without a session or within
one (KIP-227) and then perhaps without topics, without forgotten topics, a rack or tags, with
nothing after its end.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lapse.kernels.jit import kernel
from lapse.kernels.layout import HEADER_SIZE, LAST_OFFSET_DELTA, LENGTH, LOG_OVERHEAD, MAGIC
from lapse.kernels.machine import load_i16_be, load_i32_be, load_i64_be
from lapse.kernels.request_parts import count_at, no_tags, size_at

NOT_PLAIN = -1
KEY = 1
VERSION_MIN = 4  # record format v2, and isolation levels
SESSIONS_FROM, LEADER_EPOCH_FROM, RACK_FROM, FLEXIBLE_FROM = 7, 9, 11, 12
LOG_START_FROM, BY_ID_FROM, REPLICA_STATE_FROM = 5, 13, 15
TOPIC_ID_SIZE = 16
NO_EPOCH = -1

# Columns of a row, one a partition; `topic` is where its topic's name or id is, in the buffer.
PARTITION, LEADER_EPOCH, OFFSET, BYTES_MAX, TOPIC, TOPIC_SIZE = range(6)
COLUMNS = 6

# Words of the head.
(
    VERSION, CORRELATION_ID, CLIENT, CLIENT_SIZE, WAIT_AT, WAIT_MS, BYTES_MIN, BYTES_MAX_IN_ALL,
    ISOLATION, SESSION_ID, SESSION_EPOCH,
) = range(11)  # fmt: skip
HEAD_SIZE = 11
NO_SESSION, NO_SESSION_EPOCH = 0, -1


@kernel
def parse(
    buf: NDArray[np.uint8], start: int, end: int, head: NDArray[np.int64], rows: NDArray[np.int64]
) -> int:
    """Parse the request in buf[start:end], which is its API key and what follows.

    Fills `head` (HEAD_SIZE) and `rows` (COLUMNS each), in the order of the request. Returns the
    number of rows, which is 0 only within a session, or NOT_PLAIN. The client id has the size -1 if
    it is null; WAIT_AT is where the four bytes of WAIT_MS are.
    """
    if start < 0 or end > buf.shape[0] or end - start < 10 or load_i16_be(buf, start) != KEY:
        return NOT_PLAIN
    version = load_i16_be(buf, start + 2)
    if version < VERSION_MIN:
        return NOT_PLAIN
    flexible = version >= FLEXIBLE_FROM
    client_size = load_i16_be(buf, start + 8)
    if client_size < -1 or client_size > end - start - 10:
        return NOT_PLAIN
    head[VERSION], head[CORRELATION_ID] = version, load_i32_be(buf, start + 4)
    head[CLIENT], head[CLIENT_SIZE] = start + 10, client_size
    i = no_tags(buf, start + 10 + max(client_size, 0), end, flexible)
    i = _limits(buf, i, end, version, head)
    topics, i = count_at(buf, i, end, flexible)
    if topics < (1 if head[SESSION_ID] == NO_SESSION else 0):
        return NOT_PLAIN
    n = 0
    for _ in range(topics):
        topic, topic_size = i, TOPIC_ID_SIZE
        if version < BY_ID_FROM:
            topic_size, topic = size_at(buf, i, end, flexible)
        if topic < 0 or topic_size < 1 or topic_size > end - topic:
            return NOT_PLAIN
        partitions, i = count_at(buf, topic + topic_size, end, flexible)
        if partitions < 1 or partitions > rows.shape[0] - n:
            return NOT_PLAIN
        for _ in range(partitions):
            row = rows[n]
            row[TOPIC], row[TOPIC_SIZE] = topic, topic_size
            i = no_tags(buf, _partition(buf, i, end, version, row), end, flexible)
            n += 1
        i = no_tags(buf, i, end, flexible)
    if version >= SESSIONS_FROM:
        forgotten, i = count_at(buf, i, end, flexible)
        if forgotten != 0:
            return NOT_PLAIN
    if version >= RACK_FROM:
        rack_size, i = size_at(buf, i, end, flexible)
        if rack_size != 0:
            return NOT_PLAIN
    return n if no_tags(buf, i, end, flexible) == end else NOT_PLAIN


@kernel
def _limits(buf: NDArray[np.uint8], i: int, end: int, version: int, head: NDArray[np.int64]) -> int:
    """From the replica's id, where there is one, to the session's epoch; what follows, or -1."""
    size = 13 + 4 * (version < REPLICA_STATE_FROM) + 8 * (version >= SESSIONS_FROM)
    if i < 0 or end - i < size:
        return -1
    if version < REPLICA_STATE_FROM:
        if load_i32_be(buf, i) != -1:
            return -1
        i += 4
    head[WAIT_AT] = i
    head[WAIT_MS], head[BYTES_MIN] = load_i32_be(buf, i), load_i32_be(buf, i + 4)
    head[BYTES_MAX_IN_ALL], head[ISOLATION] = load_i32_be(buf, i + 8), np.int64(buf[i + 12])
    i += 13
    head[SESSION_ID], head[SESSION_EPOCH] = NO_SESSION, NO_SESSION_EPOCH
    if version < SESSIONS_FROM:
        return i
    session_id, epoch = load_i32_be(buf, i), load_i32_be(buf, i + 4)
    if (epoch != NO_SESSION_EPOCH) if session_id == NO_SESSION else (epoch <= 0):
        return -1  # it begins a session, or ends one
    head[SESSION_ID], head[SESSION_EPOCH] = session_id, epoch
    return i + 8


@kernel
def _partition(
    buf: NDArray[np.uint8], i: int, end: int, version: int, row: NDArray[np.int64]
) -> int:
    """One partition without its tags; what follows, or -1."""
    size = (
        16
        + 4 * (version >= LEADER_EPOCH_FROM)
        + 4 * (version >= FLEXIBLE_FROM)
        + 8 * (version >= LOG_START_FROM)
    )
    if i < 0 or end - i < size:
        return -1
    row[PARTITION], row[LEADER_EPOCH] = load_i32_be(buf, i), NO_EPOCH
    i += 4
    if version >= LEADER_EPOCH_FROM:
        row[LEADER_EPOCH] = load_i32_be(buf, i)
        i += 4
    row[OFFSET] = load_i64_be(buf, i)
    i += 8
    if version >= FLEXIBLE_FROM:
        if load_i32_be(buf, i) != NO_EPOCH:
            return -1
        i += 4
    if version >= LOG_START_FROM:
        i += 8
    row[BYTES_MAX] = load_i32_be(buf, i)
    return i + 4


@kernel
def find(
    chunk: NDArray[np.uint8], size: int, begin: int, ends_with: int, offset: int
) -> tuple[int, int]:
    """The first batch whose last offset is at least `offset`, in chunk[:size].

    The chunk begins with the batch that an index says to end with offset `ends_with`, of a segment
    that begins at `begin`; at the segment's start `ends_with` is -1. Returns (position, size), or
    (-1, where to go on) if the chunk ends before, or (-1, -1) if the index is wrong or this is
    another format than v2.
    """
    i = 0
    while size - i >= HEADER_SIZE:
        base_offset = load_i64_be(chunk, i)
        batch_size = load_i32_be(chunk, i + LENGTH) + LOG_OVERHEAD
        last_offset = base_offset + load_i32_be(chunk, i + LAST_OFFSET_DELTA)
        if batch_size < HEADER_SIZE or chunk[i + MAGIC] != 2 or last_offset < base_offset:
            return -1, -1
        if i == 0 and ends_with >= 0 and (base_offset < begin or last_offset != ends_with):
            return -1, -1
        if last_offset >= offset:
            return i, batch_size
        i += batch_size
    return -1, i
