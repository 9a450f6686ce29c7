"""One partition's log: the façade over its segments, and the only thing that changes them.

One lock guards appends, rolls and everything that changes the segment list; `_files_lock`, taken
before it, keeps names of files stable while they are synced. Readers (`read_side`) take neither.
`generation` moves when files change under a plan's feet (DESIGN §1).

Called by the broker's partitions (append, read), its housekeeping (roll, flush, deletion, sweeps)
and the committing end of a round (`replace_segments`). Knows no clock but the times it is given,
save for the delay of `.deleted` files.
"""

from __future__ import annotations

import contextlib
import struct
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from lapse.base.config import TopicConfig
from lapse.base.errors import (
    CorruptData,
    ErrorCode,
    KafkaError,
    LapseError,
    StaleGeneration,
    StorageError,
)
from lapse.base.fs import Buffer
from lapse.base.ids import TopicPartition
from lapse.kernels.layout import BASE_OFFSET, LEADER_EPOCH, TRANSACTIONAL
from lapse.log import swap
from lapse.log.env import LogEnv
from lapse.log.facts import LogFacts, SegmentFacts
from lapse.log.headers import Header, headers_of
from lapse.log.loader import LoadedLog, OpenOptions, load
from lapse.log.producers import SentBatch
from lapse.log.read_side import ReadableLog
from lapse.log.segment import (
    INDEX,
    LOG,
    SNAPSHOT,
    TIME_INDEX,
    ActiveSegment,
    Segment,
    mtime_ms_of,
    segment_path,
)
from lapse.log.summary import Summary, summary_path
from lapse.records.batch import scan_batches
from lapse.records.layout import NO_TIMESTAMP, TimestampType
from lapse.records.validate import CheckedBatch

_GENERATION_BITS = 10  # a reopened log begins far above any generation it had before


@dataclass(frozen=True, slots=True)
class Appended:
    """What a producer is told.

    Attributes:
        log_append_time_ms: -1 on a CreateTime topic.
        duplicate: nothing was written; these are the offsets of the first sending.
    """

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    duplicate: bool = False


class PartitionLog(ReadableLog):
    """An open log.

    Attributes:
        dir: its directory.
        config: the topic's settings in force; changed by `update_config`.
        recovery_point: everything below it is synced.
        cleaner_checkpoint: first dirty offset, kept by the log directory.
        offline_reason: why it takes no more changes; None while it does.
    """

    def __init__(
        self,
        partition_dir: Path,
        partition: TopicPartition,
        config: TopicConfig,
        env: LogEnv,
        loaded: LoadedLog,
        options: OpenOptions,
    ) -> None:
        """Use `open`."""
        super().__init__(partition, loaded)
        self.dir = partition_dir
        self.config = config
        self.cleaner_checkpoint: int | None = None
        self.offline_reason: str | None = None
        self._env = env
        self._producer_id_expiration_ms = options.producer_id_expiration_ms
        self._lock = threading.RLock()
        self._files_lock = threading.RLock()
        self._active = loaded.active
        self._producers = loaded.producers
        self._epochs = loaded.epochs
        self._generation = env.clock.now_ms() << _GENERATION_BITS
        # What recovery wrote or found unsynced is synced by the first flush.
        self.recovery_point = min(options.recovery_point, self._end_offset)
        self._unflushed = [s for s in loaded.sealed if s.end_offset > self.recovery_point]
        self._deleted: dict[Path, int] = {}
        self._closed = False

    @staticmethod
    def open(
        partition_dir: Path,
        partition: TopicPartition,
        config: TopicConfig,
        env: LogEnv,
        *,
        clean_shutdown: bool,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        producer_id_expiration_ms: int = 86_400_000,
    ) -> PartitionLog:
        """Open the log in an existing directory, putting right what a crash left (`loader`)."""
        options = OpenOptions(
            clean_shutdown=clean_shutdown,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            index_interval_bytes=config.index_interval_bytes,
            producer_id_expiration_ms=producer_id_expiration_ms,
        )
        loaded = load(partition_dir, partition, env, options)
        return PartitionLog(partition_dir, partition, config, env, loaded, options)

    @property
    def generation(self) -> int:
        return self._generation

    @property
    def active_append_first_ms(self) -> int:
        """When the active segment got its first batch; -1 while it is empty."""
        return self._active.append_first_ms

    @property
    def leader_epoch(self) -> int:
        """The newest leader epoch in the log; -1 if there is none."""
        return self._epochs.latest

    # --- append ----------------------------------------------------------------------------------

    def append(self, checked: CheckedBatch, *, leader_epoch: int, now_ms: int) -> Appended:
        """Append a producer's batch: sequence checks, offsets, one write.

        Raises KafkaError: the sequence errors of `Producers.check`, RECORD_LIST_TOO_LARGE, or
        KAFKA_STORAGE_ERROR, after which nothing of the batch is in the log.
        """
        row = checked.header
        with self._lock:
            self._require_online()
            self._require_fits(row.size)
            sent = self._producers.check(row, str(self.partition))
            if sent is not None:
                return self._duplicate(sent)
            base_offset = self._end_offset
            batch = row._replace(
                base_offset=base_offset,
                last_offset=base_offset + row.last_offset - row.base_offset,
                leader_epoch=leader_epoch,
            )
            struct.pack_into(">q", checked.data, BASE_OFFSET, base_offset)
            struct.pack_into(">i", checked.data, LEADER_EPOCH, leader_epoch)
            self._write([batch], checked.data, now_ms, [checked.tombstones])
            return Appended(
                base_offset, batch.last_offset, checked.log_append_time_ms, self._log_start_offset
            )

    def append_raw(self, batches: Buffer, *, now_ms: int | None = None) -> Appended:
        """Append batches as they are, as a follower does: offsets, epochs, sequences and all.

        Raises CorruptData where they do not parse or do not continue the log.
        """
        rows = headers_of(scan_batches(batches, str(self.partition)))
        if not rows:
            raise CorruptData(str(self.partition), 0, "no batch to append")
        with self._lock:
            self._require_online()
            expected = self._end_offset
            for batch in rows:
                if batch.base_offset < expected or batch.last_offset < batch.base_offset:
                    reason = f"offset {batch.base_offset} where {expected} or more is expected"
                    raise CorruptData(str(self.partition), batch.position, reason)
                expected = batch.last_offset + 1
            now = self._env.clock.now_ms() if now_ms is None else now_ms
            self._write(rows, batches, now, [-1] * len(rows))
            return Appended(
                rows[0].base_offset, rows[-1].last_offset, NO_TIMESTAMP, self._log_start_offset
            )

    def _write(
        self, batches: Sequence[Header], data: Buffer, now_ms: int, tombstones: Sequence[int]
    ) -> None:
        """Put batches, which are `data`, at the end of the log and take note of them."""
        config = self.config
        try:
            if self._active.must_roll(batches, config.segment_bytes, config.segment_index_bytes):
                self._roll(max(batches[0].base_offset, self._end_offset))  # T-22
            for batch in batches:
                if batch.leader_epoch > self._epochs.latest:
                    self._epochs.assign(batch.leader_epoch, batch.base_offset)
            self._active.append(
                batches, data, now_ms=now_ms, interval_bytes=config.index_interval_bytes,
                tombstones=tombstones,
            )  # fmt: skip
        except StorageError as e:
            self._undo()
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.partition}: {e}") from e
        for batch in batches:
            self._producers.update(batch)
            if batch.attributes & TRANSACTIONAL:
                self._first_unstable_offset = self._producers.first_unstable_offset
        self._end_offset = self._active.end_offset

    def _undo(self) -> None:
        """After a failed write: the log as it was, or offline if that cannot be had."""
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

    def _require_fits(self, size: int) -> None:
        if size > self.config.segment_bytes:
            raise KafkaError(
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

    # --- roll, sync, close -----------------------------------------------------------------------

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

    def _roll(self, base_offset: int) -> None:
        """Raises StorageError with the active segment still in place."""
        old = self._active
        if old.size == 0 and old.base_offset == base_offset:
            return
        sealed = old.seal()
        self._write_snapshot(base_offset)
        self._active = ActiveSegment.create(self.dir, self._env, base_offset)
        self._segments = (*self._segments[:-1], sealed, self._active)
        self._unflushed.append(sealed)
        self._end_offset = max(self._end_offset, base_offset)
        old.close()

    def _write_snapshot(self, offset: int) -> None:
        path = segment_path(self.dir, offset, SNAPSHOT)
        self._env.fs.write_file(path, self._producers.snapshot())

    def flush(self, *, force: bool = False) -> int:
        """Sync everything written so far; returns the new recovery point.

        Appends go on meanwhile. Does nothing if nothing was appended since, unless told to
        `force` (side files may still be unsynced then). Raises StorageError and takes the log
        offline: after a failed sync nobody knows what is on disk.
        """
        with self._files_lock:
            try:
                with self._lock:
                    self._require_online()
                    if self.recovery_point == self._end_offset and not force:
                        return self.recovery_point
                    self._active.write_side_files()
                    sealed, end = tuple(self._unflushed), self._end_offset
                    paths = [p for s in (*sealed, self._active) for p in _synced_paths(s)]
                self._env.fs.sync_all(paths)
                self._env.fs.fsync_dir(self.dir)
            except StorageError as e:
                self._go_offline(e)
                raise
            with self._lock:
                self._unflushed = [s for s in self._unflushed if s not in sealed]
                self.recovery_point = max(self.recovery_point, end)
            return self.recovery_point

    def close(self, *, clean: bool = True) -> None:
        """Give it back; with `clean` its files may be trusted at the next opening."""
        with self._files_lock, self._lock:
            if self._closed:
                return
            if clean and self.offline_reason is None:
                self._active.finish()
                snapshot = segment_path(self.dir, self._end_offset, SNAPSHOT)
                if not snapshot.exists():  # Kafka keeps one that is there, expired producers too
                    self._write_snapshot(self._end_offset)
                self.flush(force=True)
                self._env.fs.fsync_file(snapshot)
            self._active.close()
            self._closed = True

    # --- settings, facts, expiry -----------------------------------------------------------------

    def update_config(self, config: TopicConfig) -> None:
        """New settings; losing `compact` makes every plan stale."""
        with self._lock:
            if self.config.compacts and not config.compacts:
                self._generation += 1
            self.config = config

    def expire_producers(self, now_ms: int) -> None:
        """Forget producers that were idle for producer.id.expiration.ms."""
        with self._lock:
            self._producers.expire(now_ms, self._producer_id_expiration_ms)

    def facts(self) -> LogFacts:
        """A snapshot for deciding; only copies."""
        with self._lock:
            return LogFacts(
                partition=self.partition,
                dir=str(self.dir),
                generation=self._generation,
                log_start_offset=self._log_start_offset,
                log_end_offset=self._end_offset,
                high_watermark=self.high_watermark,
                last_stable_offset=self.last_stable_offset,
                cleaner_checkpoint=self.cleaner_checkpoint,
                segments=tuple(segment_facts(s) for s in self._segments),
                producers=self._producers.last_batches(),
            )

    # --- replace and delete ----------------------------------------------------------------------

    def replace_segments(
        self, replacement: swap.Replacement, generation: int, *, sync: bool = True
    ) -> bool:
        """Swap a round's group in (W-2); False if retention had taken all of it meanwhile (W-3).

        The new files must be synced already; `sync=False` leaves syncing the renames to the
        caller. Raises StaleGeneration; CorruptData if a new file is not what its summary says;
        StorageError, and then the log is as before or, if that is not known, offline.
        """
        with self._files_lock, self._lock:
            self._require_online()
            self._require_generation(generation)
            old = self._replaceable(replacement)
            if not old:
                return False
            for new, summary in zip(replacement.new, replacement.summaries, strict=True):
                _require_size(new, summary)
            fs = self._env.fs
            try:
                swap.prepare(fs, self.dir, replacement)
            except StorageError:
                with contextlib.suppress(StorageError):
                    swap.abandon(fs, self.dir, replacement)
                raise
            for segment in old:
                segment.pin()
            try:
                bases = [s.base_offset for s in old]
                deleted = swap.commit(fs, self.dir, replacement, bases)
                new_segments = [self._sealed(s) for s in replacement.summaries]
                if sync:
                    fs.fsync_dir(self.dir)
            except StorageError as e:
                self._go_offline(e)
                raise
            kept = [s for s in self._segments if s not in old]
            ordered = sorted([*kept, *new_segments], key=lambda s: s.base_offset)
            self._segments = tuple(ordered)
            self._unflushed = [s for s in self._unflushed if s not in old]
            self._generation += 1
            self._schedule(deleted)
            return True

    def _require_generation(self, generation: int) -> None:
        if generation != self._generation:
            raise StaleGeneration(
                f"{self.partition}: its files changed since the plan was made "
                f"(generation {self._generation}, the plan has {generation})"
            )

    def _replaceable(self, replacement: swap.Replacement) -> list[Segment]:
        """The old segments that still exist; raises StaleGeneration unless they are neighbours."""
        wanted = set(replacement.old)
        old = [s for s in self._segments if s.base_offset in wanted]
        if not old:
            return []
        first = self._segments.index(old[0])
        neighbours = list(self._segments[first : first + len(old)]) == old
        below = replacement.new[0].base_offset if replacement.new else replacement.old[0]
        if not neighbours or old[-1].active or below < replacement.old[0]:
            raise StaleGeneration(
                f"{self.partition}: segments {list(replacement.old)} are not sealed neighbours"
            )
        return old

    def _sealed(self, summary: Summary) -> Segment:
        def size(suffix: str) -> int:
            return segment_path(self.dir, summary.base_offset, suffix).stat().st_size

        return Segment(
            self.dir, self._env, summary,
            mtime_ms=mtime_ms_of(segment_path(self.dir, summary.base_offset, LOG)),
            index_bytes=size(INDEX), time_index_bytes=size(TIME_INDEX),
        )  # fmt: skip

    def delete_segments(self, base_offsets: Collection[int]) -> int:
        """Retention: remove leading segments; the log start moves up. Returns bytes removed.

        The active segment may be among them: it is rolled first (T-24). Raises ValueError unless
        they are the first ones.
        """
        with self._files_lock, self._lock:
            self._require_online()
            if self._active.base_offset in base_offsets:
                self.roll(self._env.clock.now_ms())
            gone = [s for s in self._segments if s.base_offset in base_offsets and not s.active]
            if list(self._segments[: len(gone)]) != gone:
                raise ValueError(f"{self.partition}: {sorted(base_offsets)} are not its first")
            for segment in gone:
                segment.pin()
            self._segments = self._segments[len(gone) :]
            self._unflushed = [s for s in self._unflushed if s not in gone]
            self._move_log_start(self._segments[0].base_offset)
            try:
                for segment in gone:
                    base_offset = segment.base_offset
                    self._schedule(swap.mark_deleted(self._env.fs, self.dir, base_offset))
                    self._env.fs.unlink(segment_path(self.dir, base_offset, SNAPSHOT))
                    self._env.fs.unlink(summary_path(self.dir, base_offset))
            except StorageError as e:
                self._go_offline(e)
                raise
            return sum(segment.size for segment in gone)

    def advance_log_start(self, offset: int) -> None:
        """Hide everything below `offset`; files go with the next `delete_segments`.

        Raises KafkaError OFFSET_OUT_OF_RANGE above the high watermark. Durable once the log
        directory has written its checkpoint.
        """
        with self._lock:
            self._require_online()
            if offset > self.high_watermark:
                raise KafkaError(
                    ErrorCode.OFFSET_OUT_OF_RANGE,
                    f"{self.partition}: offset {offset} is above the high watermark "
                    f"{self.high_watermark}",
                )
            self._move_log_start(offset)

    def _move_log_start(self, offset: int) -> None:
        if offset > self._log_start_offset:
            self._log_start_offset = offset
            self._epochs.truncate_start(offset)

    def _schedule(self, deleted: Sequence[Path]) -> None:
        due = self._env.clock.now_ms() + self.config.file_delete_delay_ms
        self._deleted.update(dict.fromkeys(deleted, due))

    def sweep_deleted(self, now_ms: int) -> int:
        """Unlink `.deleted` files whose delay is over; returns how many."""
        with self._files_lock, self._lock:
            due = [path for path, due_ms in self._deleted.items() if due_ms <= now_ms]
            for path in due:
                self._env.fs.unlink(path)
                del self._deleted[path]
            return len(due)


def _require_size(new: swap.NewSegment, summary: Summary) -> None:
    path = new.files[LOG]
    try:
        size = path.stat().st_size
    except OSError as e:
        raise StorageError(f"looking at {path}: {e.strerror or e}") from e
    if size != summary.size:
        raise CorruptData(str(path), size, f"the summary says {summary.size} bytes; it ends")


def _synced_paths(segment: Segment) -> list[Path]:
    paths = [segment.path(suffix) for suffix in (LOG, INDEX, TIME_INDEX)]
    others = [segment.path(SNAPSHOT), summary_path(segment.dir, segment.base_offset)]
    return paths + [path for path in others if path.exists()]


def segment_facts(segment: Segment) -> SegmentFacts:
    """What deciding needs to know of a segment."""
    return SegmentFacts(
        base_offset=segment.base_offset,
        size=segment.size,
        mtime_ms=segment.mtime_ms,
        index_bytes=segment.index_bytes,
        time_index_bytes=segment.time_index_bytes,
        largest_timestamp=segment.max_timestamp,
        summary=segment.summary,
        active=segment.active,
    )
