"""The sealed segments a round reads: their batches as rows, and their records piece by piece.

A segment is mapped into memory (`mapped`) and its headers are scanned once; one with messages of
the old formats is read from a v2 image of it (`upgrade`). Whatever cannot be read is a
`BadSegment`, which names the place, so that rounds can stay below it (L10).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lapse.base.errors import CorruptData
from lapse.base.fs import Fs
from lapse.kernels.layout import CODEC_MASK, CONTROL, HEADER_SIZE
from lapse.kernels.scan import first_bad_crc
from lapse.lifecycle.decide.verdict import Rules
from lapse.lifecycle.round.mapped import MappedFile
from lapse.lifecycle.round.plan import PlanSegment, RoundPlan
from lapse.lifecycle.round.receipt import BadSpot
from lapse.lifecycle.round.transactions import SegmentTxns, types_of
from lapse.lifecycle.round.upgrade import upgraded, write_upgraded
from lapse.log.segment import LOG, segment_path
from lapse.log.summary import unhandled_reasons
from lapse.records.batch import Header, plain_records, scan_batches, scan_prefix

SCRATCH_BYTES = 4 << 20  # inflated batches are handed to a kernel about so many bytes at a time
PIECE_BYTES = 32 << 20  # and plain ones, so that progress moves within a segment


class BadSegment(CorruptData):
    """A place of a segment that cannot be read.

    Attributes:
        spot: where, for the receipt.
    """

    def __init__(self, path: Path, spot: BadSpot) -> None:
        super().__init__(str(path), spot.position, spot.reason)
        self.spot = spot


@dataclass(frozen=True, slots=True)
class Workplace:
    """Where an attempt keeps its files."""

    fs: Fs
    folder: Path


@dataclass(slots=True, eq=False)
class SourceSegment:
    """A sealed segment open for reading, and what the map stage found out about it.

    Attributes:
        file: its bytes; `data` is the array of them, or of the v2 image of them.
        rows: its batches.
        positions: where each of them lies in the segment itself.
        old_format: which of them were messages of v0 or v1.
        ordinals: number of each batch's first record within the segment.
        superseded, keyless: one bit a record.
        tombstones: tombstones a batch, counted where records were looked at.
        checked: which batches' checksums were found right; the map stage checks what it reads.
        transactions: set once those of the whole round are known.
    """

    plan: PlanSegment
    path: Path
    file: MappedFile | None
    data: NDArray[np.uint8]
    rows: NDArray[np.void]
    positions: NDArray[np.int64]
    old_format: NDArray[np.bool_]
    ordinals: NDArray[np.int64]
    superseded: NDArray[np.uint8]
    keyless: NDArray[np.uint8]
    tombstones: NDArray[np.int32]
    checked: NDArray[np.bool_]
    transactions: SegmentTxns

    @property
    def records(self) -> int:
        return int(self.rows["count"].sum())

    @property
    def skipped(self) -> NDArray[np.bool_]:
        """Batches whose records no map is asked about (M-3)."""
        control: NDArray[np.bool_] = self.rows["attributes"] & CONTROL != 0
        return control | self.transactions.aborted | self.transactions.undecided

    def check(self, wanted: NDArray[np.bool_]) -> None:
        """Check the wanted batches that were not yet; raises BadSegment."""
        bad = first_bad_crc(self.data, self.rows, wanted & ~self.checked)
        if bad >= 0:
            raise self.corrupt(bad, "checksum does not match")
        self.checked |= wanted

    def bytes_of(self, lo: int, hi: int) -> int:
        """Bytes of batches lo..hi-1."""
        last = self.rows[hi - 1]
        return int(last["position"] + last["size"] - self.rows[lo]["position"])

    def plain(self, batch: int) -> NDArray[np.uint8]:
        """The record bytes of a batch; raises BadSegment."""
        try:
            return plain_records(self.data, self.rows[batch], str(self.path))
        except CorruptData as e:
            raise self.corrupt(batch, e.reason) from e

    def corrupt(self, batch: int, reason: str) -> BadSegment:
        """No checksum covers a batch's base offset, so the one before it says where it begins."""
        above = int(self.rows[batch - 1]["last_offset"]) + 1 if batch else self.plan.base_offset
        spot = BadSpot(self.plan.base_offset, above, int(self.positions[batch]), reason)
        return BadSegment(self.path, spot)

    def require_whole(self) -> None:
        """Raises BadSegment if what was read was not the file's."""
        if self.file is not None:
            _require_whole(self.file, self.path, self.plan)

    def close(self) -> None:
        if self.file is not None:
            self.file.close()


def open_source(
    plan: RoundPlan, segment: PlanSegment, workplace: Workplace | None
) -> SourceSegment:
    """Open a segment and scan its headers; raises BadSegment, CorruptData for unknown things.

    Without a workplace the image of an old format is held in memory.
    """
    path = segment_path(Path(plan.dir), segment.base_offset, LOG)
    file = _mapped(path, segment)
    held: MappedFile | None = file  # whichever is open
    try:
        rows, position, reason = scan_prefix(file.data, check_crc=False)
        _require_whole(file, path, segment)
        if reason is not None:
            raise _bad_after(path, segment, rows, position, reason)
        _refuse_unhandled(rows, path)
        positions, old_format = rows["position"].copy(), rows["magic"] < 2
        data = file.data
        if old_format.any():
            held, data = _image(plan, segment, file, rows, workplace)
            ends, rows = rows["last_offset"], scan_batches(data, str(path), check_crc=False)
            _refuse_beyond(rows, ends, positions, segment, path)
        _refuse_disorder(rows, positions, segment, path)
    except BaseException:
        if held is not None:
            held.close()
        raise
    counts = rows["count"].astype(np.int64)
    n_bytes = (int(counts.sum()) + 7) // 8 + 8
    n = len(rows)
    return SourceSegment(
        plan=segment, path=path, file=held, data=data, rows=rows,
        positions=positions, old_format=old_format, ordinals=np.cumsum(counts) - counts,
        superseded=np.zeros(n_bytes, np.uint8), keyless=np.zeros(n_bytes, np.uint8),
        tombstones=np.zeros(n, np.int32), checked=np.zeros(n, np.bool_),
        transactions=SegmentTxns.none(n),
    )  # fmt: skip


def _mapped(path: Path, segment: PlanSegment) -> MappedFile:
    try:
        return MappedFile(path, segment.size)
    except FileNotFoundError as e:
        spot = BadSpot(segment.base_offset, segment.base_offset, 0, "the file is gone")
        raise BadSegment(path, spot) from e
    except CorruptData as e:
        raise _bad(path, segment, e) from e


def _image(
    plan: RoundPlan, segment: PlanSegment, file: MappedFile, rows: NDArray[np.void],
    workplace: Workplace | None,
) -> tuple[MappedFile | None, NDArray[np.uint8]]:  # fmt: skip
    """The segment's v2 image; the file itself is closed."""
    path = segment_path(Path(plan.dir), segment.base_offset, LOG)
    flat = plan.rules is Rules.KAFKA_43  # L15
    old = np.flatnonzero(rows["magic"] < 2)
    bad = first_bad_crc(file.data, rows, rows["magic"] < 2)
    if bad >= 0:
        reason = "checksum does not match"
        raise _bad_after(path, segment, rows[:bad], int(rows[bad]["position"]), reason)
    try:
        if workplace is None:
            held, data = None, upgraded(file.data, rows, str(path), flat=flat)
        else:
            made = workplace.folder / f"{segment.base_offset:020d}-image"
            size = write_upgraded(workplace.fs, made, file.data, rows, str(path), flat=flat)
            held = MappedFile(made, size)
            data = held.data
    except CorruptData as e:
        at = old[np.searchsorted(rows["position"][old], e.position, side="right") - 1]
        raise _bad_after(path, segment, rows[:at], int(rows[at]["position"]), e.reason) from e
    file.close()
    return held, data


def _require_whole(file: MappedFile, path: Path, segment: PlanSegment) -> None:
    try:
        file.check()
    except CorruptData as e:
        raise _bad(path, segment, e) from e


def _bad(path: Path, segment: PlanSegment, e: CorruptData) -> BadSegment:
    """Something is wrong with the file as a whole."""
    return BadSegment(path, BadSpot(segment.base_offset, segment.base_offset, e.position, e.reason))


def _bad_after(
    path: Path, segment: PlanSegment, rows: NDArray[np.void], position: int, reason: str
) -> BadSegment:
    """What follows these sound batches cannot be read."""
    above = int(rows[-1]["last_offset"]) + 1 if len(rows) else segment.base_offset
    return BadSegment(path, BadSpot(segment.base_offset, above, position, reason))


def _refuse_unhandled(rows: NDArray[np.void], path: Path) -> None:
    for row in rows[rows["attributes"] & ~_PLAIN != 0]:
        for reason in unhandled_reasons(Header(*row.item())):
            raise CorruptData(str(path), int(row["position"]), f"not cleaned here: {reason}")


_PLAIN = 0x03  # attributes that need no second look: codecs up to lz4, whose bits are 0 to 3


def _refuse_disorder(
    rows: NDArray[np.void], positions: NDArray[np.int64], plan: PlanSegment, path: Path
) -> None:
    """Offsets must ascend from the segment's base: no checksum covers a batch's base offset."""
    starts = np.append(plan.base_offset, rows["last_offset"][:-1] + 1)
    for n in np.flatnonzero(rows["base_offset"] < starts)[:1]:
        reason = f"base offset {rows[n]['base_offset']} is not above what precedes it"
        spot = BadSpot(plan.base_offset, int(starts[n]), int(positions[n]), reason)
        raise BadSegment(path, spot)


def _refuse_beyond(
    rows: NDArray[np.void], ends: NDArray[np.int64], positions: NDArray[np.int64],
    plan: PlanSegment, path: Path,
) -> None:  # fmt: skip
    """What is in a wrapper must lie at or below its own offset (T-11): indexes go by that."""
    for n in np.flatnonzero(rows["last_offset"] > ends)[:1]:
        above = int(ends[n - 1]) + 1 if n else plan.base_offset
        reason = f"its messages reach offset {rows[n]['last_offset']}, beyond its own"
        raise BadSegment(path, BadSpot(plan.base_offset, above, int(positions[n]), reason))


def marker_types_of(segment: SourceSegment) -> NDArray[np.uint8]:
    """What the control batches say, checksums looked at; raises BadSegment."""
    segment.check(segment.rows["attributes"] & CONTROL != 0)
    types, bad = types_of(segment.data, segment.rows)
    if bad >= 0:
        raise segment.corrupt(bad, "a control record does not parse")
    return types


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


def pieces(
    segment: SourceSegment, wanted: NDArray[np.bool_], skipped: NDArray[np.bool_]
) -> Iterator[Piece]:
    """The wanted batches in order: plain ones in place, compressed ones inflated.

    Those that are skipped are among them, but are neither inflated nor checked.
    """
    rows = segment.rows
    plain_starts = rows["position"] + HEADER_SIZE
    plain_ends = rows["position"] + rows["size"]
    compressed = (rows["attributes"] & CODEC_MASK != 0) & (rows["count"] > 0) & ~skipped
    kind = np.where(wanted, np.where(compressed, 2, 1), 0)
    part = rows["position"] // PIECE_BYTES
    edges = np.flatnonzero((np.diff(kind) != 0) | (np.diff(part) != 0)) + 1
    for lo, hi in zip([0, *edges], [*edges, len(rows)], strict=True):
        if hi > lo and kind[lo] == 1:
            yield Piece(segment.data, plain_starts, plain_ends, int(lo), int(hi), in_place=True)
        elif hi > lo and kind[lo] == 2:
            segment.check(wanted & compressed)
            yield from _inflated(segment, int(lo), int(hi))
    segment.checked |= wanted & ~skipped


def _inflated(segment: SourceSegment, lo: int, hi: int) -> Iterator[Piece]:
    starts = np.zeros(len(segment.rows), np.int64)
    ends = np.zeros(len(segment.rows), np.int64)
    parts: list[NDArray[np.uint8]] = []
    filled = 0
    first = lo
    for b in range(lo, hi):
        plain = segment.plain(b)
        starts[b], ends[b] = filled, filled + len(plain)
        parts.append(plain)
        filled += len(plain)
        if filled >= SCRATCH_BYTES or b + 1 == hi:
            data = parts[0] if len(parts) == 1 else np.concatenate(parts)
            yield Piece(data, starts, ends, first, b + 1, in_place=False)
            parts, filled, first = [], 0, b + 1
