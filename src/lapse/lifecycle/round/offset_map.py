"""The map stage: which records of the round's segments are superseded.

The counterpart of Kafka's SkimpyOffsetMap.

Reads every sealed segment once: from `dirty` on records go into the map, below it they are looked
up in the finished map. The result is a bitmap per segment, which is all a rewrite needs. Records of
aborted transactions and control records are in no map (M-3).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from lapse.kernels import offset_map as kernel
from lapse.kernels.layout import CODEC_MASK, CONTROL, TRANSACTIONAL
from lapse.lifecycle.decide.select import RoundKind
from lapse.lifecycle.decide.verdict import Rules
from lapse.lifecycle.round import map_size
from lapse.lifecycle.round.kafka_transactions import kafkas_transactions
from lapse.lifecycle.round.kept import Arena, anonymous
from lapse.lifecycle.round.plan import RoundPlan
from lapse.lifecycle.round.source import (
    FAULTS,
    SourceSegment,
    Workplace,
    batches_of,
    find_transactions,
    marks_of,
    open_source,
    pieces,
)
from lapse.lifecycle.round.transactions import RoundTxns, no_transactions
from lapse.records.batch import records_of

FILTER_BITS_AN_ENTRY = 16  # of the keys that are not in the map one in sixteen is looked up
ORDINAL_MAX = (1 << 32) - 2  # a slot holds ordinal + 1 in 32 bits; a round ends before that

Tick = Callable[[int], None]  # called with bytes done


@dataclass(slots=True)
class MapResult:
    """The result of the map stage, for the rewrite.

    Attributes:
        latest: last offset the map covers; -1 in a trim.
        end_offset: the next first dirty offset (M-8); the plan's upper bound in a trim.
        entries: keys mapped.
        looked_at: records of the clean part were read too, so its tombstones get their horizons.
        transactions: the transactions of all segments.
        arena: where lies what segments have `kept`.
    """

    segments: list[SourceSegment] = field(default_factory=list)
    latest: int = -1
    end_offset: int = 0
    entries: int = 0
    looked_at: bool = False
    transactions: RoundTxns = field(default_factory=lambda: no_transactions(()))
    arena: Arena = field(default_factory=lambda: Arena(0))

    def close(self) -> None:
        """Close the segments, and give back what is kept of them."""
        for segment in self.segments:
            segment.close()
        self.arena.close()


def _zeroed(n_slots: int) -> NDArray[np.uint64]:
    """An empty table."""
    return np.frombuffer(anonymous(n_slots * map_size.SLOT_BYTES), np.uint64)


class OffsetMap:
    """Key → last ordinal, for one attempt; the seed never leaves it (ADR-2)."""

    def __init__(self, entries_max: int, dirty: int, *, valued: bool = False) -> None:
        self.entries_max, self._valued = entries_max, valued
        seeds = np.frombuffer(os.urandom(16), np.int64)
        self._table = kernel.Table(
            slots=_zeroed(map_size.SLOTS_MIN),
            window=np.empty(2 * kernel.WINDOW, np.uint64),
            state=np.zeros(kernel.STATE_SIZE, np.int64),
            entries_max=entries_max,
            seed0=int(seeds[0]),
            seed1=int(seeds[1]),
        )
        self.latest = dirty - 1

    @property
    def entries(self) -> int:
        return int(self._table.state[kernel.ENTRIES])

    @property
    def latest(self) -> int:
        return int(self._table.state[kernel.LATEST])

    @latest.setter
    def latest(self, offset: int) -> None:
        self._table.state[kernel.LATEST] = offset

    def put(self, segment: SourceSegment, dirty: int, bits: Bits, arena: Arena, tick: Tick) -> bool:
        """Map the segment's records from `dirty` on; False when the entries run out."""
        skipped = segment.skipped
        marks = kernel.Marks(bits.superseded, bits.keyless, segment.tombstones)
        for piece in pieces(segment, segment.first_at(dirty), len(segment.rows), skipped, arena):
            batches = batches_of(segment, piece, skipped, bits.ordinals, valued=self._valued)
            lo = piece.lo
            while lo < piece.hi:
                why, lo = kernel.map_keys(batches, lo, piece.hi, dirty, self._table, marks)
                if why == kernel.FULL:
                    return False
                if why in FAULTS:
                    raise segment.corrupt(lo, FAULTS[why])
                if why == kernel.GROW:
                    self._grow(int(segment.rows[lo]["count"]))
            tick(segment.bytes_of(piece.lo, piece.hi))
        return True

    @cached_property
    def _filter(self) -> NDArray[np.uint8]:
        """Of the finished map."""
        bits = np.zeros(FILTER_BITS_AN_ENTRY * (self.entries + 1) // 8, np.uint8)
        kernel.fill_filter(self._table.slots, bits)
        return bits

    def probe(self, segment: SourceSegment, dirty: int, arena: Arena, tick: Tick) -> None:
        """Mark the segment's records below `dirty` whose key the map holds.

        What is inflated for it stays in the arena where something was marked: only there will the
        rewrite want it.
        """
        skipped = segment.skipped
        for piece in pieces(segment, 0, segment.first_above(dirty), skipped, arena):
            batches = batches_of(segment, piece, skipped, segment.ordinals, valued=self._valued)
            why, at = kernel.probe_keys(
                batches, piece.lo, piece.hi, dirty, self._table, self._filter, marks_of(segment)
            )
            if why in FAULTS:
                raise segment.corrupt(at, FAULTS[why])
            if not segment.some_marked(piece.lo, piece.hi):
                segment.kept.drop(piece, arena)
            tick(segment.bytes_of(piece.lo, piece.hi))

    def probe_unmapped(self, segment: SourceSegment, base: int) -> None:
        """Mark the records of live batches that were not added to the map (Kafka's rules only).

        `base`: the ordinal of the segment's first record.
        """
        txns = segment.transactions
        for b in np.flatnonzero(txns.unmapped & ~txns.aborted).tolist():
            for n, record in enumerate(
                records_of(segment.data, segment.rows[b], str(segment.path))
            ):
                at = int(segment.ordinals[b]) + n
                segment.tombstones[b] += record.value is None
                bits = segment.superseded
                if record.key is None:
                    bits, last = segment.keyless, base + at + 1
                else:
                    key = np.frombuffer(record.key, np.uint8)
                    table = self._table
                    last = kernel.last_with(table.slots, key, table.seed0, table.seed1)
                if last > base + at:
                    bits[at >> 3] |= 1 << (at & 7)

    def _grow(self, more: int) -> None:
        slots = self._table.slots
        bigger = _zeroed(map_size.grown(len(slots) // 2, self.entries + more, self.entries_max))
        kernel.rehash(slots, bigger)
        self._table = self._table._replace(slots=bigger)


@dataclass(frozen=True, slots=True)
class Bits:
    """Bitmaps over the whole mapped range; segments get views of them."""

    ordinals: NDArray[np.int64]
    superseded: NDArray[np.uint8]
    keyless: NDArray[np.uint8]


def build_map(plan: RoundPlan, tick: Tick, workplace: Workplace | None = None) -> MapResult:
    """Run the map stage of a plan (M-1 … M-8).

    The caller closes the result.
    """
    result = MapResult(latest=plan.dirty - 1, end_offset=plan.dirty)
    opened = result.segments
    try:
        for s in plan.segments:
            opened.append(open_source(plan, s, workplace))
        for segment, following in pairwise(opened):
            segment.require_below(following.plan.base_offset)
        if plan.kind is RoundKind.TRIM:
            result.latest, result.end_offset = -1, plan.upper
        else:
            _find_transactions(plan, result)
            _run(plan, result, tick)
    except BaseException:
        result.close()
        raise
    return result


def _find_transactions(plan: RoundPlan, result: MapResult) -> None:
    """M-2: how each transaction of the round ended."""
    segments = result.segments
    if any(s.some(TRANSACTIONAL | CONTROL) for s in segments):
        if plan.rules is Rules.KAFKA_43:
            result.transactions = kafkas_transactions(plan, segments)
        else:
            result.transactions = find_transactions(segments, dict(plan.outcomes))
        for segment, found in zip(segments, result.transactions.segments, strict=True):
            segment.transactions = found
            segment.check(found.aborted | found.unmapped)  # other batches are checked when mapped


def _run(plan: RoundPlan, result: MapResult, tick: Tick) -> None:
    ends = [s.base_offset for s in plan.segments[1:]] + [plan.upper]
    dirty_ones = [i for i, end in enumerate(ends) if end > plan.dirty]
    superseded, keyless, bases = _shared_bits([result.segments[i] for i in dirty_ones])
    offset_map = OffsetMap(plan.map_entries_max, plan.dirty, valued=plan.flags_count)
    if any(s.some(CODEC_MASK) for s in result.segments):
        result.arena = Arena(plan.kept_bytes_max)
    for i, base in zip(dirty_ones, bases, strict=True):
        segment = result.segments[i]
        part = Bits(segment.ordinals + base if base else segment.ordinals, superseded, keyless)
        if base + segment.records > ORDINAL_MAX or not offset_map.put(
            segment, plan.dirty, part, result.arena, tick
        ):
            break
        offset_map.latest = ends[i] - 1  # M-7: gaps at a segment's end are covered too
    result.latest, result.entries = offset_map.latest, offset_map.entries
    result.end_offset = result.latest + 1
    for i, base in zip(dirty_ones, bases, strict=True):
        segment = result.segments[i]
        segment.superseded = _cut(superseded, base, segment)
        segment.keyless = _cut(keyless, base, segment)
        if plan.rules is Rules.KAFKA_43:
            offset_map.probe_unmapped(segment, base)
    # An empty map supersedes nothing. Kafka reads the clean part all the same: it drops records
    # without key and stamps tombstones without horizon. Lapse does so if the round is made for it.
    result.looked_at = result.entries > 0 or plan.probe_always
    if result.looked_at:
        for segment in result.segments:
            if segment.plan.base_offset < plan.dirty:
                offset_map.probe(segment, plan.dirty, result.arena, tick)


def _shared_bits(
    segments: list[SourceSegment],
) -> tuple[NDArray[np.uint8], NDArray[np.uint8], list[int]]:
    """Two bitmaps over all mapped segments, each of which begins at a whole byte."""
    sizes = [(segment.records + 7) // 8 * 8 for segment in segments]
    *bases, total = accumulate(sizes, initial=0)
    zeros = np.zeros(total // 8, np.uint8)
    return zeros, zeros.copy(), bases


def _cut(bits: NDArray[np.uint8], base: int, segment: SourceSegment) -> NDArray[np.uint8]:
    n_bytes = (segment.records + 7) // 8
    return np.concatenate([bits[base // 8 : base // 8 + n_bytes], np.zeros(8, np.uint8)])
