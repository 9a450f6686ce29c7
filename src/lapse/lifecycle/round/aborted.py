"""The `.txnindex` of a rewritten segment: the aborted transactions that still matter (X-4, F-10).

One entry per ABORT marker that stays and whose transaction still has a batch: read_committed
consumers need it to skip that batch, even if only its header is left.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lapse.base.errors import CorruptData
from lapse.kernels.markers import ABORT
from lapse.lifecycle.decide.select import RoundKind
from lapse.lifecycle.decide.verdict import Rules
from lapse.lifecycle.round.plan import RoundPlan
from lapse.lifecycle.round.source import SourceSegment
from lapse.lifecycle.round.transactions import RoundTxns
from lapse.log.segment import TXN_INDEX, segment_path
from lapse.log.txn_index import AbortedTxn, parse_entries


def aborted_entries(
    plan: RoundPlan, transactions: RoundTxns, segment: SourceSegment, alive: NDArray[np.uint8]
) -> list[AbortedTxn]:
    """The entries of one source segment; `alive` is final once the segment is written."""
    if plan.kind is RoundKind.TRIM:
        # A trim judges by offset alone: entries that reach the log start stay (KIP-107).
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
    rows, first_offsets = segment.rows, transactions.first_offsets
    entries = []
    for b in kept.tolist():
        marker, first = int(rows["last_offset"][b]), int(first_offsets[found.txns[b]])
        # Kafka may have lost its index. For an entry made again, the last stable offset of that
        # time is unknown, so the entry never ends a search.
        made = AbortedTxn(int(rows["producer_id"][b]), first, marker, first)
        entries.append(known.get(marker, made))
    return entries


def _entries(plan: RoundPlan, segment: SourceSegment) -> list[AbortedTxn]:
    """Raises CorruptData."""
    path = segment_path(Path(plan.dir), segment.plan.base_offset, TXN_INDEX)
    try:
        return parse_entries(path.read_bytes(), str(path))
    except FileNotFoundError:
        return []
