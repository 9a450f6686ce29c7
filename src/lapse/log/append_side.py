"""The appending side of a log: what a leader writes, what a follower takes over, and rolling.

Everything here happens under the log's one lock and ends in one write to the active segment. An
append of a plain batch is the busiest code path: work that only transactions, markers, old formats
or odd clocks need costs it one test each.

`delete_side` adds what deletes, `PartitionLog` what syncs and replaces.
"""

from __future__ import annotations

import logging
import struct
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from lapse.base.config import TopicConfig
from lapse.base.errors import CorruptData, ErrorCode, KafkaError, LapseError, StorageError
from lapse.base.fs import Buffer
from lapse.base.ids import TopicPartition
from lapse.kernels.keep import finish_batch
from lapse.kernels.layout import (
    BASE_OFFSET,
    LEADER_EPOCH,
    LOG_APPEND_TIME,
    MAX_TIMESTAMP,
    TRANSACTIONAL,
)
from lapse.log.append_clock import LogClock
from lapse.log.env import LogEnv
from lapse.log.loader import LoadedLog, OpenOptions
from lapse.log.markers import EndMarker, build_marker, is_marker, parse_marker
from lapse.log.producers import EndedTxn, Producer, SentBatch
from lapse.log.read_side import ReadableLog, Unstable
from lapse.log.refusal import Refusal, refused
from lapse.log.replay import write_snapshot
from lapse.log.roll import age_limit_ms, jitter_of
from lapse.log.segment import OFFSET_MAX, RELATIVE_OFFSET_MAX, ActiveSegment
from lapse.records.as_sent import AsSent
from lapse.records.batch import (
    Header,
    as_array,
    first_offset,
    headers_of,
    row_of,
    scan_batches,
)
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.convert import to_messages
from lapse.records.layout import NO_TIMESTAMP, TimestampType
from lapse.records.timestamps import append_time_ms
from lapse.records.validate import CheckedBatch

_NO_MARKERS: Mapping[int, EndMarker] = {}
_put_i64 = struct.Struct(">q").pack_into
_put_i32 = struct.Struct(">i").pack_into

_log = logging.getLogger(__name__)


class Appended(NamedTuple):
    """The result of an append, for the produce response.

    Attributes:
        log_append_time_ms: -1 on a CreateTime topic.
        duplicate: nothing was written; these are the offsets of the first sending.
    """

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    duplicate: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Opening:
    """The parts of an open log: its files are in order, and `loaded` holds them."""

    dir: Path
    partition: TopicPartition
    config: TopicConfig
    env: LogEnv
    loaded: LoadedLog
    options: OpenOptions


class AppendableLog(ReadableLog):
    """An open log, as far as it grows.

    Attributes:
        dir: its directory.
        config: the topic's settings in force.
        recovery_point: everything below it is synced, or below the log start.
        offline_reason: why it takes no more changes; None while it does.
        refusal: why it takes no writes just now; None while it does.
    """

    def __init__(self, opening: Opening) -> None:
        """Open a log whose files are in order."""
        loaded, options, env = opening.loaded, opening.options, opening.env
        super().__init__(opening.partition, loaded)
        self.dir = opening.dir
        self.config = opening.config
        self.offline_reason: str | None = None
        self.refusal: Refusal | None = None
        self._env = env
        self._producer_id_expiration_ms = options.producer_id_expiration_ms
        self._lock = threading.RLock()
        self._active = loaded.active
        self._producers = loaded.producers
        self._epochs = loaded.epochs
        self._keeper = loaded.keeper
        self._append_time_last_ms = max(s.summary.append_time_greatest_ms for s in self._segments)
        self._append_time_ahead_ms = 0
        summaries = (s.summary for s in self._segments)
        self._clock = LogClock(env.clock, summaries, options.believed_ms, env.clock_jump_max_ms)
        # What recovery wrote or found unsynced is synced by the first flush.
        self.recovery_point = min(options.recovery_point, self._end_offset)
        self._unflushed = [s for s in loaded.sealed if s.end_offset > self.recovery_point]
        self._closed = False
        self._is_syncing = False

    # --- append ----------------------------------------------------------------------------------

    def append(
        self,
        checked: CheckedBatch,
        *,
        leader_epoch: int,
        now_ms: int,
        verified_at: int | None = None,
    ) -> Appended:
        """Append a producer's batch: sequence checks, offsets, one write.

        `verified_at`: the log end before its transaction was found going on; None: not checked.

        Raises KafkaError: what `Producers.check` refuses, RECORD_LIST_TOO_LARGE, or
        KAFKA_STORAGE_ERROR, after which nothing of the batch is in the log.
        """
        header, data, time_ms = checked.header, checked.data, checked.log_append_time_ms
        with self._lock:
            if self._closed or self.offline_reason is not None:
                self._require_online()
            if header.size > self.config.segment_bytes:
                raise self._too_large(header.size)
            if checked.sent is not None:
                return self._append_as_sent(checked, checked.sent, now_ms)
            if header.producer_id >= 0:
                sent = self._producers.check(header, str(self.partition))
                if sent is not None:
                    return self._duplicate(sent)
                if verified_at is not None and header.attributes & TRANSACTIONAL:
                    where = str(self.partition)
                    self._producers.check_verified(header.producer_id, verified_at, where)
            if time_ms >= 0:
                time_ms, crc = self._restamp(data, time_ms, header.crc)
                header = header._replace(max_timestamp=time_ms, crc=crc)
            base_offset = self._end_offset
            last_offset = base_offset + header.last_offset - header.base_offset
            batch = Header(  # `_replace` takes twice as long
                0, header.size, base_offset, last_offset, header.base_timestamp,
                header.max_timestamp, header.producer_id, header.crc, leader_epoch,
                header.base_sequence, header.count, header.attributes, header.producer_epoch,
                header.magic,
            )  # fmt: skip
            _put_i64(data, BASE_OFFSET, base_offset)
            _put_i32(data, LEADER_EPOCH, leader_epoch)
            if checked.write_magic < 2:
                self._write_messages(batch, checked, now_ms)
            else:
                self._write((batch,), data, now_ms, (checked.tombstones,))
            return Appended(base_offset, last_offset, time_ms, self._log_start_offset)

    def try_begin(self, size: int) -> bool:
        """Take the lock if appending that many bytes now is one write to an open file.

        For the event loop, which waits for no lock, roll, summary or checkpoint. A caller that gets
        True appends and then calls `end`.
        """
        # A write to a file that is being synced waits for that.
        if self._is_syncing or not self._lock.acquire(blocking=False):
            return False
        config = self.config
        is_quick = (
            self._active.is_begun
            and config.roll_time != "record"
            and config.message_format_version == 2
            and not self._epochs.unsaved
            and self._epochs.latest == self._epochs.current
            and not self._active.must_roll(
                self._end_offset + size,  # a record has a byte or more
                size,
                config.segment_bytes,
                config.segment_index_bytes,
            )
        )
        if not is_quick:
            self._lock.release()
        return is_quick

    def end(self) -> None:
        """Give back what `try_begin` took."""
        self._lock.release()

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        commit: bool,
        coordinator_epoch: int,
        *,
        leader_epoch: int,
        now_ms: int,
    ) -> Appended:
        """End a transaction for its coordinator, also one without data in this log.

        Raises KafkaError: INVALID_PRODUCER_EPOCH or TRANSACTION_COORDINATOR_FENCED where a newer
        epoch was seen here, KAFKA_STORAGE_ERROR.
        """
        with self._lock:
            self._require_online()
            where = str(self.partition)
            self._producers.check_marker(producer_id, producer_epoch, coordinator_epoch, where)
            kind = TimestampType(self.config.message_timestamp_type)
            time_ms = NO_TIMESTAMP
            if kind is TimestampType.LOG_APPEND_TIME:
                time_ms = self._append_time_ms(now_ms)
            base_offset = self._end_offset
            spec = BatchSpec(
                base_offset=base_offset, timestamp_type=kind, append_time=time_ms,
                producer_id=producer_id, producer_epoch=producer_epoch, leader_epoch=leader_epoch,
                transactional=True, control=True,
            )  # fmt: skip
            marker = EndMarker(commit, coordinator_epoch)
            data = build_marker(marker, now_ms, spec)
            rows = headers_of(scan_batches(data, where))
            self._write(rows, data, now_ms, (0,), {base_offset: marker})
            return Appended(base_offset, base_offset, time_ms, self._log_start_offset)

    def append_own(
        self,
        records: Sequence[NewRecord],
        spec: BatchSpec,
        *,
        now_ms: int,
        verified_at: int | None = None,
    ) -> Appended:
        """Append a coordinator's records as one batch; no sequence is checked.

        Raises KafkaError: INVALID_PRODUCER_EPOCH where its producer was here with a newer one,
        INVALID_TXN_STATE where it had a marker since `verified_at`, MESSAGE_TOO_LARGE,
        RECORD_LIST_TOO_LARGE, KAFKA_STORAGE_ERROR.
        """
        where = str(self.partition)
        with self._lock:
            self._require_online()
            base_offset = self._end_offset
            data = build_batch(records, replace(spec, base_offset=base_offset))
            rows = headers_of(scan_batches(data, where, check_crc=False))
            if len(data) > self.config.max_message_bytes:
                reason = f"max.message.bytes is {self.config.max_message_bytes}"
                raise KafkaError(
                    ErrorCode.MESSAGE_TOO_LARGE, f"{where}: {len(data)} bytes, {reason}"
                )
            if len(data) > self.config.segment_bytes:
                raise self._too_large(len(data))
            self._producers.check_epoch(spec.producer_id, spec.producer_epoch, where)
            if verified_at is not None:
                self._producers.check_verified(spec.producer_id, verified_at, where)
            nulls = sum(record.value is None for record in records)
            self._write(rows, data, now_ms, (nulls,))
            last_offset = base_offset + len(records) - 1
            return Appended(base_offset, last_offset, NO_TIMESTAMP, self._log_start_offset)

    def append_raw(self, batches: Buffer, *, now_ms: int | None = None) -> Appended:
        """Append batches as they are, as a follower does: offsets, epochs, sequences and all.

        Raises CorruptData where they do not parse or do not continue the log.
        """
        where = str(self.partition)
        rows = headers_of(scan_batches(batches, where))
        if not rows:
            raise CorruptData(where, 0, "no batch to append")
        firsts = [first_offset(batches, batch, where) for batch in rows]
        markers = {}
        for batch in filter(is_marker, rows):
            marker = parse_marker(batches[batch.position : batch.position + batch.size], where)
            if marker is not None:
                markers[batch.base_offset] = marker
        with self._lock:
            self._require_online()
            expected = self._end_offset
            for batch, first in zip(rows, firsts, strict=True):
                ascends = expected <= first <= batch.last_offset < OFFSET_MAX
                if not ascends or batch.last_offset - first > RELATIVE_OFFSET_MAX:
                    reason = f"offset {first} where {expected} or more is expected"
                    raise CorruptData(where, batch.position, reason)
                expected = batch.last_offset + 1
            now = self._env.clock.now_ms() if now_ms is None else now_ms
            for run, first in _runs(rows, firsts):
                start, end = run[0].position, run[-1].position + run[-1].size
                data = batches if len(run) == len(rows) else batches[start:end]
                self._write(run, data, now, [-1] * len(run), markers, first=first)
            return Appended(
                rows[0].base_offset, rows[-1].last_offset, NO_TIMESTAMP, self._log_start_offset
            )

    def _append_as_sent(self, checked: CheckedBatch, sent: AsSent, now_ms: int) -> Appended:
        """Messages of the topic's own old format, numbered and timed."""
        time_ms, base_offset = checked.log_append_time_ms, self._end_offset
        if time_ms >= 0:
            time_ms = self._append_time_ms(time_ms)
        messages = sent.placed(base_offset, time_ms)
        self._write_old(messages, checked.tombstones, now_ms)
        last_offset = base_offset + len(sent.records) - 1
        return Appended(base_offset, last_offset, time_ms, self._log_start_offset)

    def _write_messages(self, batch: Header, checked: CheckedBatch, now_ms: int) -> None:
        """A batch in the old format that the topic's message.format.version asks for."""
        where = str(self.partition)
        row = row_of(batch)
        messages = to_messages(checked.data, row, checked.write_magic, where)
        self._write_old(messages, checked.tombstones, now_ms)

    def _write_old(self, messages: Buffer, tombstones: int, now_ms: int) -> None:
        if len(messages) > self.config.segment_bytes:
            raise self._too_large(len(messages))
        rows = headers_of(scan_batches(messages, str(self.partition), check_crc=False))
        nulls = [tombstones, *[0] * (len(rows) - 1)]  # only their sum is used
        self._write(rows, messages, now_ms, nulls)

    def _write(
        self,
        batches: Sequence[Header],
        data: Buffer,
        now_ms: int,
        tombstones: Sequence[int],
        markers: Mapping[int, EndMarker] = _NO_MARKERS,
        *,
        first: int = 0,
    ) -> None:
        """Put batches, which are `data`, at the end of the log and take note of them.

        `first` is the first offset in them where that leaves a gap.
        """
        config, active = self.config, self._active
        now_ms = self._clock.tick(now_ms)
        try:
            if active.must_roll(
                batches[-1].last_offset, len(data), config.segment_bytes, config.segment_index_bytes
            ) or (config.roll_time == "record" and self._is_old_for(batches, now_ms)):
                self._roll(max(first, self._end_offset))  # T-22
                active = self._active
            for batch in batches:
                if batch.leader_epoch > self._epochs.latest:
                    self._epochs.assign(batch.leader_epoch, batch.base_offset)
            if self._epochs.unsaved:
                self._epochs.save()
            active.append(
                batches, data, now_ms=now_ms, interval_bytes=config.index_interval_bytes,
                tombstones=tombstones, markers=markers,
            )  # fmt: skip
        except Exception as e:
            self._undo(e, now_ms, len(data))
            if isinstance(e, StorageError):
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.partition}: {e}") from e
            raise
        for batch in batches:
            if (
                batch.attributes & LOG_APPEND_TIME
                and batch.max_timestamp > self._append_time_last_ms
            ):
                self._append_time_last_ms = batch.max_timestamp
            if batch.producer_id >= 0:
                ended = self._producers.update(batch, markers.get(batch.base_offset))
                if batch.attributes & TRANSACTIONAL:
                    self._note_unstable(ended, active.end_offset)
        self.refusal = None
        self._end_offset = active.end_offset  # last: what is above is not to be seen before

    def _note_unstable(self, ended: EndedTxn | None, end_offset: int) -> None:
        """Update the transactions that hold the last stable offset back at `end_offset`."""
        open_first, completed = self._producers.first_unstable_offset, self._unstable.completed
        if ended is not None:
            if ended.aborted is not None:
                self._active.add_aborted(ended.aborted)
            completed = (*completed, (ended.first_offset, ended.last_offset))
        if completed:
            known = self._high_watermark
            seen = end_offset if known is None else min(known, end_offset)
            completed = tuple(txn for txn in completed if txn[1] >= seen)
        if ended is not None or open_first != self._unstable.open_first:
            self._unstable = Unstable(open_first, completed)

    # --- append time -----------------------------------------------------------------------------

    def _append_time_ms(self, now_ms: int) -> int:
        """L12: the LogAppendTime to write now."""
        last_ms = self._append_time_last_ms
        jump_max_ms = self._env.clock_jump_max_ms
        now_ms = self._clock.reached_ms(now_ms)  # retention and rounds go by that time
        time_ms = append_time_ms(now_ms, last_ms, jump_max_ms)
        if time_ms < last_ms:
            if not self._append_time_ahead_ms:
                _log.warning(
                    "%s: its last LogAppendTime %d is %d ms ahead of the clock, more than "
                    "lapse.clock.jump.max.ms = %d: append times go on from %d",
                    self.partition, last_ms, last_ms - now_ms, jump_max_ms, now_ms,
                )  # fmt: skip
            self._append_time_ahead_ms = last_ms - now_ms
            self._append_time_last_ms = time_ms
        return time_ms

    def _restamp(self, data: Buffer, stamped_ms: int, crc: int) -> tuple[int, int]:
        """The append time that the batch gets, which was stamped before, and its checksum."""
        time_ms = self._append_time_ms(stamped_ms)
        if time_ms != stamped_ms:
            _put_i64(data, MAX_TIMESTAMP, time_ms)
            crc = finish_batch(as_array(data), 0, len(data))
        return time_ms, crc

    def _undo(self, error: Exception, now_ms: int, size: int) -> None:
        """After a failed write: the log as it was, or offline if that cannot be had."""
        if isinstance(error, StorageError):
            self.refusal = refused(self.refusal, now_ms, size, error)
        try:
            self._active.undo()
        except StorageError as e:
            self._go_offline(e)

    def _duplicate(self, sent: SentBatch) -> Appended:
        append_time = self.config.message_timestamp_type == TimestampType.LOG_APPEND_TIME
        time_ms = sent.timestamp if append_time else NO_TIMESTAMP
        return Appended(
            sent.first_offset, sent.last_offset, time_ms, self._log_start_offset, duplicate=True
        )

    def _too_large(self, size: int) -> KafkaError:
        return KafkaError(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"{self.partition}: the batch has {size} bytes, segment.bytes is "
            f"{self.config.segment_bytes}",
        )

    def _require_online(self) -> None:
        if self._closed:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.partition}: the log is closed")
        if self.offline_reason is not None:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{self.partition}: offline since {self.offline_reason}",
            )

    def _go_offline(self, cause: LapseError) -> None:
        """No change from here on; what can be read is still read. Opening again recovers."""
        if self.offline_reason is None:
            self.offline_reason = str(cause)
            now_ms = self._env.clock.now_ms()
            self.refusal = Refusal(now_ms, self.offline_reason, is_final=True)
            _log.error("%s takes no more changes until opened again: %s", self.partition, cause)

    def forget_refusal(self) -> None:
        """Clear the refusal once the disk has room again: the next append shows whether it has."""
        with self._lock:
            if self.offline_reason is None:
                self.refusal = None

    # --- roll ------------------------------------------------------------------------------------

    def roll(self, now_ms: int) -> bool:
        """Seal the active segment, if anything is in it; `now_ms` is when that was decided."""
        with self._lock:
            self._require_online()
            if not self._active.size:
                return False
            try:
                self._roll(self._end_offset)
            except StorageError as e:
                raise KafkaError(
                    ErrorCode.KAFKA_STORAGE_ERROR, f"{self.partition}: rolling at {now_ms}: {e}"
                ) from e
            return True

    def _is_old_for(self, batches: Sequence[Header], now_ms: int) -> bool:
        """T-20, KIP-32's rule: the time between the first record's time and the newest one's."""
        active = self._active
        if not active.size:
            return False
        first_ms = active.first_batch_max_timestamp
        newest_ms = max(batch.max_timestamp for batch in batches)
        waited_ms = newest_ms - first_ms if first_ms >= 0 else now_ms - active.append_first_ms
        jitter = jitter_of(self.partition, active.base_offset)
        return waited_ms > age_limit_ms(self.config, jitter)

    def _roll(self, base_offset: int) -> None:
        """Raises StorageError with the active segment still in place."""
        old = self._active
        if old.size == 0 and old.base_offset == base_offset:
            return
        sealed = old.seal()
        self._write_snapshot(base_offset)
        self._active = ActiveSegment.create(self.dir, self._env, base_offset)
        self._set_segments((*self._segments[:-1], sealed, self._active))
        self._unflushed.append(sealed)
        self._end_offset = max(self._end_offset, base_offset)
        old.close()

    def _write_snapshot(self, offset: int) -> None:
        write_snapshot(self._env.fs, self.dir, offset, self._producers)

    @property
    def clock_jump_max_ms(self) -> int:
        """lapse.clock.jump.max.ms: what is further ahead was noted by a clock that was wrong."""
        return self._env.clock_jump_max_ms

    def latest_ms(self) -> int:
        """The time an append would be noted with now, or earlier; no believed clock is ahead."""
        with self._lock:
            return self._clock.noted_ms(self._env.clock.now_ms())

    def believe(self, believed_ms: int) -> None:
        """The time that the owner notes by: appends are noted no earlier (`append_clock`)."""
        with self._lock:
            self._clock.believe(believed_ms)

    def is_in_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether the producer has a transaction open here; without the lock, as of about now."""
        return self._producers.is_in_transaction(producer_id, producer_epoch)

    def latest_coordinator_epoch(self) -> int:
        """The greatest that a marker of a remembered producer had; -1 without one."""
        with self._lock:
            return max((p.coordinator_epoch for p in self._producers), default=-1)

    def producers(self) -> tuple[Producer, ...]:
        """Copies of what is remembered of each producer, by producer id."""
        with self._lock:
            return tuple(
                replace(producer, batches=producer.batches[-1:]) for producer in self._producers
            )

    def expire_producers(self, now_ms: int) -> None:
        """Forget producers that were idle for producer.id.expiration.ms."""
        with self._lock:
            self._producers.expire(now_ms, self._producer_id_expiration_ms)


def _runs(
    batches: Sequence[Header], firsts: Sequence[int]
) -> Iterator[tuple[Sequence[Header], int]]:
    """Neighbours that fit into one segment, whose index has 32 bits for an offset; their first."""
    begin = 0
    for n, batch in enumerate(batches):
        if batch.last_offset - firsts[begin] > RELATIVE_OFFSET_MAX:
            yield batches[begin:n], firsts[begin]
            begin = n
    yield batches[begin:], firsts[begin]
