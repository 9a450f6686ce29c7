"""Looking through a segment: its summary by reading it, and with `records` a sketch of its keys.

Reads with `pread`, so it may read files that another process is writing. Headers always and
what the records of control batches say; with `records` every record's key and value length too,
which inflates what is compressed. Called by tasks (`lifecycle.round.summarise`) and, for logs that
are only looked at, by `reader`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lapse.base.errors import CorruptData
from lapse.kernels.layout import CODEC_MASK, CONTROL, HEADER_SIZE
from lapse.kernels.sketch import note_batches, note_records
from lapse.log.append_clock import with_estimated_clock
from lapse.log.headers import read_at
from lapse.log.readable import SegmentBytes, readable
from lapse.log.sketch import Sketch, decode_sketch, empty_sketch
from lapse.log.summary import (
    UNKNOWN,
    Summary,
    SummaryBuilder,
    read_clock,
    read_keys,
    summary_path,
)
from lapse.records.batch import as_array, decode_rows, plain_records, runs

_BYTES_AT_ONCE = 8 << 20


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """A segment to look through: its first `size` bytes; offsets end before `next_base`."""

    path: Path
    base_offset: int
    size: int
    next_base: int | None


@dataclass(frozen=True, slots=True, eq=False)
class Looked:
    """The result of a look.

    Attributes:
        summary: of what could be read; its append clock from the summary's file, else estimated.
        keys: a sketch of all keys; None where they were not looked at, or not all could be.
        bad: what ended the reading before the end; None if nothing did.
    """

    summary: Summary
    keys: Sketch | None
    bad: str | None


def look(segment: SegmentFile, *, records: bool) -> Looked:
    """Read a segment. Raises OSError; what is wrong with its bytes is part of the answer."""
    with segment.path.open("rb") as file:
        mtime_ms = os.fstat(file.fileno()).st_mtime_ns // 1_000_000
        pass_ = _Pass(segment, file.fileno(), with_records=records)
        bad = pass_.run()
    known = read_clock(summary_path(segment.path.parent, segment.base_offset))
    summary = with_estimated_clock(pass_.builder.build(), mtime_ms, known)
    return Looked(summary, pass_.keys if bad is None else None, bad)


def sealed_summary(segment: SegmentFile, looked: Looked) -> Summary:
    """The summary of a sealed segment: what cannot be read keeps rounds below it (L10)."""
    summary = looked.summary
    if looked.bad is None:
        return summary
    return replace(summary, size=segment.size, unreadable_from=summary.end_offset)


def keys_of(segment: SegmentFile) -> Sketch | None:
    """The sketch kept for a segment, or one made now; None where not every record parses."""
    kept = read_keys(summary_path(segment.path.parent, segment.base_offset), segment.size)
    sketch = None if kept is None else decode_sketch(kept)
    return look(segment, records=True).keys if sketch is None else sketch


class _Pass:
    """One reading of one segment."""

    def __init__(self, segment: SegmentFile, fd: int, *, with_records: bool) -> None:
        self.builder = SummaryBuilder(segment.base_offset)
        self.keys: Sketch | None = empty_sketch() if with_records else None
        self._with_records = with_records
        self._segment, self._fd, self._where = segment, fd, str(segment.path)

    def run(self) -> str | None:
        """Look through the segment; returns what ended it early."""
        segment = self._segment
        read = SegmentBytes(
            self._fd, segment.size, segment.base_offset, segment.next_base, self._where
        )
        try:
            for part in readable(read, check_markers=True):
                nulls = self._nulls(part.rows) if self._with_records else UNKNOWN
                self.builder.add_rows(part.rows, part.marker_of, nulls)
        except CorruptData as e:
            return e.reason
        return None

    # --- records ---------------------------------------------------------------------------------

    def _nulls(self, rows: NDArray[np.void]) -> int:
        """Note the keys of some batches; null values among their records, -1 where one is bad."""
        total = 0
        data_batches = (rows["magic"] < 2) | (rows["attributes"] & CONTROL == 0)
        filled = rows[data_batches & (rows["count"] != 0)]
        # To be read with one call: up to a number of bytes, or one batch.
        for some in runs(filled, filled["position"] // _BYTES_AT_ONCE):
            start = int(some["position"][0])
            length = int(some["position"][-1] + some["size"][-1]) - start
            data = as_array(read_at(self._fd, start, length))
            here = some.copy()
            here["position"] -= start
            nulls = self._nulls_in(data, here)
            total = UNKNOWN if UNKNOWN in (nulls, total) else total + nulls
        return total

    def _nulls_in(self, data: NDArray[np.uint8], rows: NDArray[np.void]) -> int:
        plain = (rows["magic"] == 2) & (rows["attributes"] & CODEC_MASK == 0)
        held = rows[plain]
        starts, ends = held["position"] + HEADER_SIZE, held["position"] + held["size"]
        nulls, sound = 0, True
        if len(held):
            counts = held["count"].astype(np.int64)
            nulls, sound = self._noted(data, starts, ends, counts)
        for row in rows[~plain]:
            try:
                more, parsed = self._noted_of(data, row)
            except CorruptData:
                more, parsed = 0, False
            nulls, sound = nulls + more, sound and parsed
        if not sound:
            self.keys = None
        return nulls if sound else UNKNOWN

    def _noted_of(self, data: NDArray[np.uint8], row: np.void) -> tuple[int, bool]:
        """One compressed batch, or message of an old format. Raises CorruptData."""
        if row["magic"] < 2:
            inner, records = decode_rows(data, row, self._where)
            return note_records(inner, records, self._registers()), True
        inner = plain_records(data, row, self._where)
        starts, ends = np.zeros(1, np.int64), np.full(1, len(inner), np.int64)
        return self._noted(inner, starts, ends, np.full(1, row["count"], np.int64))

    def _noted(
        self, data: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64],
        counts: NDArray[np.int64],
    ) -> tuple[int, bool]:  # fmt: skip
        parsed, nulls = note_batches(data, starts, ends, counts, self._registers())
        return nulls, parsed == len(starts)

    def _registers(self) -> Sketch:
        return empty_sketch() if self.keys is None else self.keys
