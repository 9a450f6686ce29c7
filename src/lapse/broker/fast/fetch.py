"""Fetch on the fast path: parsed in the read buffer, read from what was just written.

What `api.fetch` answers a consumer without a session, for partitions that this broker leads and
that are read at the end of their logs: there most consumers are. Where less is there than the
client wants to wait for, where a file has to be opened or waited for, and where anything is wrong,
the readable path looks again from the start; nothing has been changed by then.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lapse.broker.api.fetch import READ_COMMITTED
from lapse.broker.fast.fetch_answer import FetchAnswer, Seen
from lapse.broker.fast.led_topics import LedPartition, LedTopic, LedTopics
from lapse.broker.fast.permissions import may
from lapse.broker.logs.fetch_records import ZSTD_FROM
from lapse.broker.request.context import Services, Session
from lapse.kernels.fetch_frame import BY_ID_FROM, COLUMNS, HEAD_SIZE, NO_EPOCH, parse
from lapse.log.plain_reader import NOTHING, PlainReader
from lapse.security.acls import Operation
from lapse.wire.codec import Part
from lapse.wire.schema.fetch import FETCH

# Some 5 us each: with more the event loop would serve no other request for too long.
PARTITIONS_MAX = 128
# What an answer may hold in memory without having asked for room (`limits.memory`).
HELD_BYTES_MAX = 1 << 20


class _Head(NamedTuple):
    """What `parse` says of a request."""

    version: int
    correlation_id: int
    client: int
    client_size: int
    wait_ms: int
    bytes_min: int
    bytes_max: int
    isolation: int


class _Wanted(NamedTuple):
    """A row of `kernels.fetch_frame`."""

    partition: int
    leader_epoch: int
    offset: int
    bytes_max: int
    topic: int
    topic_size: int


class FastFetch:
    """For all connections of one broker, in its event loop."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._topics = LedTopics(services)
        self._reader = PlainReader()
        self._head = np.empty(HEAD_SIZE, np.int64)
        self._rows = np.empty((PARTITIONS_MAX, COLUMNS), np.int64)
        self._versions = FETCH.versions

    def __call__(
        self, buffer: memoryview, array: NDArray[np.uint8], start: int, end: int, session: Session
    ) -> list[Part] | None:
        """The answer's frame to the request in buffer[start:end], in parts; None: it is not plain.

        `array` is the same memory as `buffer`.
        """
        try:
            return self._answer(buffer, array, start, end, session)
        except Exception:  # noqa: BLE001  (the readable path meets it again, and says what it is)
            return None

    def _answer(
        self, buffer: memoryview, array: NDArray[np.uint8], start: int, end: int, session: Session
    ) -> list[Part] | None:
        services = self._services
        count = parse(array, start, end, self._head, self._rows)
        if count < 1 or services.quotas.any or not services.answer_bytes.has_room:
            return None
        head = _Head._make(self._head.tolist())
        if head.version not in self._versions:
            return None
        client_id = str(buffer[head.client : head.client + max(head.client_size, 0)], "utf-8")
        answer, given = FetchAnswer(head.version), []
        bytes_max = left = min(head.bytes_max, services.config.fetch_max_bytes)
        topic: LedTopic | None = None
        at, held = -1, 0
        for row in self._rows[:count].tolist():
            wanted = _Wanted(*row)
            if wanted.topic != at:
                at = wanted.topic
                topic = self._topic(bytes(buffer[at : at + wanted.topic_size]), head, session)
                if topic is None:
                    return None
                answer.begin(topic)
            assert topic is not None
            partition = self._topics.partition(topic, wanted.partition)
            if partition is None:
                return None
            seen = self._read(partition, wanted, head, left, one_at_least=left == bytes_max)
            if seen is None or held > HELD_BYTES_MAX:
                return None
            if seen.size:
                left -= seen.size
                held += len(seen.records) if isinstance(seen.records, bytes) else 0
                given.append((topic.counters, seen.size))
            answer.add(wanted.partition, seen, is_committed=head.isolation == READ_COMMITTED)
        if head.wait_ms > 0 and bytes_max - left < min(head.bytes_min, bytes_max):
            return None
        frame = answer.frame(head.correlation_id)
        for counters, size in given:
            counters.bytes_out += size
        session.client_id, session.muted_ms = client_id, 0
        services.counters.requests[FETCH.name] += 1
        services.counters.fast_requests[FETCH.name] += 1
        return frame

    def _topic(self, name: bytes, head: _Head, session: Session) -> LedTopic | None:
        by_id = head.version >= BY_ID_FROM
        topic = self._topics.by_id(name) if by_id else self._topics.of(name)
        if topic is None or not may(self._services, session, Operation.READ, topic):
            return None
        return topic

    def _read(
        self,
        partition: LedPartition,
        wanted: _Wanted,
        head: _Head,
        left: int,
        *,
        one_at_least: bool,
    ) -> Seen | None:
        """None where the readable path is to look."""
        log = partition.log
        state, config = log.state, log.config
        if wanted.leader_epoch not in {NO_EPOCH, partition.leader_epoch}:
            return None
        stable, high_watermark = state.last_stable_offset, state.high_watermark
        is_committed = head.isolation == READ_COMMITTED
        upper = stable if is_committed else high_watermark
        offset, start = wanted.offset, state.log_start_offset
        if offset >= upper:
            if offset > state.log_end_offset:
                return None
            return Seen(high_watermark, stable, start, NOTHING, 0)
        active = state.segments[-1]
        if (
            offset < start
            or (is_committed and active.may_have_aborts)
            or (head.version < ZSTD_FROM and config.compression_type == "zstd")
            or (config.compacts and log.may_hold_valued_tombstones)
            or (start > active.base_offset and log.start_moves)
        ):
            return None
        bytes_max = max(min(wanted.bytes_max, left), 0)
        found = self._reader.read(state, offset, bytes_max, upper, one_at_least=one_at_least)
        if found is None:
            return None
        size = len(found) if isinstance(found, bytes) else found.size
        return Seen(high_watermark, stable, start, found, size)
