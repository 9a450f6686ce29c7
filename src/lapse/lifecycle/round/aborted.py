"""The `.txnindex` of a rewritten segment: the aborted transactions that still matter (X-4, F-10).

One entry for each ABORT marker that stays and whose transaction still has a batch: consumers that
read committed data need it to leave that batch out, be it only a header.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lapse.base.errors import CorruptData
from lapse.kernels.markers import ABORT
from lapse.lifecycle.decide.select import RoundKind
from lapse.lifecycle.decide.verdict import Rules
from lapse.lifecycle.round.kafka_transactions import Read, as_round, listed_for, replay
from lapse.lifecycle.round.plan import RoundPlan
from lapse.lifecycle.round.source import SourceSegment, marker_types_of
from lapse.lifecycle.round.transactions import RoundTxns
from lapse.log.segment import INDEX, TXN_INDEX, segment_path
from lapse.log.txn_index import AbortedTxn, parse_entries


def aborted_entries(
    plan: RoundPlan, transactions: RoundTxns, segment: SourceSegment, alive: NDArray[np.uint8]
) -> list[AbortedTxn]:
    """Those of one source segment; `alive` is settled once the segment is written."""
    if plan.kind is RoundKind.TRIM:
        # Nothing is judged but by offset: what reaches the log start stays (KIP-107).
        return [e for e in _entries(plan, segment) if e.last_offset >= plan.log_start]
    found = segment.transactions
    if plan.rules is Rules.KAFKA_43:
        markers = segment.rows["last_offset"][found.types == ABORT].tolist()
        return [transactions.entries[at] for at in markers if at in transactions.entries]
    kept = np.flatnonzero(found.types == ABORT)
    kept = kept[alive[found.txns[kept]] != 0]
    if not len(kept):
        return []
    try:
        known = {entry.last_offset: entry for entry in _entries(plan, segment)}
    except CorruptData:
        known = {}  # made again below
    rows = segment.rows
    first_offsets = transactions.first_offsets
    entries = []
    for b in kept.tolist():
        marker, first = int(rows["last_offset"][b]), int(first_offsets[found.txns[b]])
        # Kafka may have lost its index. Of an entry made again nobody knows how far the last
        # stable offset had come, so it never ends a search.
        made = AbortedTxn(int(rows["producer_id"][b]), first, marker, first)
        entries.append(known.get(marker, made))
    return entries


def kafkas_transactions(plan: RoundPlan, segments: Sequence[SourceSegment]) -> RoundTxns:
    """M-2 and X-1 … X-7 as Kafka does them; raises BadSegment, CorruptData."""
    indexes = _indexes(Path(plan.dir))

    def listed(base_offset: int, upper: int) -> list[AbortedTxn]:
        above = [entries for base, entries in indexes if base >= base_offset]
        return listed_for(above, plan.forgotten_below, upper)

    types = [marker_types_of(segment) for segment in segments]
    bases = [segment.plan.base_offset for segment in segments]
    uppers = [*bases[1:], _end_of(segments[-1])]
    reads = [
        Read(segment.rows, kinds, 0, listed(base, upper))
        for segment, kinds, base, upper in zip(segments, types, bases, uppers, strict=True)
    ]
    at = max(bisect_right(bases, plan.dirty) - 1, 0)
    dirty = [
        Read(segment.rows, kinds, _first_mapped(segment, plan.dirty) if n == 0 else 0, ())
        for n, (segment, kinds) in enumerate(zip(segments[at:], types[at:], strict=True))
    ]
    dirty[0] = replace(dirty[0], listed=listed(bases[at], plan.upper))
    clean = [np.zeros(len(segment.rows), np.bool_) for segment in segments[:at]]
    return as_round(replay(reads), [*clean, *(told.aborted for told in replay(dirty))], types)


def _end_of(segment: SourceSegment) -> int:
    rows = segment.rows
    return int(rows[-1]["last_offset"]) + 1 if len(rows) else segment.plan.base_offset


def _indexes(directory: Path) -> list[tuple[int, list[AbortedTxn]]]:
    """All of a log, by the base offsets of their segments."""
    paths = sorted(path for path in directory.glob(f"*{TXN_INDEX}") if path.stem.isdigit())
    return [(int(path.stem), parse_entries(path.read_bytes(), str(path))) for path in paths]


def _first_mapped(segment: SourceSegment, dirty: int) -> int:
    """Where Kafka begins to read for its map: where the offset index leads it."""
    path = segment_path(segment.path.parent, segment.plan.base_offset, INDEX)
    entries = np.fromfile(path, ">i4").reshape(-1, 2) if path.exists() else np.zeros((0, 2))
    n = int(np.searchsorted(entries[:, 0], dirty - segment.plan.base_offset, side="right"))
    return int(np.searchsorted(segment.positions, entries[n - 1, 1])) if n else 0


def _entries(plan: RoundPlan, segment: SourceSegment) -> list[AbortedTxn]:
    """Raises CorruptData."""
    path = segment_path(Path(plan.dir), segment.plan.base_offset, TXN_INDEX)
    try:
        return parse_entries(path.read_bytes(), str(path))
    except FileNotFoundError:
        return []
