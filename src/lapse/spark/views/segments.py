"""The view of segments: one row each, from the summaries, else by reading headers.

Reading them is as much as reading a segment through; with `ViewOptions.estimates` a segment without
summary is described by its size, its indexes and its first header instead (`log.estimate`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path

from lapse.base.clock import Clock
from lapse.base.errors import StorageError
from lapse.base.ids import TopicPartition
from lapse.lifecycle.outlook.rows import Row, segment_row
from lapse.log.estimate import estimate_active, estimate_sealed
from lapse.log.facts import SegmentFacts
from lapse.log.look import SegmentFile, look, sealed_summary
from lapse.log.offset_index import OffsetIndex
from lapse.log.reader import DirectoryView
from lapse.log.segment import INDEX, LOG, TIME_INDEX, segment_path
from lapse.log.summary import read_summary, summary_path
from lapse.log.time_index import TimeIndex
from lapse.spark.scan.files import PAUSE_SECONDS, TRIES_MAX, list_segments, offset_index, time_index
from lapse.spark.views.logs import of_log, partitions_of, unless_gone
from lapse.spark.views.spec import ViewUnit


def segment_rows(unit: ViewUnit, clock: Clock) -> Iterator[Row]:
    """Rows of the unit's logs. Raises StorageError where files of one keep changing."""
    view = DirectoryView(Path(unit.log_dir), clock)
    for partition in partitions_of(unit):
        partition_dir = view.path / str(partition)

        def read(partition: TopicPartition = partition) -> Sequence[SegmentFacts]:
            if unit.options.estimates:
                return estimated_segments(view.path / str(partition), clock)
            return view.facts(partition).segments

        for segment in unless_gone(partition_dir, read) or ():
            if segment.summary is not None:
                yield {**of_log(unit, partition), **segment_row(segment)}


# --- without reading ------------------------------------------------------------------------------


def estimated_segments(partition_dir: Path, clock: Clock) -> list[SegmentFacts]:
    """The segments of a log: kept summaries where they hold, else estimates, else by reading.

    Raises DataLost where there is no such log, StorageError where its files keep changing.
    """
    for _ in range(TRIES_MAX):
        bases = list_segments(partition_dir, clock)
        try:
            found = [_told_of(partition_dir, base, bases) for base in bases]
        except FileNotFoundError:
            clock.sleep(PAUSE_SECONDS)  # replaced or deleted after it was listed
            continue
        if list_segments(partition_dir, clock)[: len(bases)] == bases:
            return found
    raise StorageError(f"{partition_dir}: its segments keep changing")


def _told_of(partition_dir: Path, base_offset: int, bases: Sequence[int]) -> SegmentFacts:
    after = bisect_right(bases, base_offset)
    next_base = bases[after] if after < len(bases) else None
    path = segment_path(partition_dir, base_offset, LOG)
    stat = path.stat()
    offsets, times = _last_entries(partition_dir, base_offset)
    summary = read_summary(summary_path(partition_dir, base_offset))
    if summary is None or summary.size != stat.st_size or not summary.is_complete:
        summary = (
            estimate_active(path, base_offset, offsets, times)
            if next_base is None
            else estimate_sealed(path, base_offset, next_base, times)
        )
    if summary is None:
        file = SegmentFile(path, base_offset, stat.st_size, next_base)
        looked = look(file, records=False)
        summary = looked.summary if next_base is None else sealed_summary(file, looked)
    return SegmentFacts(
        base_offset=base_offset,
        size=summary.size,
        mtime_ms=stat.st_mtime_ns // 1_000_000,
        index_bytes=OffsetIndex.ENTRY.size * len(offset_index(partition_dir, base_offset).keys),
        time_index_bytes=TimeIndex.ENTRY.size * len(time_index(partition_dir, base_offset).keys),
        largest_timestamp=summary.max_timestamp,
        summary=summary,
        active=next_base is None,
    )


def _last_entries(partition_dir: Path, base_offset: int) -> tuple[OffsetIndex, TimeIndex]:
    """Indexes of their last sound entry alone, which is all that an estimate needs."""
    offsets = offset_index(partition_dir, base_offset)
    times = time_index(partition_dir, base_offset)
    of_offsets, of_times = b"", b""
    if len(offsets.keys):
        relative = int(offsets.keys[-1]) - base_offset
        of_offsets = OffsetIndex.ENTRY.pack(relative, int(offsets.values[-1]))
    if len(times.keys):
        of_times = TimeIndex.ENTRY.pack(int(times.keys[-1]), int(times.values[-1]) - base_offset)
    index_path = segment_path(partition_dir, base_offset, INDEX)
    time_path = segment_path(partition_dir, base_offset, TIME_INDEX)
    return (
        OffsetIndex(index_path, base_offset, of_offsets, from_file=True),
        TimeIndex(time_path, base_offset, of_times, from_file=True),
    )
