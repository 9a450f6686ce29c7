"""What headers and bitmaps say of each batch of a segment, before any record is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from lapse.kernels import classify, keep, survey
from lapse.kernels.layout import CONTROL, DELETE_HORIZON
from lapse.lifecycle.decide.groups import Group, group_segments, worth_rewriting
from lapse.lifecycle.decide.select import RoundKind
from lapse.lifecycle.decide.verdict import Rules, Tables, tables
from lapse.lifecycle.round.offset_map import MapResult
from lapse.lifecycle.round.plan import PlanSegment, RoundPlan
from lapse.lifecycle.round.source import SourceSegment


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """A segment with the facts of each batch, from headers and bitmaps.

    Attributes:
        classes, facts_of, guarded: a batch each; `kernels.keep` says what they mean.
        touched: something changes for sure.
        numbered: offset = base offset + number of the record, and the superseded bitmap is all
            that is removed for that reason: it is what the ledger wants.
    """

    segment: SourceSegment
    classes: NDArray[np.uint8]
    facts_of: NDArray[np.uint16]
    guarded: NDArray[np.uint8]
    touched: bool
    numbered: bool


@dataclass(frozen=True, eq=False)
class Round:
    """The state by which all segments of a round are judged.

    Attributes:
        alive: uint8[transactions], 1 once a batch of its data is known to stay.
    """

    plan: RoundPlan
    mapped: MapResult
    rules: Tables
    alive: NDArray[np.uint8]

    @staticmethod
    def of(plan: RoundPlan, mapped: MapResult) -> Round:
        observed = mapped.transactions.observed
        # Kafka counts batches that it saw, whether they stay or go in this very pass.
        alive = observed if plan.rules is Rules.KAFKA_43 else np.zeros_like(observed)
        return Round(plan, mapped, tables(plan.rules), alive)

    @cached_property
    def judged_by(self) -> keep.Rules:
        """The same for the kernels."""
        plan = self.plan
        return keep.Rules(
            records=self.rules.records, batches=self.rules.batches, latest=self.mapped.latest,
            log_start=plan.log_start, valued=plan.flags_count, horizon=plan.horizon_ms,
            rebase=plan.rules is Rules.KAFKA_43,
        )  # fmt: skip


def judge(round_: Round, segment: SourceSegment) -> Judged:
    """The facts of a segment's batches, from headers and bitmaps; raises BadSegment."""
    plan, mapped, rows = round_.plan, round_.mapped, segment.rows
    if plan.rules is Rules.KAFKA_43:
        # L1: Kafka stamps past the map's reach too, so those batches must be looked into.
        segment.tombstones[rows["last_offset"] > mapped.latest] += 1
    facts_of = _facts_of_batches(plan, segment, mapped.latest)
    classes = np.zeros(len(rows), np.uint8)
    guards = _guarded_batches(plan, segment).astype(np.uint8)
    n = classify.classify(
        rows, segment.ordinals, segment.superseded, segment.keyless, segment.tombstones, guards,
        facts_of, round_.rules.records, plan.log_start, classes,
    )  # fmt: skip
    segment.check(classes != keep.UNTOUCHED)
    numbered = _is_numbered(plan, segment) and keep.always_drops_superseded(round_.rules.records)
    return Judged(segment, classes, facts_of, guards, n > 0, numbered)


def _is_numbered(plan: RoundPlan, segment: SourceSegment) -> bool:
    txns = segment.transactions
    only = segment.plan.base_offset >= plan.log_start and not segment.surveyed[survey.GAPS]
    return bool(only and not (txns.aborted.any() or txns.undecided.any()))


def _facts_of_batches(plan: RoundPlan, segment: SourceSegment, latest: int) -> NDArray[np.uint16]:
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


def _guarded_batches(plan: RoundPlan, segment: SourceSegment) -> NDArray[np.bool_]:
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


def groups_of(
    plan: RoundPlan, segments: Sequence[PlanSegment], touched: Sequence[bool]
) -> list[Group]:
    """The segments to rewrite, ascending, in groups that become one segment each."""
    if plan.kind is RoundKind.TRIM:
        return [(i,) for i, changes in enumerate(touched) if changes]
    sizes = [s.sizes for s in segments]
    groups = group_segments(sizes, plan.limits, plan.upper)
    if plan.rules is Rules.KAFKA_43:
        return groups
    return worth_rewriting(groups, sizes, touched, plan.limits)
