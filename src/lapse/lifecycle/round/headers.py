"""The facts of a batch that follow from plan and header alone, and hold for all its records."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lapse.kernels import keep
from lapse.kernels.layout import CONTROL, DELETE_HORIZON
from lapse.lifecycle.decide.verdict import Rules
from lapse.lifecycle.round.plan import RoundPlan
from lapse.lifecycle.round.source import SourceSegment


def facts_of_batches(plan: RoundPlan, segment: SourceSegment, latest: int) -> NDArray[np.uint16]:
    """Facts that all records of a batch share; the map covers what is at or below `latest`."""
    rows, transactions = segment.rows, segment.transactions
    found = np.zeros(len(rows), np.uint16)
    found[transactions.aborted] |= keep.ABORTED
    found[transactions.undecided] |= keep.UNDECIDED
    if segment.some(CONTROL):
        found[rows["attributes"] & CONTROL != 0] |= keep.CONTROL
    by_age = plan.rules is Rules.KAFKA_43 and segment.plan.mtime_ms <= plan.legacy_horizon_ms
    too_old = segment.old_format & by_age  # in old formats the file's age is the horizon
    if segment.some(DELETE_HORIZON) or too_old.any():
        has_horizon = rows["attributes"] & DELETE_HORIZON != 0
        passed = has_horizon & (rows["base_timestamp"] <= plan.passed_until_ms) | too_old
        passed &= rows["last_offset"] < plan.removable_below
        if plan.rules is not Rules.KAFKA_43:
            strange = has_horizon & ~_vouched(plan, rows)
            passed &= ~strange
            # Only now are the older values surely gone (L1). Above that it waits for a later round.
            strange &= rows["last_offset"] <= latest
            has_horizon &= ~strange
            found[strange] |= keep.HORIZON_STRANGE
        found[has_horizon] |= keep.HORIZON_SET  # `too_old` have none: above the map H-7 sets one
        found[passed] |= keep.HORIZON_PASSED
    if segment.stored is not None:
        found[segment.old_format] |= keep.HORIZON_SET  # never passes: v0, v1 hold none
    return found


def _vouched(plan: RoundPlan, rows: NDArray[np.void]) -> NDArray[np.bool_]:
    """Batches whose horizon a Lapse round has set, and whose records its map covered."""
    if not plan.vouched:
        return np.zeros(len(rows), np.bool_)
    horizons, firsts, ends = np.array(plan.vouched, np.int64).T
    at = np.minimum(np.searchsorted(horizons, rows["base_timestamp"]), len(horizons) - 1)
    inside = (rows["base_offset"] >= firsts[at]) & (rows["last_offset"] < ends[at])
    found: NDArray[np.bool_] = inside & (horizons[at] == rows["base_timestamp"])
    return found


def guarded_batches(plan: RoundPlan, segment: SourceSegment) -> NDArray[np.bool_]:
    """Batches whose header must outlive their records (B-3, B-4)."""
    rows = segment.rows
    guarded = np.zeros(len(rows), np.bool_)
    if len(plan.guarded_last_offsets):
        of_producer = rows["producer_id"] >= 0
        guarded = np.isin(rows["last_offset"], plan.guarded_last_offsets) & of_producer
    if plan.guarded_markers and segment.some(CONTROL):
        control = np.flatnonzero((rows["attributes"] & CONTROL != 0) & (rows["producer_id"] >= 0))
        known = set(plan.guarded_markers)
        mine = zip(
            rows["producer_id"][control].tolist(), rows["producer_epoch"][control].tolist(),
            strict=True,
        )  # fmt: skip
        guarded[control] |= np.array([pair in known for pair in mine], np.bool_)
    at_end = segment.first_at(plan.end_guard - 1)
    if at_end < len(rows) and rows[at_end]["last_offset"] + 1 == plan.end_guard:
        guarded[at_end] = True
    return guarded
