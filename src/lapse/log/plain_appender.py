"""Appends of plain batches in few steps, for the event loop.

A batch is plain if `kernels.produce_frame` says so. `begin` says whether it is so to this log, too:
it may be appended, unchanged but for what the log sets, and with one write to an open file. All
else is for `Appender.append`, which also has the words for what it refuses. Between `begin` and
`end` the log's lock is held, so that a request can ask all its logs before it writes to the first.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

from lapse.base.config import TopicConfig
from lapse.base.errors import KafkaError
from lapse.kernels.keep import finish_batch
from lapse.kernels.layout import ATTRIBUTES, LOG_APPEND_TIME, LOG_OVERHEAD
from lapse.log.appender import Appender
from lapse.log.core import LogCore
from lapse.records.batch import Header, as_array
from lapse.records.layout import NO_TIMESTAMP, TimestampType

PLAIN_TYPES = frozenset({"producer", "uncompressed"})
_put_place = struct.Struct(">qii").pack_into  # base offset, length, leader epoch
_put_times = struct.Struct(">hiqq").pack_into  # attributes, last offset delta, both times
_LOG_APPEND_TIME = TimestampType.LOG_APPEND_TIME
_TIME_MIN = -(1 << 63)
_TIME_MAX = (1 << 63) - 1


class PlainBatch(NamedTuple):
    """A row of `kernels.produce_frame`.

    Attributes:
        position: where it lies in the request's buffer, `size` bytes.
        base_time, greatest_time, least_time: ms, -1 for none; the least one of those that have one.
    """

    partition: int
    position: int
    size: int
    records: int
    base_time: int
    greatest_time: int
    least_time: int
    producer_id: int
    producer_epoch: int
    sequence: int
    crc: int
    keyless: int
    tombstones: int
    attributes: int
    topic: int
    topic_size: int


@dataclass(frozen=True, slots=True)
class _Rules:
    """What a topic's settings mean for plain batches.

    Attributes:
        size_max: 0 where none may be appended as it is.
        before_ms, after_ms: how far from now a record's time may be (T-1).
    """

    config: TopicConfig
    size_max: int
    needs_keys: bool
    sets_times: bool
    before_ms: int
    after_ms: int

    @staticmethod
    def of(config: TopicConfig) -> _Rules:
        is_plain = (
            config.compression_type in PLAIN_TYPES
            and config.roll_time != "record"
            and config.message_format_version == 2
            and not config.tombstone_values_enable
        )
        sets_times = config.message_timestamp_type == _LOG_APPEND_TIME
        return _Rules(
            config,
            min(config.max_message_bytes, config.segment_bytes) if is_plain else 0,
            config.compacts,
            sets_times,
            _TIME_MAX if sets_times else config.message_timestamp_before_max_ms,
            _TIME_MAX if sets_times else config.message_timestamp_after_max_ms,
        )


class PlainAppender:
    """Of one open log."""

    def __init__(self, log: LogCore, appender: Appender) -> None:
        self._log, self._appender = log, appender
        self._rules = _Rules.of(log.config)

    def begin(
        self, batch: PlainBatch, leader_epoch: int, now_ms: int, *, may_wait: bool = False
    ) -> Header | None:
        """Take the lock if the batch may be appended right away; its header in this log.

        None where it may not be, or needs more than that; `may_wait`: for the lock, or a sync. A
        caller that gets a header calls `end`.
        """
        log, rules = self._log, self._rules
        if rules.config is not log.config:
            rules = self._rules = _Rules.of(log.config)
        if (
            batch.size > rules.size_max
            or (batch.keyless and rules.needs_keys)
            or batch.least_time < now_ms - rules.before_ms
            or batch.greatest_time > now_ms + rules.after_ms
            or (log.is_syncing and not may_wait)  # a write to a file waits for its sync
            or not log.append_lock.acquire(blocking=may_wait)
        ):
            return None
        header = None
        try:
            header = self._header(batch, leader_epoch, rules.config)
        finally:
            if header is None:
                log.append_lock.release()
        return header

    def _header(self, batch: PlainBatch, leader_epoch: int, config: TopicConfig) -> Header | None:
        """What it will be in the log; None where the log's state is in the way."""
        log, appender = self._log, self._appender
        active, epochs = appender.active, appender.epochs
        base_offset = log.state.log_end_offset
        last_offset = base_offset + batch.records - 1
        if (
            log.is_closed
            or log.offline_reason is not None
            or log.config is not config
            or not leader_epoch == epochs.current == epochs.latest
            or leader_epoch < appender.oldest_epoch
            or epochs.unsaved
            or not active.is_begun
            or not active.size  # or a follower's batch may have it replaced
            or active.must_roll(last_offset, batch.size, config)
        ):
            return None
        header = Header(
            0, batch.size, base_offset, last_offset, batch.base_time, batch.greatest_time,
            batch.producer_id, batch.crc, leader_epoch, batch.sequence, batch.records,
            batch.attributes, batch.producer_epoch, 2,
        )  # fmt: skip
        if batch.producer_id >= 0:
            producers, epoch = appender.producers, batch.producer_epoch
            if batch.attributes and not producers.is_in_transaction(batch.producer_id, epoch):
                return None  # its coordinator has to say that it goes on
            try:
                if producers.check(header, "") is not None:
                    return None  # it is there already
            except KafkaError:
                return None
        return header

    def append(self, header: Header, data: memoryview, tombstones: int, now_ms: int) -> int:
        """Append what `begin` gave the header of; its LogAppendTime, -1 on a CreateTime topic.

        Raises KafkaError KAFKA_STORAGE_ERROR, after which nothing of it is in the log.
        """
        time_ms = NO_TIMESTAMP
        if self._rules.sets_times:
            time_ms = self._appender.append_time_ms(now_ms)
            header = _timed(header, data, time_ms)
        _put_place(data, 0, header.base_offset, header.size - LOG_OVERHEAD, header.leader_epoch)
        self._appender.write_one(header, data, now_ms, tombstones)
        return time_ms

    def end(self) -> None:
        """Give back what `begin` took."""
        self._log.append_lock.release()


def _timed(header: Header, data: memoryview, time_ms: int) -> Header:
    """With the append time in its bytes (T-4)."""
    last_delta = header.last_offset - header.base_offset
    attributes = header.attributes | LOG_APPEND_TIME
    _put_times(data, ATTRIBUTES, attributes, last_delta, header.base_timestamp, time_ms)
    crc = finish_batch(as_array(data), 0, len(data))
    return header._replace(attributes=attributes, max_timestamp=time_ms, crc=crc)
