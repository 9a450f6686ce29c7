"""One look at all that a Fetch request asks for: what is there now, within the request's limits.

It only reads, and notes which partitions were quiet: a request may be looked at again, or be left
to the readable path. Of a session (KIP-227) only what its client does not know yet is in the
answer, and most of its partitions have nothing new most of the time: those are passed over by one
comparison.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from lapse.broker.fast.fetch_answer import FetchAnswer, Seen
from lapse.broker.fast.led_topics import LedPartition
from lapse.broker.logs.counters import TopicCounters
from lapse.broker.logs.fetch_records import ZSTD_FROM
from lapse.broker.logs.fetch_sessions import SessionPartition
from lapse.kernels.fetch_frame import NO_EPOCH
from lapse.log.plain_reader import NOTHING, PlainReader
from lapse.log.state import BOUNDS, LogState
from lapse.wire.schema.fetch import NOT_SAID

# Some 5 us each: with more the event loop would serve no other request for too long.
PARTITIONS_MAX = 128
# What an answer may hold in memory without having asked for room (`limits.memory`).
HELD_BYTES_MAX = 1 << 20


class Wanted(Protocol):
    """What is fetched of a partition, as `FetchPartition` says it."""

    @property
    def partition(self) -> int: ...
    @property
    def current_leader_epoch(self) -> int: ...
    @property
    def fetch_offset(self) -> int: ...
    @property
    def partition_max_bytes(self) -> int: ...


class Row(NamedTuple):
    """A row of `kernels.fetch_frame`."""

    partition: int
    current_leader_epoch: int
    fetch_offset: int
    partition_max_bytes: int
    topic: int
    topic_size: int


class Terms(NamedTuple):
    """What holds for all partitions of a request; `bytes_max` for all of them together."""

    version: int
    is_committed: bool
    bytes_max: int


class Look:
    """What it has found so far.

    Attributes:
        size: bytes of records in it.
        given: how many of them are of which topic.
        told: of a session, what its client then knows.
    """

    def __init__(self, reader: PlainReader, terms: Terms) -> None:
        self._reader, self._terms = reader, terms
        self.answer = FetchAnswer(terms.version)
        self.size = self._held = 0
        self.given: list[tuple[TopicCounters, int]] = []
        self.told: list[tuple[SessionPartition, Seen]] = []

    def at_all(self, asked: Iterable[tuple[LedPartition, Row]]) -> bool:
        """The answer names each of these; False where the readable path is to look instead."""
        topic = -1
        for led, row in asked:
            if row.topic != topic:
                topic = row.topic
                self.answer.begin(led.topic)
            seen = self._read(led, led.log.state, row)
            if seen is None:
                return False
            self._add(led, row, seen)
        return True

    def at_news(self, partitions: Iterable[SessionPartition]) -> bool:
        """The same of a session: the answer names those of which there is something new."""
        topic, is_begun = None, False
        for one in partitions:
            led: LedPartition = one.prepared()
            if led.topic is not topic:
                topic, is_begun = led.topic, False
            state = led.log.state
            if state[BOUNDS] == one.quiet:
                continue
            asked = one.requested
            if asked.last_fetched_epoch >= 0 or asked.high_watermark != NOT_SAID:
                return False
            seen = self._read(led, state, asked)
            if seen is None or len(self.told) == PARTITIONS_MAX:
                return False
            known = one.high_watermark, one.log_start_offset
            if seen.size or known != (seen.high_watermark, seen.log_start_offset):
                if not is_begun:
                    self.answer.begin(topic)
                    is_begun = True
                self._add(led, asked, seen)
                self.told.append((one, seen))
            elif seen.is_at_end:
                one.quiet = state[BOUNDS]
        return True

    def _add(self, led: LedPartition, wanted: Wanted, seen: Seen) -> None:
        if seen.size:
            self.size += seen.size
            self._held += len(seen.records) if isinstance(seen.records, bytes) else 0
            self.given.append((led.topic.counters, seen.size))
        self.answer.add(wanted.partition, seen, is_committed=self._terms.is_committed)

    def _read(self, led: LedPartition, state: LogState, wanted: Wanted) -> Seen | None:
        """None where the readable path is to look."""
        terms, log = self._terms, led.log
        if wanted.current_leader_epoch not in {NO_EPOCH, led.leader_epoch}:
            return None
        stable, high_watermark = state.last_stable_offset, state.high_watermark
        upper = stable if terms.is_committed else high_watermark
        offset, start = wanted.fetch_offset, state.log_start_offset
        if offset >= upper:
            if offset > state.log_end_offset:
                return None
            return Seen(high_watermark, stable, start, NOTHING, 0, is_at_end=True)
        active, config = state.segments[-1], log.config
        if (
            offset < start
            or self._held > HELD_BYTES_MAX
            or (terms.is_committed and active.may_have_aborts)
            or (terms.version < ZSTD_FROM and config.compression_type == "zstd")
            or (config.compacts and log.may_hold_valued_tombstones)
            or (start > active.base_offset and log.start_moves)
        ):
            return None
        bytes_max = max(min(wanted.partition_max_bytes, terms.bytes_max - self.size), 0)
        found = self._reader.read(state, offset, bytes_max, upper, one_at_least=not self.size)
        if found is None:
            return None
        size = len(found) if isinstance(found, bytes) else found.size
        return Seen(high_watermark, stable, start, found, size)
