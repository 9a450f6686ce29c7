"""Looking at partition directories without owning them (DESIGN §4.10).

Never writes, locks or rebuilds anything, and works as a read-only user on a directory that a live
Kafka is writing: what vanishes between listing and reading is listed again, a torn end of the
active segment is where the log ends for now, indexes padded with zeros count their real entries.

Facts from here are an estimate where an owner would know: the high watermark is taken to be the
log end, and `generation` is 0, which no owner's log ever has.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from lapse.base.clock import Clock, SystemClock
from lapse.base.errors import CorruptData, StorageError
from lapse.base.ids import TopicPartition
from lapse.log import checkpoints
from lapse.log.directory import list_partitions
from lapse.log.facts import LogFacts, SegmentFacts
from lapse.log.headers import headers_of, walk
from lapse.log.loader import scan_segment, snapshot_offsets
from lapse.log.offset_index import OffsetIndex
from lapse.log.producers import Producers
from lapse.log.segment import INDEX, LOG, SNAPSHOT, TIME_INDEX, base_offset_of, segment_path
from lapse.log.summary import Summary, read_summary, summary_path
from lapse.log.swap import SWAP
from lapse.log.time_index import TimeIndex

_LISTINGS_MAX = 50
_PAUSE_SECONDS = 0.01  # a swap takes a millisecond or two
_INTERVAL_BYTES = 4096  # the indexes made while scanning are thrown away


class DirectoryView:
    """A log directory, looked at: its partitions and what its checkpoints say."""

    def __init__(self, path: Path, clock: Clock | None = None) -> None:
        """Raises StorageError where there is no such directory; CorruptData on a bad checkpoint."""
        self.path = path
        self._clock = clock or SystemClock()
        self._partitions = list_partitions(path)
        self._log_starts = checkpoints.read_offsets(path / checkpoints.LOG_START)
        self._cleaner = checkpoints.read_offsets(path / checkpoints.CLEANER)

    def partitions(self) -> list[TopicPartition]:
        return self._partitions

    def facts(self, partition: TopicPartition) -> LogFacts:
        """Facts of one partition, as of now."""
        return read_facts(
            self.path / str(partition),
            partition,
            log_start_offset=self._log_starts.get(partition, 0),
            cleaner_checkpoint=self._cleaner.get(partition),
            clock=self._clock,
        )


def read_facts(
    partition_dir: Path,
    partition: TopicPartition,
    *,
    log_start_offset: int = 0,
    cleaner_checkpoint: int | None = None,
    clock: Clock | None = None,
) -> LogFacts:
    """Facts of the log in a directory; summaries it lacks are worked out in memory.

    Raises StorageError where the files keep changing, or were left in the middle of a swap.
    """
    problem: Exception | None = None
    for _ in range(_LISTINGS_MAX):
        try:
            return _read_once(partition_dir, partition, log_start_offset, cleaner_checkpoint)
        except (FileNotFoundError, _InSwap, StorageError) as e:
            problem = e
            (clock or SystemClock()).sleep(_PAUSE_SECONDS)
    raise StorageError(f"{partition_dir}: {problem}; gave up after {_LISTINGS_MAX} listings")


class _InSwap(Exception):
    """Segments are being replaced at this moment."""


def _read_once(
    partition_dir: Path, partition: TopicPartition, log_start: int, cleaner_checkpoint: int | None
) -> LogFacts:
    bases = _list(partition_dir)
    if not bases:
        raise StorageError("no segment")
    segments = []
    for n, base_offset in enumerate(bases):
        next_base = bases[n + 1] if n + 1 < len(bases) else None
        segments.append(_segment(partition_dir, base_offset, next_base))
    ends = [s.summary.end_offset for s in segments if s.summary is not None]
    producers = _producers(partition_dir, segments, ends[-1])
    if _list(partition_dir)[: len(bases)] != bases:
        raise _InSwap("its segments changed while they were read")
    unstable = producers.first_unstable_offset
    return LogFacts(
        partition=partition,
        dir=str(partition_dir),
        generation=0,
        log_start_offset=max(log_start, bases[0]),
        log_end_offset=ends[-1],
        high_watermark=ends[-1],
        last_stable_offset=ends[-1] if unstable is None else unstable,
        cleaner_checkpoint=cleaner_checkpoint,
        segments=tuple(segments),
        producers=producers.last_batches(),
    )


def _list(partition_dir: Path) -> list[int]:
    bases = set()
    for name in os.listdir(partition_dir):
        if name.endswith(LOG + SWAP):
            raise _InSwap("a swap of segments is under way, or was interrupted by a crash")
        base_offset = base_offset_of(name)
        if base_offset is not None and name.endswith(LOG):
            bases.add(base_offset)
    return sorted(bases)


def _segment(partition_dir: Path, base_offset: int, next_base: int | None) -> SegmentFacts:
    stat = segment_path(partition_dir, base_offset, LOG).stat()
    summary = read_summary(summary_path(partition_dir, base_offset))
    if summary is None or summary.size != stat.st_size:
        summary = _scanned_summary(partition_dir, base_offset, next_base, stat.st_size)
    return SegmentFacts(
        base_offset=base_offset,
        size=summary.size,
        mtime_ms=stat.st_mtime_ns // 1_000_000,
        index_bytes=_index_bytes(partition_dir, base_offset, OffsetIndex, INDEX),
        time_index_bytes=_index_bytes(partition_dir, base_offset, TimeIndex, TIME_INDEX),
        largest_timestamp=summary.max_timestamp,
        summary=summary,
        active=next_base is None,
    )


def _scanned_summary(
    partition_dir: Path, base_offset: int, next_base: int | None, size: int
) -> Summary:
    scanned = scan_segment(partition_dir, base_offset, next_base, _INTERVAL_BYTES, check_crc=False)
    if scanned.bad is None or next_base is None:
        return scanned.summary
    reason = f"unreadable: {scanned.bad} at offset {scanned.summary.end_offset}"
    unhandled = (*scanned.summary.unhandled, reason)
    return replace(scanned.summary, size=size, unhandled=unhandled)


def _index_bytes(
    partition_dir: Path, base_offset: int, kind: type[OffsetIndex] | type[TimeIndex], suffix: str
) -> int:
    """Bytes of real entries: Kafka pads the active segment's indexes with zeros."""
    try:
        data = segment_path(partition_dir, base_offset, suffix).read_bytes()
    except FileNotFoundError:
        return 0  # the owner would make it again
    width = kind.ENTRY.size
    entries = np.frombuffer(data[: len(data) // width * width], np.uint8).reshape(-1, width)
    used = np.flatnonzero(entries.any(axis=1))
    return (int(used[-1]) + 1) * width if len(used) else 0


def _producers(partition_dir: Path, segments: list[SegmentFacts], end_offset: int) -> Producers:
    """As `loader.load_producers`, but leaving what does not fit where it is."""
    producers, start = Producers(), 0
    offsets = (offset for offset in snapshot_offsets(partition_dir) if offset <= end_offset)
    for offset in sorted(offsets, reverse=True):
        path = segment_path(partition_dir, offset, SNAPSHOT)
        try:
            producers, start = Producers.from_snapshot(path.read_bytes(), str(path)), offset
            break
        except CorruptData:
            continue
    for segment in segments:
        if segment.summary is not None and segment.summary.end_offset > start:
            _replay(producers, partition_dir, segment, start)
    return producers


def _replay(producers: Producers, partition_dir: Path, segment: SegmentFacts, start: int) -> None:
    path = segment_path(partition_dir, segment.base_offset, LOG)
    with path.open("rb") as file:
        try:
            for rows in walk(file.fileno(), 0, segment.size, str(path)):
                for batch in headers_of(rows[(rows["last_offset"] >= start)]):
                    producers.update(batch)
        except CorruptData:
            return  # its summary says so
