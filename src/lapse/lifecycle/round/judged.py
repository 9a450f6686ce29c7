"""What headers and bitmaps say of each batch of a segment, before any record is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from lapse.kernels import classify, keep, survey
from lapse.lifecycle.decide.groups import Group, group_segments, worth_rewriting
from lapse.lifecycle.decide.select import RoundKind
from lapse.lifecycle.decide.verdict import Rules, Tables, tables
from lapse.lifecycle.round.headers import facts_of_batches, guarded_batches
from lapse.lifecycle.round.offset_map import MapResult
from lapse.lifecycle.round.plan import PlanSegment, RoundPlan
from lapse.lifecycle.round.source import (
    SourceSegment,
)


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
        alive = np.zeros_like(mapped.transactions.observed)
        if plan.rules is Rules.KAFKA_43:
            # Kafka asks for batches that it saw, whether they stay or go in this very pass.
            alive = mapped.transactions.observed
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
    facts_of = facts_of_batches(plan, segment, mapped.latest)
    classes = np.zeros(len(rows), np.uint8)
    guards = guarded_batches(plan, segment).astype(np.uint8)
    n = classify.classify(
        rows, segment.ordinals, segment.superseded, segment.keyless, segment.tombstones, guards,
        facts_of, round_.rules.records, plan.log_start, classes,
    )  # fmt: skip
    segment.check(classes != keep.UNTOUCHED)
    numbered = _is_numbered(plan, segment) and keep.always_drops_superseded(round_.rules.records)
    return Judged(segment, classes, facts_of, guards, n > 0, numbered)


def _is_numbered(plan: RoundPlan, segment: SourceSegment) -> bool:
    told = segment.transactions
    only = segment.plan.base_offset >= plan.log_start and not segment.surveyed[survey.GAPS]
    return bool(only and not (told.aborted.any() or told.undecided.any()))


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
