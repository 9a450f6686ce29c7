"""One partition's log: the façade over its segments, and the only class that changes them.

What Kafka calls UnifiedLog and LocalLog.

Three locks, taken in this order where more than one is needed:

- `_start_lock` for the file that keeps the log start (KIP-107, L11);
- `_files_lock` for code that renames, removes or syncs files: names are stable under it, and so are
  the sealed segments, but for new ones at their end;
- `_lock` for appends, rolls, and changes of the segment list. Nothing is synced under it, and only
  the active segment's side files are written (by a roll, by the beginning of a flush): the swap of
  a round, retention and facts just copy and set references under it, so that an append never waits
  for them.

Readers (`read_side`) take none; appending (`append_side`) takes the last, deleting (`delete_side`)
each for a part.
`generation` changes when files change that a plan was made for.

Called by the broker's partitions (append, read, delete records), its housekeeping (roll, flush,
deletion, sweeps) and the commit of a round (`replace_segments`, `trimmed_to`). Uses the times that
callers pass and no clock, save for the delay of `.deleted` files and for when the log start moved.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from lapse.base.config import TopicConfig
from lapse.base.errors import CorruptData, StaleGeneration, StorageError
from lapse.base.ids import TopicPartition
from lapse.log import swap
from lapse.log.append_clock import seen_by
from lapse.log.append_side import Appended as Appended  # noqa: PLC0414
from lapse.log.append_side import Opening
from lapse.log.append_times import append_times_path
from lapse.log.bad import read_bad
from lapse.log.delete_side import DeletingLog
from lapse.log.env import LogEnv
from lapse.log.epochs import EpochEnd
from lapse.log.facts import BadRange, LogFacts, ProducerLast, SegmentFacts
from lapse.log.loader import OpenOptions, load, settle_txn_index
from lapse.log.look import SegmentFile, look
from lapse.log.manifest import NO_ERA, manifest_path
from lapse.log.segment import (
    INDEX,
    LOG,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    Segment,
    mtime_ms_of,
    segment_path,
)
from lapse.log.start import KeptStart, read_start
from lapse.log.summary import Summary, read_keys, summary_path, write_summary
from lapse.log.txn_index import TxnIndex

_PRODUCERS_AT_ONCE = 256  # copied in half a millisecond
_GENERATION_BITS = 10  # a reopened log begins far above any generation it had before


class LogMark(NamedTuple):
    """State of an open log: while it stays the same, so do the log's facts, producers aside.

    Attributes:
        segments_set: how often segments were replaced, or more became known of them. The content
            of the active segment changes only with `log_end_offset`.
        config: settings in force.
    """

    segments_set: int
    config: TopicConfig
    generation: int
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    last_stable_offset: int
    cleaner_checkpoint: int | None
    append_time_ahead_ms: int
    start: KeptStart
    bad: BadRange | None


class PartitionLog(DeletingLog):
    """An open log.

    Attributes:
        cleaner_checkpoint: first dirty offset, kept by the log directory.
    """

    def __init__(self, opening: Opening) -> None:
        """Use `open`."""
        super().__init__(opening)
        self.cleaner_checkpoint: int | None = None
        self._was_clean = opening.options.clean_shutdown
        self._heals_txn_indexes = opening.options.heals_txn_indexes
        self._seen_set = -1  # `_segments_set` when no append clock was ahead
        self._bad = read_bad(self.dir)
        self._generation = self._env.clock.now_ms() << _GENERATION_BITS

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
        believed_ms: int | None = None,
        heals_txn_indexes: bool = True,
        era: str = NO_ERA,
    ) -> PartitionLog:
        """Open the log in an existing directory, repairing what a crash left (`loader`).

        `log_start_offset` is the checkpointed one; the one in the log's folder counts too
        (`start`). Without `believed_ms`, the time that the owner goes by, no producer is forgotten.
        Raises MissingData where its `manifest`, if that is of the directory's `era`, lists a file
        that is missing or short, and StorageError.
        """
        kept = read_start(partition_dir)
        options = OpenOptions(
            clean_shutdown=clean_shutdown,
            recovery_point=recovery_point,
            log_start_offset=max(log_start_offset, kept.offset),
            index_interval_bytes=config.index_interval_bytes,
            producer_id_expiration_ms=producer_id_expiration_ms,
            believed_ms=believed_ms,
            heals_txn_indexes=heals_txn_indexes,
            era=era,
        )
        loaded = load(partition_dir, partition, env, options)
        log = PartitionLog(Opening(partition_dir, partition, config, env, loaded, options))
        log._take_up(kept)
        log._note_opened()
        return log

    @property
    def topic_id(self) -> str:
        """As Kafka spells it; "" where it is not known."""
        return self._keeper.topic_id

    @property
    def generation(self) -> int:
        return self._generation

    @property
    def active_append_first_ms(self) -> int:
        """When the active segment got its first batch; -1 while it is empty."""
        return self._active.append_first_ms

    @property
    def leader_epoch(self) -> int:
        """The leader epoch of appends and of responses to clients: it never goes back."""
        return self._epochs.current

    def end_of_epoch(self, epoch: int) -> EpochEnd | None:
        """Where a leader epoch ended (KIP-101, KIP-320); None where that is unknown."""
        return self._epochs.end_of(epoch, self._end_offset)

    def epoch_at(self, offset: int) -> int:
        """The leader epoch of an offset, of the log's end too; -1 where there was none yet."""
        return self.leader_epoch if offset >= self._end_offset else self._epochs.epoch_at(offset)

    # --- roll, sync, close -----------------------------------------------------------------------

    def flush(self, *, force: bool = False) -> int:
        """Sync everything written so far; returns the new recovery point.

        Appends go on meanwhile. Does nothing if nothing was appended since, unless `force` is set
        (side files may still be unsynced then). Raises StorageError and takes the log offline: the
        state of the disk is unknown after a failed sync.
        """
        with self._files_lock:
            try:
                with self._lock:
                    self._require_online()
                    if self.recovery_point == self._end_offset and not force:
                        return self.recovery_point
                    self._active.write_side_files()
                    sealed, active, end = tuple(self._unflushed), self._active, self._end_offset
                    sizes = {s.base_offset: s.size for s in self._segments}
                self._is_syncing = True
                self._sync([p for s in (*sealed, active) for p in _synced_paths(s)])
            except StorageError as e:
                self._go_offline(e)
                raise
            finally:
                self._is_syncing = False
            self._move_recovery_point(sealed, end)
            self._keeper.note(sizes, end)
            return self.recovery_point

    def flush_sealed(self) -> int:
        """Sync all that is sealed, as Kafka does when it rolls; returns the new recovery point.

        Appends go to the active segment, whose file is not synced, so no append has to wait. Raises
        StorageError as `flush` does.
        """
        with self._files_lock:
            with self._lock:
                self._require_online()
                sealed, active = tuple(self._unflushed), self._active
            if self.recovery_point >= active.base_offset:
                return self.recovery_point
            paths = [path for segment in sealed for path in _synced_paths(segment)]
            snapshot = active.path(SNAPSHOT)  # of the producers below the active segment
            try:
                self._sync([*paths, snapshot] if snapshot.exists() else paths)
            except StorageError as e:
                self._go_offline(e)
                raise
            self._move_recovery_point(sealed, active.base_offset)
            self._keeper.note(self._durable_sizes(), self.recovery_point)
            return self.recovery_point

    def _sync(self, paths: Sequence[Path]) -> None:
        self._env.fs.sync_all(paths)
        self._env.fs.fsync_dir(self.dir)

    def _move_recovery_point(self, synced: Collection[Segment], end_offset: int) -> None:
        with self._lock:
            self._unflushed = [s for s in self._unflushed if s not in synced]
            self.recovery_point = max(self.recovery_point, end_offset)
        self._keeper.settle()

    def note_files(self) -> None:
        """List a round's new segments in the manifest; the caller has synced all renames so far.

        Not durable: an older manifest lists less.
        """
        with self._files_lock:
            self._keeper.settle()
            self._keeper.note(self._durable_sizes(), self.recovery_point, sync=False)

    def foresee_swap(self, bases: Collection[int]) -> Path:
        """Write the manifest for `replace_segments`, so that a caller can sync many logs at once.

        The caller syncs the returned path and its folder before it calls `replace_segments`. Raises
        StorageError.
        """
        with self._files_lock:
            self._keeper.foresee(bases)
        return manifest_path(self.dir)

    def _durable_sizes(self) -> dict[int, int]:
        """Synced sizes of sealed segments, and the listed size of the active one."""
        with self._lock:
            synced = [s for s in self._segments[:-1] if s not in self._unflushed]
            active = self._active.base_offset
        return {**{s.base_offset: s.size for s in synced}, **self._keeper.listed(active)}

    def _note_opened(self) -> None:
        """List the segments that are durable in the manifest: after a clean shutdown, all."""
        sizes = self._durable_sizes()
        if self._was_clean and self.recovery_point == self._end_offset:
            sizes[self._active.base_offset] = self._active.size
        self._keeper.note(sizes, self.recovery_point, sync=False)

    def keep_append_times(self) -> None:
        """Write the append times of the active segment, to outlive the process; without a sync.

        Raises StorageError; then they are written the next time.
        """
        with self._lock:
            if not self._closed and self.offline_reason is None:
                self._active.keep_append_times()

    def close(self, *, clean: bool = True) -> None:
        """Close the log; with `clean` its files may be trusted at the next opening."""
        with self._files_lock, self._lock:
            if self._closed:
                return
            if clean and self.offline_reason is None:
                self._active.finish()
                self._epochs.finish(self._end_offset)
                snapshot = segment_path(self.dir, self._end_offset, SNAPSHOT)
                if not snapshot.exists():  # Kafka keeps one that is there, expired producers too
                    self._write_snapshot(self._end_offset)
                self.flush(force=True)
                self._env.fs.fsync_file(snapshot)
            self._active.close()
            if clean and self.offline_reason is None:
                self._note_closed()
            self._closed = True

    def _note_closed(self) -> None:
        """Note the final sizes in the manifest; the log directory syncs all logs' manifests."""
        sizes = {s.base_offset: s.size for s in self._segments}
        path = self._active.path()
        try:
            mtime_ns = path.stat().st_mtime_ns
        except OSError as e:
            raise StorageError(f"looking at {path}: {e.strerror or e}") from e
        self._keeper.note(sizes, self._end_offset, closed_mtime_ns=mtime_ns, sync=False)

    # --- settings, facts, expiry -----------------------------------------------------------------

    def update_config(self, config: TopicConfig) -> None:
        """Set new settings; losing `compact` makes every plan stale."""
        with self._lock:
            if self.config.compacts and not config.compacts:
                self._generation += 1
            self.config = config

    def mark(self) -> LogMark:
        """The mark that identifies the facts of this moment; far cheaper than the facts."""
        with self._lock:
            return LogMark(
                self._segments_set,
                self.config,
                self._generation,
                self._log_start_offset,
                self._end_offset,
                self.high_watermark,
                self.last_stable_offset,
                self.cleaner_checkpoint,
                self._append_time_ahead_ms,
                self._start,
                self._bad,
            )

    def facts(self) -> LogFacts:
        """A snapshot for deciding; only copies."""
        return self.marked_facts()[1]

    def marked_facts(self) -> tuple[LogMark, LogFacts]:
        """The facts, and the mark of the moment they are of.

        Producers are read last, so that they include every batch of the segments in the facts.
        Appends meanwhile make them newer than the segments, which is as good: it is the last batch
        of a producer that must outlive its records (P-1).
        """
        with self._lock:
            mark, segments = self.mark(), self._segments
            facts = LogFacts(
                partition=self.partition,
                dir=str(self.dir),
                generation=mark.generation,
                log_start_offset=mark.log_start_offset,
                log_end_offset=mark.log_end_offset,
                high_watermark=mark.high_watermark,
                last_stable_offset=mark.last_stable_offset,
                cleaner_checkpoint=mark.cleaner_checkpoint,
                segments=(segment_facts(segments[-1]),),
                producers=(),
                append_time_ahead_ms=mark.append_time_ahead_ms,
                start_moves=mark.start.unserved(segments[0].base_offset),
                producer_id_expiration_ms=self._producer_id_expiration_ms,
            )
        bad = mark.bad
        sealed = [segment_facts(s) for s in segments[:-1]]
        if bad is not None and all(s.base_offset != bad.segment_base for s in sealed):
            bad = None  # retention took it, or a round did
        producers = tuple(self._last_batches())
        whole = replace(facts, segments=(*sealed, *facts.segments), bad=bad, producers=producers)
        return mark, whole

    def _last_batches(self) -> Iterator[ProducerLast]:
        """By producer id; in blocks, since copying ten thousand at once would delay an append."""
        with self._lock:
            producer_ids = self._producers.ids()
        producer_ids.sort()
        for n in range(0, len(producer_ids), _PRODUCERS_AT_ONCE):
            with self._lock:
                found = self._producers.last_batches(producer_ids[n : n + _PRODUCERS_AT_ONCE])
            yield from found

    def set_bad(self, bad: BadRange | None) -> None:
        """Set the range that a round could not read; None when a round could read it (L10).

        `lifecycle.round.bad` keeps it on disk, and a log reads it from there when it is opened.
        """
        with self._lock:
            self._bad = bad

    # --- replace and delete ----------------------------------------------------------------------

    def adopt_summary(self, summary: Summary, keys: str, generation: int) -> str | None:
        """Adopt a task's summary of a sealed segment; returns the reason where that is refused.

        `keys` is the sketch of its keys, "" for none. The log's append clock is kept. Raises
        StorageError, and then the log is as it was.
        """
        with self._files_lock:
            with self._lock:
                found = self._to_adopt(summary, generation)
            if isinstance(found, str):
                return found
            adopted = found.with_summary(summary)
            # The file in place may be the only copy of the append clock, unless that is a guess.
            keep_clock = not adopted.summary.append_estimated
            write_summary(self._env.fs, self.dir, adopted.summary, keys, sync=keep_clock)
            self._put(found, adopted)
            if (
                adopted.summary.aborts > 0 and self._heals_txn_indexes
            ):  # now it is known whether their index is missing
                settle_txn_index(self._env.fs, adopted, self._segments)
            return None

    def _txn_index(self, segment: Segment) -> TxnIndex:
        """Its transaction index, once it is known to be right.

        While a segment's summary is an estimate nobody has read its markers, and opening the log
        could not tell whether the index lacks any. So they are read before the first reader may be
        handed aborted records. Raises StorageError where an index made anew cannot be written.
        """
        files = segment.files()
        if not segment.may_lack_aborts or not self._heals_txn_indexes:
            return files.txn_index
        with self._files_lock, self._lock if segment.active else nullcontext():
            looked_at = SegmentFile(
                segment.path(), segment.base_offset, segment.size, segment.end_offset
            )
            summary = look(looked_at, records=False).summary
            if summary.size == segment.size:  # else rounds and readers end where it is damaged
                try:
                    settle_txn_index(self._env.fs, segment, self._segments, summary=summary)
                except StorageError:  # the file is as it was, and so must be what is read from it
                    if not segment.active:
                        files.txn_index = TxnIndex(files.txn_index.path, segment.base_offset)
                    raise
            segment.txn_index_checked = True
        return files.txn_index

    def see(self, now_ms: int) -> None:
        """The owner believes its clock, which is at `now_ms`: no sealed segment is from after that.

        Append clocks that are far ahead are taken back to it, for good (`append_clock.seen_by`).
        Raises StorageError, and then the remaining segments are as they were.
        """
        if self._seen_set == self._segments_set or self._closed or self.offline_reason is not None:
            return
        with self._files_lock:
            seen_set = self._segments_set
            for segment in self._segments[:-1]:
                summary = seen_by(segment.summary, now_ms, self._env.clock_jump_max_ms)
                if summary is not segment.summary:
                    path = summary_path(self.dir, segment.base_offset)
                    keys = read_keys(path, segment.size) or ""
                    write_summary(self._env.fs, self.dir, summary, keys, sync=True)
                    self._put(segment, segment.with_clock(summary))
                    seen_set += 1
            self._seen_set = seen_set

    def _put(self, old: Segment, new: Segment) -> None:
        """Replace a segment by the same one with another summary."""
        with self._lock:
            self._set_segments(tuple(new if s is old else s for s in self._segments))
            self._unflushed = [new if s is old else s for s in self._unflushed]

    def _to_adopt(self, summary: Summary, generation: int) -> Segment | str:
        if self._closed or self.offline_reason is not None:
            return "the log is closed or offline"
        if generation != self._generation:
            return f"its files changed meanwhile (generation {self._generation})"
        summarised = (summary.base_offset, summary.size)
        for segment in self._segments[:-1]:
            if (segment.base_offset, segment.size) == summarised:
                return segment
        return f"segment {summarised[0]} of {summarised[1]} bytes is no longer there"

    def replace_segments(
        self, replacement: swap.Replacement, generation: int, *, sync: bool = True
    ) -> bool:
        """Swap a round's group in (W-2); False if retention had taken all of it meanwhile (W-3).

        Where retention took a part, Kafka skips that part, and the new segment brings its records
        back below the log start. Here the group is refused, and the round is made again.

        The new files must be synced already. `sync=False` leaves syncing the renames to the caller,
        which has synced what `foresee_swap` wrote, if that was called, and calls `note_files`.
        Raises StaleGeneration; CorruptData if a new file does not have its summary's size;
        StorageError, and then the log is as before or, if that is not known, offline.
        """
        with self._files_lock:
            with self._lock:
                self._require_online()
                self._require_generation(generation)
                old = self._replaceable(replacement)
            if not old:
                return False
            for new, summary in zip(replacement.new, replacement.summaries, strict=True):
                _require_size(new, summary)
            fs = self._env.fs
            self._keeper.strike([s.base_offset for s in old], foreseen=not sync)
            try:
                swap.prepare(fs, self.dir, replacement)
            except StorageError:
                try:
                    swap.abandon(fs, self.dir, replacement)
                except StorageError as left:
                    # Its `.cleaned` files would undo a later swap above them (W-5), also one past
                    # its point of no return.
                    self._go_offline(left)
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
            with self._lock:
                kept = [s for s in self._segments if s not in old]
                ordered = sorted([*kept, *new_segments], key=lambda s: s.base_offset)
                self._set_segments(tuple(ordered))
                self._unflushed = [s for s in self._unflushed if s not in old]
                self._generation += 1
            self._keeper.swapped([s.base_offset for s in new_segments], durable=sync)
            if sync:
                self._keeper.note(self._durable_sizes(), self.recovery_point)
            self._schedule(deleted)
            return True

    def _require_generation(self, generation: int) -> None:
        if generation != self._generation:
            raise StaleGeneration(
                f"{self.partition}: its files changed since the plan was made "
                f"(generation {self._generation}, the plan has {generation})"
            )

    def _replaceable(self, replacement: swap.Replacement) -> list[Segment]:
        """The old segments; none if all are gone.

        Raises StaleGeneration unless they are sealed neighbours, and where only some are left.
        """
        bases = set(replacement.old)
        old = [s for s in self._segments if s.base_offset in bases]
        if not old:
            return []
        if len(old) < len(bases):
            gone = sorted(bases - {s.base_offset for s in old})
            raise StaleGeneration(f"{self.partition}: segments {gone} of the group are gone")
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
    others = [
        segment.path(TXN_INDEX),
        segment.path(SNAPSHOT),
        summary_path(segment.dir, segment.base_offset),
        append_times_path(segment.dir, segment.base_offset),
    ]
    return paths + [path for path in others if path.exists()]


def segment_facts(segment: Segment) -> SegmentFacts:
    """The facts of a segment that decisions need."""
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
