"""A segment read through from front to back, and what its side files should say then."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from lapse.base.errors import CorruptData
from lapse.kernels import keep
from lapse.log.append_clock import with_estimated_clock
from lapse.log.epochs_found import note_epochs
from lapse.log.offset_index import OffsetIndex
from lapse.log.readable import SegmentBytes, readable
from lapse.log.segment import LOG, empty_indexes, mtime_ms_of, segment_path
from lapse.log.summary import Summary, SummaryBuilder, read_clock, summary_path
from lapse.log.time_index import TimeIndex
from lapse.records.append_times import NOTHING, AppendTimes
from lapse.records.layout import NO_TIMESTAMP


@dataclass(slots=True)
class Scanned:
    """A segment read through: what its side files should say.

    Attributes:
        bad: what ended the reading before the file's end; None if nothing did.
        max_timestamp_offset: last offset of the first batch with the greatest timestamp.
        epochs: leader epochs above all before them, each with the offset it begins at.
    """

    summary: Summary
    offset_index: OffsetIndex
    time_index: TimeIndex
    max_timestamp_offset: int
    bad: str | None
    epochs: list[tuple[int, int]] = field(default_factory=list)
    append_times: AppendTimes = NOTHING


def scan_segment(
    partition_dir: Path,
    base_offset: int,
    next_base: int | None,
    interval_bytes: int,
    *,
    check_crc: bool,
    has_copies: bool = False,
) -> Scanned:
    """Read the headers of a segment (with `check_crc` everything) and make its side files anew."""
    path = segment_path(partition_dir, base_offset, LOG)
    builder = SummaryBuilder(base_offset)
    offset_index, time_index = empty_indexes(partition_dir, base_offset)
    state = np.array([0, NO_TIMESTAMP, base_offset], np.int64)
    bad: str | None = None
    epochs: list[tuple[int, int]] = []
    mtime_ms = mtime_ms_of(path)
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        segment = SegmentBytes(
            file.fileno(), size, base_offset, next_base, str(path), has_copies=has_copies
        )
        try:
            for part in readable(segment, check_crc=check_crc):
                builder.add_rows(part.rows, part.marker_of)
                note_epochs(part.rows, epochs)
                _index(part.rows, interval_bytes, state, offset_index, time_index)
        except CorruptData as e:
            bad = e.reason
    if state[1] >= 0:
        time_index.append_if_later(int(state[1]), int(state[2]))
    known = read_clock(summary_path(partition_dir, base_offset))
    summary = with_estimated_clock(builder.build(), mtime_ms, known)
    return Scanned(summary, offset_index, time_index, int(state[2]), bad, epochs)


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
