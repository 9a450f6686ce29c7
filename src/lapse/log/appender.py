"""What makes a log grow: what a leader writes, what a follower takes over, and rolling.

Everything here happens under `append_lock` and ends in one write to the active segment, after which
readers get a new state. Work that only transactions, markers, old formats or odd clocks need costs
a plain batch one test each.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import NamedTuple

from lapse.base.errors import CorruptData, ErrorCode, KafkaError, StorageError
from lapse.base.fs import Buffer
from lapse.kernels.keep import finish_batch
from lapse.kernels.layout import (
    BASE_OFFSET,
    LEADER_EPOCH,
    LOG_APPEND_TIME,
    MAX_TIMESTAMP,
    TRANSACTIONAL,
)
from lapse.log.append_clock import LogClock
from lapse.log.append_times import followed_entries, latest_of
from lapse.log.core import LogCore, refused
from lapse.log.epochs import NO_EPOCH
from lapse.log.followed import require_ascending, runs, with_epochs
from lapse.log.loader import LoadedLog, OpenOptions
from lapse.log.markers import EndMarker, build_marker, markers_in
from lapse.log.producers import EndedTxn, SentBatch
from lapse.log.replay import write_snapshot
from lapse.log.roll import age_limit_ms, jitter_of
from lapse.log.segment import (
    OFFSET_MAX,
    SEGMENT_SUFFIXES,
    ActiveSegment,
    OfLeader,
    segment_path,
)
from lapse.log.state import Unstable
from lapse.records.append_times import AppendTimes
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


class Appender:
    """Appends to one open log and rolls it.

    Attributes:
        active: the segment that is written; the last one of the log.
        producers: of the log, as of its end.
        epochs: leader epochs of the log.
        append_time_ahead_ms: by how much the last LogAppendTime is ahead of the clock, where that
            is too far (L12); 0 else.
    """

    def __init__(self, log: LogCore, loaded: LoadedLog, options: OpenOptions) -> None:
        """Continue a log whose files are in order."""
        self._log = log
        self.append_time_ahead_ms = 0
        self.oldest_epoch = NO_EPOCH  # that appends may be of
        self._take(loaded)
        env, summaries = log.env, [s.summary for s in log.state.segments]
        self._clock = LogClock(env.clock, summaries, options.believed_ms, env.clock_jump_max_ms)

    def _take(self, loaded: LoadedLog) -> None:
        self.active, self.producers, self.epochs = loaded.active, loaded.producers, loaded.epochs
        summaries = (segment.summary for segment in self._log.state.segments)
        self._append_time_last_ms = max(s.append_time_greatest_ms for s in summaries)

    def take_up(self, loaded: LoadedLog) -> None:
        """Go on from what a truncation has left; for the holder of `append_lock`."""
        epoch = self.epochs.current
        self._take(loaded)
        self.epochs.current = max(self.epochs.current, epoch)

    # --- who leads -------------------------------------------------------------------------------

    def lead(self, epoch: int) -> None:
        """Lead from now on: appends are of this epoch, older ones are refused."""
        with self._log.append_lock:
            self.oldest_epoch = self.epochs.current = max(self.epochs.current, epoch)

    def follow(self, epoch: int) -> None:
        """Follow a leader of this epoch: what is of an older one is refused from now on.

        The epoch is not noted in the log before a batch of it is there: what the log says of its
        epochs is how a leader finds out where it has left it (KIP-101).
        """
        with self._log.append_lock:
            self.oldest_epoch = max(self.oldest_epoch, epoch)

    def require_current(self, leader_epoch: int) -> None:
        """What began before another broker was elected must not end after it."""
        if leader_epoch < self.oldest_epoch:
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"{self._log.partition}: leader epoch {leader_epoch} is over, it is "
                f"{self.oldest_epoch} now",
            )

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
        log = self._log
        with log.append_lock:
            if log.is_closed or log.offline_reason is not None:
                log.require_online()
            if leader_epoch < self.oldest_epoch:
                self.require_current(leader_epoch)
            if header.size > log.config.segment_bytes:
                raise self._too_large(header.size)
            if checked.sent is not None:
                return self._append_as_sent(checked, checked.sent, leader_epoch, now_ms)
            if header.producer_id >= 0:
                sent = self.producers.check(header, str(log.partition))
                if sent is not None:
                    return self._duplicate(sent)
                if verified_at is not None and header.attributes & TRANSACTIONAL:
                    where = str(log.partition)
                    self.producers.check_verified(header.producer_id, verified_at, where)
            if time_ms >= 0:
                time_ms, crc = self._restamp(data, time_ms, header.crc)
                header = header._replace(max_timestamp=time_ms, crc=crc)
            base_offset = log.state.log_end_offset
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
                self.write((batch,), data, now_ms, (checked.tombstones,))
            return Appended(base_offset, last_offset, time_ms, log.state.log_start_offset)

    def try_begin(self, size: int) -> bool:
        """Take the lock if appending that many bytes now is one write to an open file.

        For the event loop, which waits for no lock, sync, roll, summary or checkpoint. A caller
        that gets True appends and then calls `end`.
        """
        if self._log.is_syncing or not self._log.append_lock.acquire(blocking=False):
            return False
        is_quick = False
        try:
            is_quick = self._is_quick(size)
        finally:
            if not is_quick:
                self._log.append_lock.release()
        return is_quick

    def _is_quick(self, size: int) -> bool:
        config, active = self._log.config, self.active
        end_offset = self._log.state.log_end_offset + size  # a record has a byte or more
        return (
            active.is_begun
            and active.size > 0  # or a follower's batch may have it replaced (`_begin_at`)
            and config.roll_time != "record"
            and config.message_format_version == 2
            and not self.epochs.unsaved
            and self.epochs.latest == self.epochs.current
            and not active.must_roll(end_offset, size, config)
        )

    def end(self) -> None:
        """Give back what `try_begin` took."""
        self._log.append_lock.release()

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
        with self._log.append_lock:
            self._log.require_online()
            self.require_current(leader_epoch)
            where = str(self._log.partition)
            self.producers.check_marker(producer_id, producer_epoch, coordinator_epoch, where)
            kind = TimestampType(self._log.config.message_timestamp_type)
            time_ms = NO_TIMESTAMP
            if kind is TimestampType.LOG_APPEND_TIME:
                time_ms = self.append_time_ms(now_ms)
            base_offset = self._log.state.log_end_offset
            spec = BatchSpec(
                base_offset=base_offset, timestamp_type=kind, append_time=time_ms,
                producer_id=producer_id, producer_epoch=producer_epoch, leader_epoch=leader_epoch,
                transactional=True, control=True,
            )  # fmt: skip
            marker = EndMarker(commit, coordinator_epoch)
            data = build_marker(marker, now_ms, spec)
            rows = headers_of(scan_batches(data, where))
            self.write(rows, data, now_ms, (0,), {base_offset: marker})
            return Appended(base_offset, base_offset, time_ms, self._log.state.log_start_offset)

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
        where = str(self._log.partition)
        with self._log.append_lock:
            self._log.require_online()
            self.require_current(spec.leader_epoch)
            base_offset = self._log.state.log_end_offset
            data = build_batch(records, replace(spec, base_offset=base_offset))
            rows = headers_of(scan_batches(data, where, check_crc=False))
            if len(data) > self._log.config.max_message_bytes:
                reason = f"max.message.bytes is {self._log.config.max_message_bytes}"
                raise KafkaError(
                    ErrorCode.MESSAGE_TOO_LARGE, f"{where}: {len(data)} bytes, {reason}"
                )
            if len(data) > self._log.config.segment_bytes:
                raise self._too_large(len(data))
            self.producers.check_epoch(spec.producer_id, spec.producer_epoch, where)
            if verified_at is not None:
                self.producers.check_verified(spec.producer_id, verified_at, where)
            nulls = sum(record.value is None for record in records)
            self.write(rows, data, now_ms, (nulls,))
            last_offset = base_offset + len(records) - 1
            return Appended(
                base_offset, last_offset, NO_TIMESTAMP, self._log.state.log_start_offset
            )

    def append_raw(
        self,
        batches: Buffer,
        *,
        now_ms: int | None = None,
        leader_epoch: int | None = None,
        append_times: AppendTimes | None = None,
        create_times_kept: bool = True,
        epochs: Sequence[tuple[int, int]] = (),
    ) -> Appended:
        """Append batches as they are, as a follower does: offsets, epochs, sequences and all.

        The first one of an empty log may span its start (D-7). `leader_epoch`: in which they were
        fetched; `append_times`: when the leader appended them, else it is now; `epochs`: of which
        leaders those are that do not say it (old formats). Raises CorruptData where they do not
        continue the log, NOT_LEADER_OR_FOLLOWER where that epoch is over.
        """
        where = str(self._log.partition)
        rows = with_epochs(headers_of(scan_batches(batches, where)), epochs)
        if not rows:
            raise CorruptData(where, 0, "no batch to append")
        firsts = [first_offset(batches, batch, where) for batch in rows]
        markers = markers_in(rows, batches, where)
        may_begin = self._log.state.is_empty
        with self._log.files_lock if may_begin else nullcontext(), self._log.append_lock:
            self._log.require_online()
            if leader_epoch is not None:
                self.require_current(leader_epoch)
            expected = self._log.state.log_end_offset
            spans = firsts[0] < expected <= rows[0].last_offset < OFFSET_MAX
            if spans and may_begin and self._log.state.is_empty:
                self._begin_at(firsts[0])
                expected = firsts[0]
            require_ascending(rows, firsts, expected, where)
            now = self._log.env.clock.now_ms() if now_ms is None else now_ms
            entries: Sequence[int | None] = (
                [None] * len(rows)
                if append_times is None
                else followed_entries(append_times, firsts, now)
            )
            for begin, end in runs(rows, firsts, entries):
                run, entry_ms = rows[begin:end], entries[begin]
                data = batches[run[0].position : run[-1].position + run[-1].size]
                known = None if entry_ms is None else OfLeader(entry_ms, create_times_kept)
                self.write(
                    run, data, now, [-1] * len(run), markers, first=firsts[begin], of_leader=known
                )
            return Appended(
                rows[0].base_offset,
                rows[-1].last_offset,
                NO_TIMESTAMP,
                self._log.state.log_start_offset,
            )

    def _begin_at(self, base_offset: int) -> None:
        """The empty log gets a segment that begins below its start; both locks are held."""
        log, old = self._log, self.active
        if old.base_offset == base_offset:  # the append after it failed, and is made again
            return
        log.keeper.strike([old.base_offset])
        self.active = ActiveSegment.create(log.dir, log.env, base_offset)
        log.state = log.state.with_segments((self.active,))
        log.generation += 1
        old.close()
        for suffix in SEGMENT_SUFFIXES:
            log.env.fs.unlink(segment_path(log.dir, old.base_offset, suffix))

    def _append_as_sent(
        self, checked: CheckedBatch, sent: AsSent, leader_epoch: int, now_ms: int
    ) -> Appended:
        """Messages of the topic's own old format, numbered and timed."""
        time_ms, base_offset = checked.log_append_time_ms, self._log.state.log_end_offset
        if time_ms >= 0:
            time_ms = self.append_time_ms(time_ms)
        messages = sent.placed(base_offset, time_ms)
        self._write_old(messages, checked.tombstones, leader_epoch, now_ms)
        last_offset = base_offset + len(sent.records) - 1
        return Appended(base_offset, last_offset, time_ms, self._log.state.log_start_offset)

    def _write_messages(self, batch: Header, checked: CheckedBatch, now_ms: int) -> None:
        """A batch in the old format that the topic's message.format.version requires."""
        where = str(self._log.partition)
        messages = to_messages(checked.data, row_of(batch), checked.write_magic, where)
        self._write_old(messages, checked.tombstones, batch.leader_epoch, now_ms)

    def _write_old(self, messages: Buffer, tombstones: int, leader_epoch: int, now_ms: int) -> None:
        if len(messages) > self._log.config.segment_bytes:
            raise self._too_large(len(messages))
        found = headers_of(scan_batches(messages, str(self._log.partition), check_crc=False))
        # They have no room for it; followers are told. Where there are none it is as in Kafka.
        is_replicated = self._log.state.known_high_watermark is not None
        epoch = leader_epoch if is_replicated else NO_EPOCH
        rows = [row._replace(leader_epoch=epoch) for row in found]
        nulls = [tombstones, *[0] * (len(rows) - 1)]  # only their sum is used
        self.write(rows, messages, now_ms, nulls)

    def write(
        self,
        batches: Sequence[Header],
        data: Buffer,
        now_ms: int,
        tombstones: Sequence[int],
        markers: Mapping[int, EndMarker] = _NO_MARKERS,
        *,
        first: int = 0,
        of_leader: OfLeader | None = None,
    ) -> None:
        """Put batches, which are `data`, at the end of the log and take note of them.

        `first` is the first offset in them where that leaves a gap.
        """
        log, active = self._log, self.active
        config, epochs = log.config, self.epochs
        if of_leader is None:
            now_ms = self._clock.tick(now_ms)
        else:
            now_ms = self._clock.followed(latest_of(of_leader.entry_ms), now_ms)
        try:
            if active.must_roll(batches[-1].last_offset, len(data), config) or (
                config.roll_time == "record" and self._is_old_for(batches, now_ms)
            ):
                self._roll(max(first, log.state.log_end_offset))  # T-22
                active = self.active
            for batch in batches:
                if batch.leader_epoch > epochs.latest:
                    epochs.assign(batch.leader_epoch, batch.base_offset)
            if epochs.unsaved:
                epochs.save()
            active.append(
                batches, data, now_ms=now_ms, interval_bytes=config.index_interval_bytes,
                tombstones=tombstones, markers=markers, of_leader=of_leader,
            )  # fmt: skip
        except Exception as e:
            self._undo(e, now_ms, len(data))
            raise
        unstable = log.state.unstable
        for batch in batches:
            unstable = self._note(batch, markers.get(batch.base_offset), unstable)
        log.refusal = None
        log.state = log.state.grown_to(active.end_offset, unstable)

    def write_one(self, batch: Header, data: Buffer, now_ms: int, tombstones: int) -> None:
        """`write` of one batch of a producer, where that neither rolls nor begins an epoch."""
        log, active = self._log, self.active
        now_ms = self._clock.tick(now_ms)
        try:
            active.append_one(batch, data, tombstones, now_ms, log.config.index_interval_bytes)
        except Exception as e:
            self._undo(e, now_ms, len(data))
            raise
        unstable = log.state.unstable
        if batch.attributes or batch.producer_id >= 0:
            unstable = self._note(batch, None, unstable)
        log.refusal = None
        log.state = log.state.grown_to(active.end_offset, unstable)

    def _note(self, batch: Header, marker: EndMarker | None, unstable: Unstable) -> Unstable:
        """Take note of a batch's append time, producer and transaction; what is unstable now."""
        if batch.attributes & LOG_APPEND_TIME and batch.max_timestamp > self._append_time_last_ms:
            self._append_time_last_ms = batch.max_timestamp
        if batch.producer_id >= 0:
            ended = self.producers.update(batch, marker)
            if batch.attributes & TRANSACTIONAL:
                return self._unstable_after(unstable, ended)
        return unstable

    def _unstable_after(self, before: Unstable, ended: EndedTxn | None) -> Unstable:
        """The transactions that hold the last stable offset back, with all that was written."""
        open_first, completed = self.producers.first_unstable_offset, before.completed
        if ended is not None:
            if ended.aborted is not None:
                self.active.txn_index.append(ended.aborted)  # written with the side files
            completed = (*completed, (ended.first_offset, ended.last_offset))
        if completed:
            end_offset, known = self.active.end_offset, self._log.state.known_high_watermark
            seen = end_offset if known is None else min(known, end_offset)
            completed = tuple(txn for txn in completed if txn[1] >= seen)
        if ended is None and open_first == before.open_first:
            return before
        return Unstable(open_first, completed)

    # --- append time -----------------------------------------------------------------------------

    def append_time_ms(self, now_ms: int) -> int:
        """L12: the LogAppendTime to write now."""
        last_ms = self._append_time_last_ms
        jump_max_ms = self._log.env.clock_jump_max_ms
        now_ms = self._clock.reached_ms(now_ms)  # retention and rounds go by that time
        time_ms = append_time_ms(now_ms, last_ms, jump_max_ms)
        if time_ms < last_ms:
            if not self.append_time_ahead_ms:
                _log.warning(
                    "%s: its last LogAppendTime %d is %d ms ahead of the clock, more than "
                    "lapse.clock.jump.max.ms = %d: append times go on from %d",
                    self._log.partition, last_ms, last_ms - now_ms, jump_max_ms, now_ms,
                )  # fmt: skip
            self.append_time_ahead_ms = last_ms - now_ms
            self._append_time_last_ms = time_ms
        return time_ms

    def _restamp(self, data: Buffer, stamped_ms: int, crc: int) -> tuple[int, int]:
        """The append time that the batch gets, which was stamped before, and its checksum."""
        time_ms = self.append_time_ms(stamped_ms)
        if time_ms != stamped_ms:
            _put_i64(data, MAX_TIMESTAMP, time_ms)
            crc = finish_batch(as_array(data), 0, len(data))
        return time_ms, crc

    def _undo(self, error: Exception, now_ms: int, size: int) -> None:
        """After a failed write: the log as it was, or offline if that cannot be had.

        Raises KafkaError KAFKA_STORAGE_ERROR in a StorageError's place.
        """
        log = self._log
        if isinstance(error, StorageError):
            log.refusal = refused(log.refusal, now_ms, size, error)
        try:
            self.active.undo()
        except StorageError as e:
            log.go_offline(e)
        if isinstance(error, StorageError):
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{log.partition}: {error}") from error

    def _duplicate(self, sent: SentBatch) -> Appended:
        append_time = self._log.config.message_timestamp_type == TimestampType.LOG_APPEND_TIME
        time_ms = sent.timestamp if append_time else NO_TIMESTAMP
        start = self._log.state.log_start_offset
        return Appended(sent.first_offset, sent.last_offset, time_ms, start, duplicate=True)

    def _too_large(self, size: int) -> KafkaError:
        return KafkaError(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"{self._log.partition}: the batch has {size} bytes, segment.bytes is "
            f"{self._log.config.segment_bytes}",
        )

    # --- roll ------------------------------------------------------------------------------------

    def roll(self, now_ms: int) -> bool:
        """Seal the active segment, if anything is in it; `now_ms` is when that was decided."""
        with self._log.append_lock:
            self._log.require_online()
            if not self.active.size:
                return False
            try:
                self._roll(self._log.state.log_end_offset)
            except StorageError as e:
                raise KafkaError(
                    ErrorCode.KAFKA_STORAGE_ERROR,
                    f"{self._log.partition}: rolling at {now_ms}: {e}",
                ) from e
            return True

    def roll_at(self, base_offset: int) -> None:
        """Begin a segment above the end: what lies between is no longer anywhere."""
        with self._log.append_lock:
            self._roll(base_offset)

    def _is_old_for(self, batches: Sequence[Header], now_ms: int) -> bool:
        """T-20, KIP-32's rule: the time between the first record's time and the newest one's."""
        active = self.active
        if not active.size:
            return False
        first_ms = active.first_batch_max_timestamp
        newest_ms = max(batch.max_timestamp for batch in batches)
        waited_ms = newest_ms - first_ms if first_ms >= 0 else now_ms - active.append_first_ms
        jitter = jitter_of(self._log.partition, active.base_offset)
        return waited_ms > age_limit_ms(self._log.config, jitter)

    def _roll(self, base_offset: int) -> None:
        """Raises StorageError with the active segment still in place, and no other."""
        old = self.active
        if old.size == 0 and old.base_offset == base_offset:
            return
        sealed, log = old.seal(), self._log
        write_snapshot(log.env.fs, log.dir, base_offset, self.producers)
        self.active = ActiveSegment.create(log.dir, log.env, base_offset)
        state = log.state.with_segments((*log.state.segments[:-1], sealed, self.active))
        log.state = state.grown_to(max(state.log_end_offset, base_offset), state.unstable)
        log.unflushed.append(sealed)
        old.close()

    # --- the append clock ------------------------------------------------------------------------

    def latest_ms(self) -> int:
        """The time an append would be noted with now, or earlier; no believed clock is ahead."""
        with self._log.append_lock:
            return self._clock.noted_ms(self._log.env.clock.now_ms())

    def believe(self, believed_ms: int) -> None:
        """The time that the owner notes by: appends are noted no earlier (`append_clock`)."""
        with self._log.append_lock:
            self._clock.believe(believed_ms)
