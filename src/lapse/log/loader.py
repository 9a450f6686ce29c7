"""Opening a log: after a clean shutdown by trusting its files, after a crash by checking them.

What Kafka calls LogLoader.

The passes, in order:

0. what the log's manifest lists is there (`holes`), or nothing is touched;
1. finish or undo an interrupted swap (`swap.recover`, W-5);
2. drop index files without a log file;
3. segments from the one with the recovery point on are read whole, with their checksums; the
   first bad batch ends its segment, and segments after that one go (W-7), unless what would go
   was synced: MissingData then. What goes is kept aside (`aside`). Earlier segments are trusted,
   but an index that cannot be right is made again, and so is a missing summary;
4. log start = max(checkpoint, first base); beyond the end, the log begins empty there (D-16);
5. producers: the newest snapshot that may be trusted, and the batches and markers after it;
   transaction indexes of recovered segments come out of the same reading (`replay`), others are
   made anew where they are known to be missing or cannot be right.

All of this may be cut short by another crash and is then done again.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lapse.base.errors import CorruptData
from lapse.base.fs import Fs
from lapse.base.ids import TopicPartition
from lapse.log.append_clock import (
    with_create_times,
    with_last_append,
)
from lapse.log.append_times import SUFFIX as APPENDED
from lapse.log.append_times import append_times_path, closed, encode, read_append_times, resumed
from lapse.log.aside import keep_segment, keep_tail, kept_as
from lapse.log.env import LogEnv
from lapse.log.epochs import LeaderEpochs
from lapse.log.epochs_found import epochs_in, never_noted, why_strange
from lapse.log.estimate import estimate_active, estimate_sealed
from lapse.log.failed_sync import write_again
from lapse.log.holes import Hole, holes_in, is_as_closed, missing
from lapse.log.manifest import NO_ERA, ManifestKeeper
from lapse.log.offset_index import OffsetIndex
from lapse.log.producers import Producers
from lapse.log.replay import (
    aborted_in,
    ended_from,
    keep_snapshots,
    parts_of,
    rebuild,
)
from lapse.log.scanned import Scanned, scan_segment
from lapse.log.segment import (
    INDEX,
    LOG,
    SEGMENT_SUFFIXES,
    TIME_INDEX,
    TXN_INDEX,
    ActiveSegment,
    Segment,
    base_offset_of,
    load_indexes,
    mtime_ms_of,
    offsets_in,
    segment_path,
)
from lapse.log.state import Unstable
from lapse.log.summary import (
    FOLDER,
    SUFFIX,
    Summary,
    read_summary,
    summary_path,
    with_clock_of,
    write_summary,
)
from lapse.log.swap import recover
from lapse.log.time_index import TimeIndex
from lapse.log.txn_index import AbortedTxn, TxnIndex, contradiction, may_lack
from lapse.records.append_times import AppendTimes

OVERLAP = "a batch of it reaches above where the next segment begins, and ends"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OpenOptions:
    """How a log was left, and what its owner knows of it.

    Attributes:
        clean_shutdown: its files may be trusted.
        recovery_point: everything below was synced.
        log_start_offset: as checkpointed; 0 if it never was.
        index_interval_bytes: for indexes that are made again.
        believed_ms: the time that the owner goes by; None where the clock is not believed, and then
            no producer is forgotten.
        heals_txn_indexes: aborts that an index has lost are put back into it; Kafka, which loses
            them, goes without.
        era: of the directory; manifests of others do not count.
        high_watermark: as checkpointed; None where there is no other replica.
    """

    clean_shutdown: bool
    recovery_point: int
    log_start_offset: int
    index_interval_bytes: int
    producer_id_expiration_ms: int
    believed_ms: int | None = None
    heals_txn_indexes: bool = True
    era: str = NO_ERA
    high_watermark: int | None = None

    def expire(self, producers: Producers) -> None:
        """Forget producers that were idle for too long: none while the time is not known."""
        if self.believed_ms is not None:
            producers.expire(self.believed_ms, self.producer_id_expiration_ms)


@dataclass(frozen=True, slots=True)
class LoadedLog:
    """A log whose files are in order.

    Attributes:
        unstable: the transactions that hold the last stable offset back.
    """

    keeper: ManifestKeeper

    sealed: tuple[Segment, ...]
    active: ActiveSegment
    log_start_offset: int
    producers: Producers
    epochs: LeaderEpochs
    unstable: Unstable


def load(
    partition_dir: Path, partition: TopicPartition, env: LogEnv, options: OpenOptions
) -> LoadedLog:
    """Put the files in order and open them.

    Raises MissingData, with nothing changed, where records are not there that should be, and
    StorageError.
    """
    keeper = ManifestKeeper(env.fs, partition_dir, options.era)
    if keeper.found is not None:
        holes = holes_in(partition_dir, keeper.found, options.log_start_offset)
        if holes:
            raise missing(partition_dir, partition, holes)
    if keeper.stale is not None:
        for hole in holes_in(partition_dir, keeper.stale, options.log_start_offset):
            _log.warning(
                "%s: %s. Another owner has used the directory meanwhile, so that may be intended",
                partition, hole,
            )  # fmt: skip
    recover(env.fs, partition_dir)
    names = sorted(os.listdir(partition_dir))
    bases = offsets_in(names, LOG)
    write_again(env.fs, partition_dir, bases, options.recovery_point)
    _drop_orphans(partition_dir, env, names, set(bases))
    loader = _Loader(partition_dir, partition, env, options, keeper)
    sealed, active = loader.load_segments(bases)
    log_start = max(options.log_start_offset, (sealed[0] if sealed else active).base_offset)
    if log_start > active.end_offset:
        _log.warning(
            "%s: log start %d is past the end %d: the log begins empty there",
            partition, log_start, active.end_offset,
        )  # fmt: skip
        before = [*(s.base_offset for s in sealed), active.base_offset]
        sealed, active = [], ActiveSegment.create(partition_dir, env, log_start)
        loader.remove(before, deleted=True)  # last: a log is never without a segment
        keep_snapshots(env.fs, partition_dir, ())  # their open transactions would never end
        loader.recovered.clear()
    segments = [*sealed, active]
    epochs = LeaderEpochs(env.fs, partition_dir)
    strange = never_noted(loader.epochs, epochs.entries)
    # Where there are other replicas: they and this one would cut back what they have by it.
    if strange is not None and options.high_watermark is not None:
        why = why_strange(*strange, noted=None)
        raise missing(partition_dir, partition, [Hole(strange[1], active.end_offset, why)])
    epochs.cut(log_start, active.end_offset)
    # Kafka reads only recovered segments, and else goes without.
    found = loader.epochs if epochs.entries else epochs_in(segments)
    if found:
        epochs.extend(found)
        epochs.cut(log_start, active.end_offset)
    producers, aborted = rebuild(
        env.fs, partition_dir, parts_of(segments), loader.recovered, options.expire
    )
    settle_txn_indexes(env.fs, segments, aborted, heals=options.heals_txn_indexes)
    completed: tuple[tuple[int, int], ...] = ()
    if options.high_watermark is not None and options.high_watermark < active.end_offset:
        completed = ended_from(partition_dir, parts_of(segments), options.high_watermark)
    unstable = Unstable(producers.first_unstable_offset, completed)
    return LoadedLog(keeper, tuple(sealed), active, log_start, producers, epochs, unstable)


def _drop_orphans(partition_dir: Path, env: LogEnv, names: Sequence[str], bases: set[int]) -> None:
    """Index files and summaries that no log file belongs to."""
    for name in names:
        is_index = name.endswith((INDEX, TIME_INDEX, TXN_INDEX))
        if is_index and base_offset_of(name) not in bases:
            env.fs.unlink(partition_dir / name)
    if FOLDER not in names:
        return
    folder = partition_dir / FOLDER
    for name in sorted(os.listdir(folder)):
        is_whole = name.endswith((SUFFIX, APPENDED)) and base_offset_of(name) in bases
        if (SUFFIX in name or APPENDED in name) and not is_whole:
            env.fs.unlink(folder / name)


class _Loader:
    """Pass 3: the segments of one log.

    Attributes:
        recovered: bases of the segments that were checked, and cut where need be.
        epochs: leader epochs that begin in those, each with its first offset.
    """

    def __init__(
        self,
        partition_dir: Path,
        partition: TopicPartition,
        env: LogEnv,
        options: OpenOptions,
        keeper: ManifestKeeper,
    ) -> None:
        self._dir = partition_dir
        self._partition = partition
        self._env = env
        self._options = options
        self._keeper = keeper
        self.recovered: set[int] = set()
        self.epochs: list[tuple[int, int]] = []

    def load_segments(self, bases: list[int]) -> tuple[list[Segment], ActiveSegment]:
        bases = self._without_leftovers(bases)
        sealed: list[Segment] = []
        for n, base_offset in enumerate(bases):
            last = n == len(bases) - 1
            next_base = None if last else bases[n + 1]
            if not self._must_recover(next_base):
                if not last:
                    sealed.append(self._trusted(base_offset, bases[n + 1]))
                    continue
                trusted = self._trusted_active(base_offset)
                if trusted is not None:
                    return sealed, trusted
            scanned = self._recovered(base_offset, bases[n + 1 :])
            if next_base is not None and scanned.summary.end_offset > next_base:
                # The next one repeats offsets that are here: it is the first thing wrong (W-7). But
                # no checksum covers a base offset: if the next one was synced, this one is damaged.
                self._require_unsynced(scanned, bases[n + 1 :], OVERLAP)
                self.remove(bases[n + 1 :])
                last = True
            if scanned.bad is not None or self._must_recover(next_base):
                self.recovered.add(base_offset)  # else it only lacked a side file
            if scanned.bad is not None or last:
                return sealed, self._resume(scanned)
            sealed.append(self._seal(scanned))
        start = max(self._options.log_start_offset, 0)
        return [], ActiveSegment.create(self._dir, self._env, start)

    def _without_leftovers(self, bases: list[int]) -> list[int]:
        """The same, once empty segments are gone that begin within the one before.

        A roll that failed at its last step has left them; what was appended since would be taken
        to end there.
        """
        kept = bases[:1]
        for base_offset in bases[1:]:
            path = segment_path(self._dir, base_offset, LOG)
            if path.stat().st_size == 0 and self._known_reach(kept[-1]) > base_offset:
                self.remove([base_offset])
            else:
                kept.append(base_offset)
        return kept

    def _known_reach(self, base_offset: int) -> int:
        """What a segment reaches for certain, by what its summary is of; its end may lie beyond."""
        summary = read_summary(summary_path(self._dir, base_offset))
        size = segment_path(self._dir, base_offset, LOG).stat().st_size
        if summary is None or summary.estimated or summary.size > size:
            return base_offset
        return summary.end_offset

    def _must_recover(self, next_base: int | None) -> bool:
        if self._options.clean_shutdown:
            return False
        return next_base is None or next_base > self._options.recovery_point

    def remove(self, bases: list[int], *, deleted: bool = False) -> None:
        """Segments go, the last first: what remains is always a beginning of the log.

        They are kept aside unless they were `deleted` by an operator's order. Durable.
        """
        self._keeper.strike(bases)
        for base_offset in reversed(bases):
            aside = None if deleted else keep_segment(self._env.fs, self._dir, base_offset)
            _log.warning(
                "%s: removing the segment at %d%s", self._partition, base_offset, kept_as(aside)
            )
            for suffix in SEGMENT_SUFFIXES:
                self._env.fs.unlink(segment_path(self._dir, base_offset, suffix))
            self._env.fs.unlink(summary_path(self._dir, base_offset))
            self._env.fs.unlink(append_times_path(self._dir, base_offset))
        if bases:  # or a power cut brings them back behind a gap
            self._env.fs.fsync_dir(self._dir)
            if (self._dir / FOLDER).exists():
                self._env.fs.fsync_dir(self._dir / FOLDER)

    # --- trusted ---------------------------------------------------------------------------------

    def _trusted(self, base_offset: int, next_base: int) -> Segment:
        """A sealed segment that need not be checked; without a summary an estimate stands in."""
        path = segment_path(self._dir, base_offset, LOG)
        summary = read_summary(summary_path(self._dir, base_offset))
        stat = path.stat()
        size, mtime_ms = stat.st_size, stat.st_mtime_ns // 1_000_000
        if summary is not None and (summary.size != size or summary.end_offset > next_base):
            summary = None
        known, indexes = summary, self._indexes(base_offset)
        if known is None and indexes is not None:
            known = estimate_sealed(path, base_offset, next_base, indexes[1])
        if known is not None and indexes is not None and self._are_sound(indexes, known, next_base):
            return self._sealed(known, *indexes, mtime_ms)
        scanned = self._scanned(base_offset, next_base, check_crc=False)
        if scanned.bad is not None:
            # Below the recovery point nothing is cut off; a round must not touch it (L10).
            end = scanned.summary.end_offset
            scanned.summary = replace(scanned.summary, size=size, unreadable_from=end)
        elif summary is not None and not summary.estimated:
            scanned.summary = summary  # only an index was bad; more was known than headers show
        elif summary is not None:
            scanned.summary = with_clock_of(scanned.summary, summary)
        if indexes is None or not self._are_sound(indexes, scanned.summary, next_base):
            indexes = scanned.offset_index, scanned.time_index
            for index in indexes:
                index.write_out(self._env.fs)
                self._env.fs.fsync_file(index.path)  # nothing else will: its log is synced
        if scanned.summary is not summary:
            write_summary(self._env.fs, self._dir, scanned.summary)
        return self._sealed(scanned.summary, *indexes, mtime_ms)

    def _indexes(self, base_offset: int) -> tuple[OffsetIndex, TimeIndex] | None:
        """Both from their files; None where one is missing or has half an entry."""
        try:
            return load_indexes(self._dir, base_offset)
        except CorruptData as e:
            _log.info("%s: %s; made again", self._partition, e)
            return None

    def _are_sound(
        self, indexes: tuple[OffsetIndex, TimeIndex], summary: Summary, end_offset: int
    ) -> bool:
        """Whether nothing says that one of them cannot be right."""
        offset_index, time_index = indexes
        wrong = offset_index.check(summary.size, end_offset) or time_index.check(end_offset)
        if wrong is None and summary.max_timestamp > time_index.last[0]:
            wrong = "lacks the greatest timestamp"
        if wrong is not None:
            _log.info("%s: index at %d %s; made again", self._partition, summary.base_offset, wrong)
        return wrong is None

    def _trusted_active(self, base_offset: int) -> ActiveSegment | None:
        """The last segment after a clean shutdown; None where something does not fit."""
        path = segment_path(self._dir, base_offset, LOG)
        indexes = self._indexes(base_offset)
        if indexes is None:
            return None
        kept = read_summary(summary_path(self._dir, base_offset))
        summary = kept
        if summary is None or summary.size != path.stat().st_size:
            summary = estimate_active(path, base_offset, *indexes)
            if summary is not None:
                summary = with_create_times(summary, kept)
        if summary is None or not self._are_sound(indexes, summary, summary.end_offset):
            return None
        found = self._keeper.found
        if found is not None and not is_as_closed(path, base_offset, indexes[0], found):
            _log.warning("%s: %s is not as it was closed: reading it", self._partition, path.name)
            return None
        timestamp, offset = indexes[1].last
        if timestamp != summary.max_timestamp:
            return None
        growing = indexes[0].growing(), indexes[1].growing()
        scanned = Scanned(summary, *growing, offset, None)
        scanned.append_times = self._append_times(summary)
        return self._resume(scanned, kept)

    def _sealed(
        self, summary: Summary, offset_index: OffsetIndex, time_index: TimeIndex, mtime_ms: int
    ) -> Segment:
        return Segment(
            self._dir, self._env, summary, mtime_ms=mtime_ms,
            index_bytes=offset_index.size_bytes, time_index_bytes=time_index.size_bytes,
        )  # fmt: skip

    # --- recovered -------------------------------------------------------------------------------

    def _scanned(self, base_offset: int, next_base: int | None, *, check_crc: bool) -> Scanned:
        return scan_segment(
            self._dir, base_offset, next_base, self._options.index_interval_bytes,
            check_crc=check_crc, has_copies=self._options.high_watermark is not None,
        )  # fmt: skip

    def _recovered(self, base_offset: int, later: list[int]) -> Scanned:
        """W-7: read it with checksums, cut it at the first bad batch, write its side files.

        Segments after a cut go first: another crash must not find them behind a gap.
        """
        path = segment_path(self._dir, base_offset, LOG)
        scanned = self._scanned(base_offset, None, check_crc=True)
        opened_ms = self._opened_ms()
        scanned.summary = with_last_append(self._dir, scanned.summary, opened_ms, is_last=not later)
        if scanned.bad is not None:
            self._require_unsynced(scanned, later, str(scanned.bad))
            aside = keep_tail(self._env.fs, self._dir, base_offset, scanned.summary.size)
            _log.warning(
                "%s: %s; cut off at byte %d, offset %d%s", self._partition, scanned.bad,
                scanned.summary.size, scanned.summary.end_offset, kept_as(aside),
            )  # fmt: skip
            self.remove(later)
            self._env.fs.truncate(path, scanned.summary.size)
            self._env.fs.fsync_file(path)
        scanned.offset_index.write_out(self._env.fs)
        scanned.time_index.write_out(self._env.fs)
        scanned.append_times = self._append_times(scanned.summary)
        self.epochs += scanned.epochs
        return scanned

    def _require_unsynced(self, scanned: Scanned, later: list[int], wrong: str) -> None:
        """Raise MissingData where what would be cut off was synced: a crash has not done that."""
        found, summary = self._keeper.found, scanned.summary
        if found is None:
            return
        point = self._options.recovery_point
        was_synced = (
            summary.size < found.sizes.get(summary.base_offset, 0)
            or any(base in found.sizes for base in later)
            or max(summary.end_offset, self._options.log_start_offset) < point
        )
        if was_synced:
            name = segment_path(self._dir, summary.base_offset, LOG).name
            start = min([summary.end_offset, *later[:1]])
            end = max(found.end_offset, point, start + 1)
            why = f"{name}: {wrong} at byte {summary.size}, below what was synced"
            raise missing(self._dir, self._partition, [Hole(start, end, why)])

    def _append_times(self, summary: Summary) -> AppendTimes:
        """Append times of a segment whose end may have moved since their file was written."""
        known = read_append_times(self._dir, summary.base_offset, summary.size)
        latest_ms = max(self._opened_ms(), summary.append_last_ms)
        return resumed(known, summary.end_offset, latest_ms)

    def _opened_ms(self) -> int:
        """No append that is in the files was made after that."""
        return max(self._env.clock.now_ms(), self._options.believed_ms or 0)

    def _seal(self, scanned: Scanned) -> Segment:
        summary = scanned.summary
        write_summary(self._env.fs, self._dir, summary)
        path = append_times_path(self._dir, summary.base_offset)
        if len(scanned.append_times.offsets):
            sealed = closed(scanned.append_times, summary.end_offset)
            self._env.fs.write_file(path, encode(sealed, summary.base_offset))
        else:
            self._env.fs.unlink(path)
        mtime_ms = mtime_ms_of(segment_path(self._dir, summary.base_offset, LOG))
        return self._sealed(scanned.summary, scanned.offset_index, scanned.time_index, mtime_ms)

    def _txn_index(self, base_offset: int) -> TxnIndex:
        """The active segment's index; empty if its file cannot be read (`settle_txn_indexes`)."""
        path = segment_path(self._dir, base_offset, TXN_INDEX)
        try:
            return TxnIndex(path, base_offset).growing()
        except CorruptData:
            return TxnIndex(path, base_offset, ())

    def _resume(self, scanned: Scanned, kept: Summary | None = None) -> ActiveSegment:
        if not scanned.summary.size:  # what was never there is as it was sent (L15)
            scanned.summary = replace(scanned.summary, create_times_kept=True)
        active = ActiveSegment(
            self._dir, self._env, scanned.summary, scanned.offset_index, scanned.time_index,
            scanned.max_timestamp_offset, self._txn_index(scanned.summary.base_offset),
            scanned.append_times,
        )  # fmt: skip
        active.mtime_ms = mtime_ms_of(active.path())
        if scanned.summary.batches and scanned.summary is not kept:
            write_summary(self._env.fs, self._dir, scanned.summary)
        return active


def settle_txn_indexes(
    fs: Fs,
    segments: Sequence[Segment],
    recovered: Mapping[int, Sequence[AbortedTxn]],
    *,
    heals: bool = True,
) -> None:
    """Transaction indexes of recovered segments hold what was found; doubtful ones are made anew.

    A missing one is as good as an empty one unless aborts are known to be in its segment and it
    `heals`.
    """
    if not recovered and not any(s.may_have_aborts or s.summary.aborts > 0 for s in segments):
        return
    with_file = set(offsets_in(os.listdir(segments[0].dir), TXN_INDEX))
    for segment in segments:
        found = recovered.get(segment.base_offset)
        if segment.base_offset in with_file or found or segment.summary.aborts > 0:
            settle_txn_index(fs, segment, segments, found, heals=heals)


def settle_txn_index(
    fs: Fs,
    segment: Segment,
    segments: Sequence[Segment],
    found: Sequence[AbortedTxn] | None = None,
    *,
    heals: bool = True,
    summary: Summary | None = None,
) -> None:
    """Make one segment's index anew if it is not what was `found`, or cannot be right."""
    summary = summary or segment.summary
    index = segment.files().txn_index
    try:
        known = list(index.entries())
        wrong = index.check(segment.end_offset)
    except CorruptData as e:
        known, wrong = [], str(e)
    if wrong is None and heals:
        wrong = contradiction(known, summary)
    if found is None:
        missing = heals and may_lack(known, summary)
        if wrong is None and not missing:
            return
        found = aborted_in(segment.dir, parts_of(segments), segment.base_offset)
    if wrong is not None or known != list(found):
        _log.info("%s: made again: %s", index.path, wrong or "entries were missing")
        index.replace(found)
        index.write_out(fs)
        if found:
            fs.fsync_file(index.path)
