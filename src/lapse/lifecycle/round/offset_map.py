"""The map stage: which records of the round's segments are superseded.

Reads every sealed segment once: from `dirty` on records go into the map, below it they are looked
up in the finished map. What is left of it is a bitmap a segment, which is all a rewrite needs.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lapse.base.errors import CorruptData
from lapse.kernels import offset_map as kernel
from lapse.kernels.layout import CODEC_MASK, DELETE_HORIZON, HEADER_SIZE, LOG_APPEND_TIME
from lapse.kernels.scan import first_bad_crc
from lapse.lifecycle.decide.verdict import Rules
from lapse.lifecycle.round.mapped import MappedFile
from lapse.lifecycle.round.plan import PlanSegment, RoundPlan
from lapse.log.headers import Header
from lapse.log.summary import unhandled_reasons
from lapse.records.batch import plain_records, scan_batches
from lapse.records.layout import Codec

SLOTS_MIN = 1 << 14
SLOT_BYTES = 16
SCRATCH_BYTES = 4 << 20  # inflated batches are handed to a kernel about so many bytes at a time
PIECE_BYTES = 32 << 20  # and plain ones, so that progress moves within a segment
HUGE_PAGE = 2 << 20
ORDINAL_MAX = (1 << 32) - 2  # a slot holds ordinal + 1 in 32 bits; a round ends before that

_FAULTS = {
    kernel.BROKEN: "a record of the batch does not parse",
    kernel.BAD_CRC: "checksum does not match",
}

Tick = Callable[[int], None]  # told of bytes done


@dataclass(slots=True, eq=False)
class SourceSegment:
    """A sealed segment open for reading, and what the map stage found out about it.

    Attributes:
        file: its bytes; `data` is the array of them.
        rows: its batches.
        ordinals: number of each batch's first record within the segment.
        superseded, keyless: one bit a record.
        tombstones: null values a batch, counted where records were looked at.
        checked: which batches' checksums were found right; the map stage checks what it reads.
    """

    plan: PlanSegment
    path: Path
    file: MappedFile
    data: NDArray[np.uint8]
    rows: NDArray[np.void]
    ordinals: NDArray[np.int64]
    superseded: NDArray[np.uint8]
    keyless: NDArray[np.uint8]
    tombstones: NDArray[np.int32]
    checked: NDArray[np.bool_]

    def check(self, wanted: NDArray[np.bool_]) -> None:
        """Check the wanted batches that were not yet; raises CorruptData."""
        bad = first_bad_crc(self.data, self.rows, wanted & ~self.checked)
        if bad >= 0:
            raise self.corrupt(bad, "checksum does not match")
        self.checked |= wanted

    def bytes_of(self, lo: int, hi: int) -> int:
        """Bytes of batches lo..hi-1."""
        last = self.rows[hi - 1]
        return int(last["position"] + last["size"] - self.rows[lo]["position"])

    def corrupt(self, batch: int, reason: str) -> CorruptData:
        return CorruptData(str(self.path), int(self.rows[batch]["position"]), reason)

    def close(self) -> None:
        self.file.close()


@dataclass(slots=True)
class MapResult:
    """What the map stage hands to the rewrite.

    Attributes:
        latest: last offset the map covers.
        end_offset: the next first dirty offset (M-8).
        entries: keys mapped.
    """

    segments: list[SourceSegment] = field(default_factory=list)
    latest: int = -1
    end_offset: int = 0
    entries: int = 0


def open_segment(path: Path, plan: PlanSegment) -> SourceSegment:
    """Map a segment and scan its headers; raises CorruptData, also for what we do not handle."""
    file = MappedFile(path, plan.size)
    try:
        rows = scan_batches(file.data, str(path), check_crc=False)
        file.check()
        _refuse_unhandled(rows, path)
        _refuse_disorder(rows, plan, path)
    except BaseException:
        file.close()
        raise
    counts = rows["count"].astype(np.int64)
    ordinals = np.cumsum(counts) - counts
    n_bytes = (int(counts.sum()) + 7) // 8 + 8
    return SourceSegment(
        plan, path, file, file.data, rows, ordinals,
        np.zeros(n_bytes, np.uint8), np.zeros(n_bytes, np.uint8), np.zeros(len(rows), np.int32),
        np.zeros(len(rows), np.bool_),
    )  # fmt: skip


def _refuse_unhandled(rows: NDArray[np.void], path: Path) -> None:
    handled = CODEC_MASK | LOG_APPEND_TIME | DELETE_HORIZON
    odd = (rows["magic"] != 2) | (rows["attributes"] & ~handled != 0)
    odd |= rows["attributes"] & CODEC_MASK > Codec.ZSTD
    for row in rows[odd]:
        reason = unhandled_reasons(Header(*row.item()))[0]
        raise CorruptData(str(path), int(row["position"]), f"not cleaned here: {reason}")


def _refuse_disorder(rows: NDArray[np.void], plan: PlanSegment, path: Path) -> None:
    """Offsets must ascend from the segment's base: no checksum covers a batch's base offset."""
    starts = np.append(plan.base_offset, rows["last_offset"][:-1] + 1)
    for row in rows[rows["base_offset"] < starts][:1]:
        reason = f"base offset {row['base_offset']} is not above what precedes it"
        raise CorruptData(str(path), int(row["position"]), reason)


def _zeroed(n_words: int) -> NDArray[np.uint64]:
    """Zeroed words on huge pages where there are any: a probe then misses the TLB less."""
    size = max(n_words * 8, HUGE_PAGE)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint64)[:n_words]


def _slots_for(entries: int, at_least: int = SLOTS_MIN) -> int:
    n_slots = at_least
    while n_slots * 11 // 20 < entries:
        n_slots *= 2
    return n_slots


def map_bytes(entries: int) -> int:
    """Memory of a map that has grown to so many keys; half as much again while it grows."""
    return _slots_for(entries) * SLOT_BYTES


class OffsetMap:
    """Key → last ordinal, for one attempt; the seed never leaves it (DESIGN §4.2)."""

    def __init__(self, entries_max: int, dirty: int) -> None:
        self.entries_max = entries_max
        seeds = np.frombuffer(os.urandom(16), np.int64)
        self._seed0, self._seed1 = int(seeds[0]), int(seeds[1])
        self._slots = _zeroed(2 * SLOTS_MIN)
        self._window = np.empty(3 * kernel.WINDOW, np.uint64)
        self._state = np.zeros(kernel.STATE_SIZE, np.int64)
        self._state[kernel.LATEST] = dirty - 1

    @property
    def entries(self) -> int:
        return int(self._state[kernel.ENTRIES])

    @property
    def latest(self) -> int:
        return int(self._state[kernel.LATEST])

    @latest.setter
    def latest(self, offset: int) -> None:
        self._state[kernel.LATEST] = offset

    def put(self, segment: SourceSegment, dirty: int, bits: Bits, tick: Tick) -> bool:
        """Map the segment's records from `dirty` on; False when the entries run out."""
        for piece in pieces(segment, _holding(segment, dirty)):
            lo = piece.lo
            while lo < piece.hi:
                why, lo = kernel.map_keys(
                    piece.data, piece.starts, piece.ends, segment.rows, lo, piece.hi,
                    piece.in_place, bits.ordinals, dirty, self.entries_max,
                    self._seed0, self._seed1, self._slots, self._window, self._state,
                    bits.superseded, bits.keyless, segment.tombstones,
                )  # fmt: skip
                if why == kernel.FULL:
                    return False
                if why in _FAULTS:
                    raise segment.corrupt(lo, _FAULTS[why])
                if why == kernel.GROW:
                    self._grow(int(segment.rows[lo]["count"]))
            tick(segment.bytes_of(piece.lo, piece.hi))
        return True

    def probe(self, segment: SourceSegment, dirty: int, tick: Tick) -> None:
        """Mark the segment's records below `dirty` whose key the map holds."""
        for piece in pieces(segment, segment.rows["base_offset"] < dirty):
            why, at = kernel.probe_keys(
                piece.data, piece.starts, piece.ends, segment.rows, piece.lo, piece.hi,
                piece.in_place, segment.ordinals, dirty, self._seed0, self._seed1,
                self._slots, self._window,
                segment.superseded, segment.keyless, segment.tombstones,
            )  # fmt: skip
            if why in _FAULTS:
                raise segment.corrupt(at, _FAULTS[why])
            tick(segment.bytes_of(piece.lo, piece.hi))

    def _grow(self, more: int) -> None:
        bigger = _zeroed(2 * _slots_for(self.entries + more, len(self._slots) // 2))
        kernel.rehash(self._slots, bigger)
        self._slots = bigger


@dataclass(frozen=True, slots=True)
class Bits:
    """Bitmaps over the whole mapped range; segments get views of them."""

    ordinals: NDArray[np.int64]
    superseded: NDArray[np.uint8]
    keyless: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Piece:
    """Batches lo..hi-1 of a segment with their records plain in `data`.

    starts[b] and ends[b] are meant for b in that range only. `in_place`: `data` is the segment
    itself, and checksums are yet to be looked at; an inflated batch's was.
    """

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    lo: int
    hi: int
    in_place: bool


def _holding(segment: SourceSegment, dirty: int) -> NDArray[np.bool_]:
    held: NDArray[np.bool_] = segment.rows["last_offset"] >= dirty
    return held


def pieces(segment: SourceSegment, wanted: NDArray[np.bool_]) -> Iterator[Piece]:
    """The wanted batches in order: plain ones in place, compressed ones inflated."""
    rows = segment.rows
    plain_starts = rows["position"] + HEADER_SIZE
    plain_ends = rows["position"] + rows["size"]
    compressed = (rows["attributes"] & CODEC_MASK != 0) & (rows["count"] > 0)
    kind = np.where(wanted, np.where(compressed, 2, 1), 0)
    part = rows["position"] // PIECE_BYTES
    edges = np.flatnonzero((np.diff(kind) != 0) | (np.diff(part) != 0)) + 1
    for lo, hi in zip([0, *edges], [*edges, len(rows)], strict=True):
        if hi > lo and kind[lo] == 1:
            yield Piece(segment.data, plain_starts, plain_ends, int(lo), int(hi), in_place=True)
        elif hi > lo and kind[lo] == 2:
            segment.check(wanted & compressed)
            yield from _inflated(segment, int(lo), int(hi))
    segment.checked |= wanted


def _inflated(segment: SourceSegment, lo: int, hi: int) -> Iterator[Piece]:
    starts = np.zeros(len(segment.rows), np.int64)
    ends = np.zeros(len(segment.rows), np.int64)
    parts: list[NDArray[np.uint8]] = []
    filled = 0
    first = lo
    for b in range(lo, hi):
        plain = plain_records(segment.data, segment.rows[b], str(segment.path))
        starts[b], ends[b] = filled, filled + len(plain)
        parts.append(plain)
        filled += len(plain)
        if filled >= SCRATCH_BYTES or b + 1 == hi:
            data = parts[0] if len(parts) == 1 else np.concatenate(parts)
            yield Piece(data, starts, ends, first, b + 1, in_place=False)
            parts, filled, first = [], 0, b + 1


def build_map(plan: RoundPlan, tick: Tick) -> MapResult:
    """Run the map stage of a plan (SEMANTICS M-1 … M-8).

    The caller closes the segments of the result.
    """
    result = MapResult(latest=plan.dirty - 1, end_offset=plan.dirty)
    opened = result.segments
    try:
        for s in plan.segments:
            opened.append(open_segment(Path(plan.dir) / f"{s.base_offset:020d}.log", s))
        _run(plan, result, tick)
    except BaseException:
        for segment in opened:
            segment.close()
        raise
    return result


def _run(plan: RoundPlan, result: MapResult, tick: Tick) -> None:
    ends = [s.base_offset for s in plan.segments[1:]] + [plan.upper]
    dirty_ones = [i for i, end in enumerate(ends) if end > plan.dirty]
    bits, bases = _shared_bits([result.segments[i] for i in dirty_ones])
    offset_map = OffsetMap(plan.map_entries_max, plan.dirty)
    for i, base in zip(dirty_ones, bases, strict=True):
        segment = result.segments[i]
        part = Bits(segment.ordinals + base, bits.superseded, bits.keyless)
        if base + _records(segment) > ORDINAL_MAX or not offset_map.put(
            segment, plan.dirty, part, tick
        ):
            break
        offset_map.latest = ends[i] - 1  # M-7: gaps at a segment's end are covered too
    result.latest, result.entries = offset_map.latest, offset_map.entries
    result.end_offset = result.latest + 1
    for i, base in zip(dirty_ones, bases, strict=True):
        segment = result.segments[i]
        segment.superseded = _cut(bits.superseded, base, segment)
        segment.keyless = _cut(bits.keyless, base, segment)
    # An empty map supersedes nothing; Kafka reads the clean part all the same and drops what it
    # finds without key, and stamps what has no horizon.
    if result.entries or plan.rules is Rules.KAFKA_43:
        for segment in result.segments:
            if segment.plan.base_offset < plan.dirty:
                offset_map.probe(segment, plan.dirty, tick)


def _records(segment: SourceSegment) -> int:
    return int(segment.rows["count"].sum())


def _shared_bits(segments: list[SourceSegment]) -> tuple[Bits, list[int]]:
    """One bitmap over all mapped segments, each beginning at a whole byte."""
    bases = []
    total = 0
    for segment in segments:
        bases.append(total)
        total += (_records(segment) + 7) // 8 * 8
    zeros = np.zeros(total // 8 + 8, np.uint8)
    return Bits(np.zeros(0, np.int64), zeros, zeros.copy()), bases


def _cut(bits: NDArray[np.uint8], base: int, segment: SourceSegment) -> NDArray[np.uint8]:
    n_bytes = (_records(segment) + 7) // 8
    return np.concatenate([bits[base // 8 : base // 8 + n_bytes], np.zeros(8, np.uint8)])
