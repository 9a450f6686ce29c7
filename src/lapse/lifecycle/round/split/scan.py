"""The first stage of a split plan: a segment's keys, hashed, to runs by hash range.

Clean segments make runs too, and a merge looks their keys up. The alternative, to read each clean
segment once for every hash range, costs a walk over its records (some 20 ns each, and all of its
bytes) per range, where a run costs 16 bytes written and 16 read per record, once. As a log is split
into at least two ranges, runs are always cheaper, and the log itself is read once.
"""

from __future__ import annotations

import contextlib

import numpy as np
from numpy.typing import NDArray

from lapse.kernels import runs as kernel
from lapse.kernels import survey
from lapse.kernels.layout import CONTROL, TRANSACTIONAL
from lapse.lifecycle.round.choice import SLOT_BYTES, Split
from lapse.lifecycle.round.source import (
    FAULTS,
    SourceSegment,
    batches_of,
    marker_types_of,
    marks_of,
    open_source,
    pieces,
)
from lapse.lifecycle.round.split.edges import Edge, Outcomes, edges_of
from lapse.lifecycle.round.split.parts import PartsReceipt, PartsWriter
from lapse.lifecycle.round.split.requests import Scanned, ScanRequest, runs_file
from lapse.lifecycle.round.split.task import Attempt, write_bits
from lapse.lifecycle.round.transactions import fold


def scan(request: ScanRequest, this: Attempt) -> Scanned:
    """Read one segment. Raises BadSegment, LapseError."""
    plan = request.plan
    [planned] = plan.segments
    with contextlib.closing(open_source(plan, planned, this.workplace, sparing=True)) as segment:
        segment.forget()  # the headers are rows now
        segment.require_below(request.end)
        edges: tuple[Edge, ...] = ()
        markers = segment.some(CONTROL)
        if segment.some(TRANSACTIONAL | CONTROL):
            edges = set_transactions(segment, request.outcomes)
            if request.outcomes is None:
                return Scanned(request.index, segment.records, edges, markers)
        runs, mapped_from = _write_runs(request, segment, this)
        bits = write_bits(this, request.index, segment)
        segment.require_whole()
    return Scanned(request.index, segment.records, edges, markers, runs, mapped_from, bits)


def set_transactions(segment: SourceSegment, outcomes: Outcomes | None) -> tuple[Edge, ...]:
    """Which batches of one segment belong to which transaction, if its outcomes are known (M-2)."""
    types = marker_types_of(segment)
    if outcomes is not None:
        [found] = fold([(segment.rows, types)], dict(outcomes)).segments
        segment.transactions = found
        segment.check(found.unmapped)
    return edges_of(segment.rows, types)


def _write_runs(
    request: ScanRequest, segment: SourceSegment, this: Attempt
) -> tuple[PartsReceipt, int]:
    plan, skipped = request.plan, segment.skipped
    assert plan.split is not None
    path = this.folder / runs_file(request.index)
    writer = _RunWriter(
        PartsWriter(this.fs, path, plan.split.ranges), plan.split,
        int(segment.surveyed[survey.COUNT_MAX]), segment.records, this,
    )  # fmt: skip
    filled, mapped_from = 0, -1
    with contextlib.closing(writer.parts):
        for piece in pieces(segment, 0, len(segment.rows), skipped):
            batches = batches_of(segment, piece, skipped, segment.ordinals, valued=plan.flags_count)
            lo = piece.lo
            while lo < piece.hi:
                why, lo, filled, mapped_from = kernel.collect_keys(
                    batches, lo, piece.hi, plan.dirty, request.seed, writer.entries, filled,
                    mapped_from, marks_of(segment),
                )  # fmt: skip
                if why in FAULTS:
                    raise segment.corrupt(lo, FAULTS[why])
                if why == kernel.NO_ROOM:
                    writer.write(filled)
                    filled = 0
            segment.forget()
            this.tick(segment.bytes_of(piece.lo, piece.hi))
        writer.write(filled)
        receipt = writer.parts.finish()
    return receipt, segment.records if mapped_from < 0 else mapped_from


class _RunWriter:
    """Entries in the order of the log, and written out in that of their ranges, chunk by chunk.

    Attributes:
        entries: room for a chunk, and for any batch.
    """

    def __init__(
        self, parts: PartsWriter, split: Split, count_max: int, records: int, this: Attempt
    ) -> None:
        room = max(min(split.chunk_entries, records), count_max, 1)
        self.parts = parts
        self.entries = np.empty(2 * room, np.uint64)
        self._sorted: NDArray[np.uint64] = np.empty(2 * room, np.uint64)
        self._starts = np.empty(split.ranges + 1, np.int64)
        self._places = np.empty(split.ranges, np.int64)
        self._ranges = np.arange(split.ranges)
        self._this = this

    def write(self, filled: int) -> None:
        """The first so many entries, as a part of each range that has any."""
        if not filled:
            return
        kernel.partition(self.entries, filled, self._starts, self._places, self._sorted)
        data = self._sorted[: 2 * filled].view(np.uint8)
        self.parts.add_all(self._ranges, self._starts * SLOT_BYTES, data)
        self._this.spend(len(data))
