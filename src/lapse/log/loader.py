"""Opening a log: after a clean shutdown by trusting its files, after a crash by checking them.

The passes, in order:

1. finish or undo an interrupted swap (`swap.recover`, SEMANTICS W-5);
2. drop index files without a log file;
3. segments from the one with the recovery point on are read whole, with their checksums; the
   first bad batch ends its segment, and segments after that one go (W-7). Earlier ones are
   trusted, but an index that cannot be right is made again, and so is a missing summary;
4. log start = max(checkpoint, first base); beyond the end, the log begins empty there (D-16);
5. producers: the newest snapshot not past the end that reads well, and the batches after it.

All of this may be cut short by another crash and is then done again.
"""

from __future__ import annotations

import contextlib
import logging
import os
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from lapse.base.errors import CorruptData
from lapse.base.ids import TopicPartition
from lapse.kernels import keep
from lapse.log.env import LogEnv
from lapse.log.epochs import LeaderEpochs
from lapse.log.headers import headers_of, walk
from lapse.log.offset_index import OffsetIndex
from lapse.log.producers import Producers
from lapse.log.segment import (
    INDEX,
    LOG,
    SEGMENT_SUFFIXES,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    ActiveSegment,
    Segment,
    base_offset_of,
    empty_indexes,
    load_indexes,
    mtime_ms_of,
    segment_path,
)
from lapse.log.summary import (
    SUFFIX,
    Summary,
    SummaryBuilder,
    read_summary,
    summary_path,
    with_estimated_clock,
    write_summary,
)
from lapse.log.swap import recover
from lapse.log.time_index import NO_TIMESTAMP, TimeIndex

_TXN_ENTRY_BYTES = 34
_TXN_LAST_OFFSET = 18  # after version, producer id and first offset

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OpenOptions:
    """How a log was left, and what its owner knows of it.

    Attributes:
        clean_shutdown: its files may be trusted.
        recovery_point: everything below was synced.
        log_start_offset: as checkpointed; 0 if it never was.
        index_interval_bytes: for indexes that are made again.
    """

    clean_shutdown: bool
    recovery_point: int
    log_start_offset: int
    index_interval_bytes: int
    producer_id_expiration_ms: int


@dataclass(frozen=True, slots=True)
class LoadedLog:
    """A log whose files are in order."""

    sealed: tuple[Segment, ...]
    active: ActiveSegment
    log_start_offset: int
    producers: Producers
    epochs: LeaderEpochs


@dataclass(slots=True)
class Scanned:
    """A segment read through: what its side files should say.

    Attributes:
        bad: what ended the reading before the file's end; None if nothing did.
        max_timestamp_offset: last offset of the first batch with the greatest timestamp.
    """

    summary: Summary
    offset_index: OffsetIndex
    time_index: TimeIndex
    max_timestamp_offset: int
    bad: str | None


def load(
    partition_dir: Path, partition: TopicPartition, env: LogEnv, options: OpenOptions
) -> LoadedLog:
    """Put the files in order and open them."""
    recover(env.fs, partition_dir)
    bases = _segment_bases(partition_dir)
    _drop_orphans(partition_dir, env, set(bases))
    loader = _Loader(partition_dir, partition, env, options)
    sealed, active = loader.load_segments(bases)
    log_start = max(options.log_start_offset, (sealed[0] if sealed else active).base_offset)
    if log_start > active.end_offset:
        _log.warning(
            "%s: log start %d is past the end %d: the log begins empty there",
            partition, log_start, active.end_offset,
        )  # fmt: skip
        loader.remove([*(s.base_offset for s in sealed), active.base_offset])
        sealed, active = [], ActiveSegment.create(partition_dir, env, log_start)
    epochs = LeaderEpochs(env.fs, partition_dir)
    epochs.truncate_end(active.end_offset)
    producers = load_producers(partition_dir, env, [*sealed, active])
    producers.expire(env.clock.now_ms(), options.producer_id_expiration_ms)
    return LoadedLog(tuple(sealed), active, log_start, producers, epochs)


def _segment_bases(partition_dir: Path) -> list[int]:
    bases = []
    for entry in os.scandir(partition_dir):
        base_offset = base_offset_of(entry.name)
        if base_offset is not None and entry.name.endswith(LOG):
            bases.append(base_offset)
    return sorted(bases)


def _drop_orphans(partition_dir: Path, env: LogEnv, bases: set[int]) -> None:
    """Index files and summaries that no log file belongs to."""
    for entry in sorted(os.scandir(partition_dir), key=lambda e: e.name):
        is_index = entry.name.endswith((INDEX, TIME_INDEX, TXN_INDEX))
        if is_index and base_offset_of(entry.name) not in bases:
            env.fs.unlink(partition_dir / entry.name)
    folder = summary_path(partition_dir, 0).parent
    for path in sorted(folder.glob(f"*{SUFFIX}*")) if folder.is_dir() else ():
        if base_offset_of(path.name) not in bases or not path.name.endswith(SUFFIX):
            env.fs.unlink(path)


class _Loader:
    """Pass 3: the segments of one log."""

    def __init__(
        self, partition_dir: Path, partition: TopicPartition, env: LogEnv, options: OpenOptions
    ) -> None:
        self._dir = partition_dir
        self._partition = partition
        self._env = env
        self._options = options

    def load_segments(self, bases: list[int]) -> tuple[list[Segment], ActiveSegment]:
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
            if scanned.bad is not None or last:
                return sealed, self._resume(scanned)
            sealed.append(self._seal(scanned))
        start = max(self._options.log_start_offset, 0)
        return [], ActiveSegment.create(self._dir, self._env, start)

    def _must_recover(self, next_base: int | None) -> bool:
        if self._options.clean_shutdown:
            return False
        return next_base is None or next_base > self._options.recovery_point

    def remove(self, bases: list[int]) -> None:
        """Unlink segments, the last first: what remains is always a beginning of the log."""
        for base_offset in reversed(bases):
            _log.warning("%s: removing the segment at %d", self._partition, base_offset)
            for suffix in SEGMENT_SUFFIXES:
                self._env.fs.unlink(segment_path(self._dir, base_offset, suffix))
            self._env.fs.unlink(summary_path(self._dir, base_offset))

    # --- trusted ---------------------------------------------------------------------------------

    def _trusted(self, base_offset: int, next_base: int) -> Segment:
        path = segment_path(self._dir, base_offset, LOG)
        summary = read_summary(summary_path(self._dir, base_offset))
        size = path.stat().st_size
        if summary is not None and summary.size == size and summary.end_offset <= next_base:
            indexes = self._sound_indexes(summary, next_base)
            if indexes is not None:
                return self._sealed(summary, *indexes)
        scanned = self._scanned(base_offset, next_base, check_crc=False)
        if scanned.bad is not None:
            # Below the recovery point nothing is cut off; a round must not touch it (L10).
            reason = f"unreadable: {scanned.bad} at offset {scanned.summary.end_offset}"
            unhandled = (*scanned.summary.unhandled, reason)
            scanned.summary = replace(scanned.summary, size=size, unhandled=unhandled)
        indexes = self._sound_indexes(scanned.summary, next_base)
        if indexes is None:
            indexes = scanned.offset_index, scanned.time_index
            for index in indexes:
                index.write_out(self._env.fs)
                self._env.fs.fsync_file(index.path)  # nothing else will: its log is synced
        write_summary(self._env.fs, self._dir, scanned.summary)
        return self._sealed(scanned.summary, *indexes)

    def _sound_indexes(
        self, summary: Summary, end_offset: int
    ) -> tuple[OffsetIndex, TimeIndex] | None:
        """Both indexes from their files, unless one cannot be right."""
        try:
            offset_index, time_index = load_indexes(self._dir, summary.base_offset)
        except CorruptData as e:
            _log.info("%s: %s; made again", self._partition, e)
            return None
        wrong = offset_index.check(summary.size, end_offset) or time_index.check(end_offset)
        if wrong is None and summary.max_timestamp > time_index.last[0]:
            wrong = "lacks the greatest timestamp"
        if wrong is not None:
            _log.info("%s: index at %d %s; made again", self._partition, summary.base_offset, wrong)
            return None
        return offset_index, time_index

    def _trusted_active(self, base_offset: int) -> ActiveSegment | None:
        """The last segment after a clean shutdown; None where something does not fit."""
        summary = read_summary(summary_path(self._dir, base_offset))
        size = segment_path(self._dir, base_offset, LOG).stat().st_size
        if summary is None or summary.size != size:
            return None
        indexes = self._sound_indexes(summary, summary.end_offset)
        if indexes is None:
            return None
        timestamp, offset = indexes[1].last
        if timestamp != summary.max_timestamp:
            return None
        growing = indexes[0].growing(), indexes[1].growing()
        return self._resume(Scanned(summary, *growing, offset, None))

    def _sealed(
        self, summary: Summary, offset_index: OffsetIndex, time_index: TimeIndex
    ) -> Segment:
        return Segment(
            self._dir, self._env, summary,
            mtime_ms=mtime_ms_of(segment_path(self._dir, summary.base_offset, LOG)),
            index_bytes=offset_index.size_bytes, time_index_bytes=time_index.size_bytes,
        )  # fmt: skip

    # --- recovered -------------------------------------------------------------------------------

    def _scanned(self, base_offset: int, next_base: int | None, *, check_crc: bool) -> Scanned:
        return scan_segment(
            self._dir, base_offset, next_base, self._options.index_interval_bytes,
            check_crc=check_crc,
        )  # fmt: skip

    def _recovered(self, base_offset: int, later: list[int]) -> Scanned:
        """W-7: read it with checksums, cut it at the first bad batch, write its side files.

        Segments after a cut go first: another crash must not find them behind a gap.
        """
        path = segment_path(self._dir, base_offset, LOG)
        scanned = self._scanned(base_offset, None, check_crc=True)
        if scanned.bad is not None:
            _log.warning(
                "%s: %s; cut off at byte %d, offset %d", self._partition, scanned.bad,
                scanned.summary.size, scanned.summary.end_offset,
            )  # fmt: skip
            self.remove(later)
            self._env.fs.truncate(path, scanned.summary.size)
            self._env.fs.fsync_file(path)
            self._cut_txn_index(base_offset, scanned.summary.end_offset)
        scanned.offset_index.write_out(self._env.fs)
        scanned.time_index.write_out(self._env.fs)
        return scanned

    def _cut_txn_index(self, base_offset: int, end_offset: int) -> None:
        """Aborted transactions of what was cut off are no more."""
        path = segment_path(self._dir, base_offset, TXN_INDEX)
        if not path.exists():
            return
        data = path.read_bytes()
        kept = 0
        while kept + _TXN_ENTRY_BYTES <= len(data):
            at = kept + _TXN_LAST_OFFSET
            if int.from_bytes(data[at : at + 8], "big", signed=True) >= end_offset:
                break
            kept += _TXN_ENTRY_BYTES
        if kept < len(data):
            self._env.fs.truncate(path, kept)

    def _seal(self, scanned: Scanned) -> Segment:
        write_summary(self._env.fs, self._dir, scanned.summary)
        return self._sealed(scanned.summary, scanned.offset_index, scanned.time_index)

    def _resume(self, scanned: Scanned) -> ActiveSegment:
        active = ActiveSegment(
            self._dir, self._env, scanned.summary, scanned.offset_index, scanned.time_index,
            scanned.max_timestamp_offset,
        )  # fmt: skip
        active.mtime_ms = mtime_ms_of(active.path())
        if scanned.summary.batches:
            write_summary(self._env.fs, self._dir, scanned.summary)
        return active


def scan_segment(
    partition_dir: Path,
    base_offset: int,
    next_base: int | None,
    interval_bytes: int,
    *,
    check_crc: bool,
) -> Scanned:
    """Read the headers of a segment (with `check_crc` everything) and make its side files anew."""
    path = segment_path(partition_dir, base_offset, LOG)
    builder = SummaryBuilder(base_offset)
    offset_index, time_index = empty_indexes(partition_dir, base_offset)
    state = np.array([0, NO_TIMESTAMP, base_offset], np.int64)
    bad: str | None = None
    mtime_ms = mtime_ms_of(path)
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        try:
            for rows in walk(file.fileno(), 0, size, str(path), check_crc=check_crc):
                good = _in_order(rows, builder.end_offset, next_base)
                builder.add_rows(good)
                _index(good, interval_bytes, state, offset_index, time_index)
                if len(good) < len(rows):
                    position = int(rows["position"][len(good)])
                    raise CorruptData(str(path), position, "offsets out of order")
        except CorruptData as e:
            bad = e.reason
    if state[1] >= 0:
        time_index.append_if_later(int(state[1]), int(state[2]))
    known = read_summary(summary_path(partition_dir, base_offset))
    summary = with_estimated_clock(builder.build(), mtime_ms, known)
    return Scanned(summary, offset_index, time_index, int(state[2]), bad)


def _in_order(
    rows: np.ndarray[tuple[int], np.dtype[np.void]], end_offset: int, next_base: int | None
) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    """The rows up to the first one whose offsets overlap what came before or comes after."""
    ends = np.concatenate([[end_offset - 1], rows["last_offset"]])
    wrong = rows["base_offset"] <= ends[:-1]
    wrong |= rows["last_offset"] < rows["base_offset"]
    if next_base is not None:
        wrong |= rows["last_offset"] >= next_base
    return rows[: int(np.argmax(wrong))] if wrong.any() else rows


def _index(
    rows: np.ndarray[tuple[int], np.dtype[np.void]],
    interval_bytes: int,
    state: np.ndarray[tuple[int], np.dtype[np.int64]],
    offset_index: OffsetIndex,
    time_index: TimeIndex,
) -> None:
    entries = np.empty((len(rows), 4), np.int64)
    n = keep.index_entries(rows, interval_bytes, entries, state)
    for offset, position, timestamp, timestamp_offset in entries[:n].tolist():
        offset_index.append(offset, position)
        time_index.append_if_later(timestamp, timestamp_offset)


def load_producers(partition_dir: Path, env: LogEnv, segments: list[Segment]) -> Producers:
    """Pass 5; snapshots past the end or not readable are removed."""
    end_offset = segments[-1].end_offset
    producers, start = Producers(), segments[0].base_offset
    for offset in sorted(snapshot_offsets(partition_dir), reverse=True):
        path = segment_path(partition_dir, offset, SNAPSHOT)
        if offset <= end_offset:
            with contextlib.suppress(CorruptData):
                producers = Producers.from_snapshot(path.read_bytes(), str(path))
                start = offset
                break
        env.fs.unlink(path)
    bases = {segment.base_offset for segment in segments}
    for offset in snapshot_offsets(partition_dir):
        if offset not in bases and offset != start:  # of a clean close, and outlived
            env.fs.unlink(segment_path(partition_dir, offset, SNAPSHOT))
    for segment in segments:
        if segment.end_offset > start:
            _replay(producers, segment, start)
    return producers


def snapshot_offsets(partition_dir: Path) -> list[int]:
    """Offsets that have a producer snapshot."""
    offsets = (
        base_offset_of(entry.name)
        for entry in os.scandir(partition_dir)
        if entry.name.endswith(SNAPSHOT)
    )
    return [offset for offset in offsets if offset is not None]


def _replay(producers: Producers, segment: Segment, start: int) -> None:
    path = segment.path()
    with path.open("rb") as file, contextlib.suppress(CorruptData):  # bad: said when it was loaded
        for rows in walk(file.fileno(), 0, segment.size, str(path)):
            wanted = rows[(rows["last_offset"] >= start) & (rows["producer_id"] >= 0)]
            for batch in headers_of(wanted):
                producers.update(batch)
