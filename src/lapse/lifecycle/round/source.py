"""The sealed segments a round reads: their batches as rows, and their records piece by piece.

A segment is mapped into memory (`mapped`) and its headers are scanned once; one with messages of
the old formats is read from a v2 image of it (`upgrade`). An unreadable place raises `BadSegment`,
which names the place, so that rounds can stay below it (L10).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lapse.base.errors import CorruptData
from lapse.base.fs import Fs
from lapse.kernels import frames, survey
from lapse.kernels.layout import CODEC_MASK, CONTROL, TRANSACTIONAL
from lapse.kernels.offset_map import BAD_CRC, BROKEN, Batches, Marks
from lapse.kernels.scan import SMALL, first_bad_crc
from lapse.lifecycle.decide.verdict import Rules
from lapse.lifecycle.round import kept
from lapse.lifecycle.round.kept import Arena, Kept, Piece
from lapse.lifecycle.round.mapped import MappedFile
from lapse.lifecycle.round.plan import PlanSegment, RoundPlan
from lapse.lifecycle.round.receipt import BadSpot
from lapse.lifecycle.round.transactions import (
    RoundTxns,
    SegmentTxns,
    fold,
    no_transactions,
    types_of,
)
from lapse.lifecycle.round.upgrade import upgraded, write_upgraded
from lapse.log.segment import LOG, segment_path
from lapse.log.summary import maybe_unhandled, unhandled_reasons
from lapse.records.batch import Header, plain_records, scan_batches, scan_prefix, scan_small_checked
from lapse.records.compression import INFLATED_BYTES_ALWAYS, INFLATED_RATIO_MAX

SCRATCH_BYTES = 1 << 20  # inflated at a time for a kernel: still in the CPU cache then
PIECE_BYTES = 32 << 20  # of plain batches at a time, so that progress moves within a segment
# What a kernel that reads pieces may say of a batch.
FAULTS = {
    BROKEN: "a record of the batch does not parse",
    BAD_CRC: "checksum does not match",
}


class BadSegment(CorruptData):
    """A place of a segment that cannot be read.

    Attributes:
        spot: the place, for the receipt.
    """

    def __init__(self, path: Path, spot: BadSpot) -> None:
        super().__init__(str(path), spot.position, spot.reason)
        self.spot = spot


@dataclass(frozen=True, slots=True)
class Workplace:
    """The file system and folder for an attempt's files."""

    fs: Fs
    folder: Path


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """A segment with messages of old formats as stored, beside its v2 image.

    Attributes:
        rows: its messages and wrappers, in the order of the image's batches.
        nulls: number of tombstones in each that is of an old format.
    """

    file: MappedFile
    rows: NDArray[np.void]
    nulls: NDArray[np.int32]


@dataclass(slots=True, eq=False)
class SourceSegment:
    """A sealed segment open for reading, and what the map stage found out about it.

    Attributes:
        file: the mapped file; `data` is the array of its bytes, or of those of its v2 image.
        rows: the segment's batches.
        positions: byte position of each batch in the segment itself.
        starts, ends: where the stored records of each batch lie in `data`.
        old_format: which batches were messages of v0 or v1.
        ordinals: number of each batch's first record within the segment.
        surveyed: what `kernels.survey` found out about all of it.
        superseded, keyless: one bit per record.
        tombstones: tombstones per batch, counted where records were looked at.
        checked: which batches' checksums are known to be right; the map stage checks what it reads.
        transactions: set once the transactions of the whole round are known.
        stored: the segment that the image was made of, where old formats are kept.
        kept: what the map stage has inflated, if that is still in memory.
    """

    plan: PlanSegment
    path: Path
    file: MappedFile | None
    data: NDArray[np.uint8]
    rows: NDArray[np.void]
    positions: NDArray[np.int64]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    old_format: NDArray[np.bool_]
    ordinals: NDArray[np.int64]
    surveyed: NDArray[np.int64]
    superseded: NDArray[np.uint8]
    keyless: NDArray[np.uint8]
    tombstones: NDArray[np.int32]
    checked: NDArray[np.bool_]
    transactions: SegmentTxns
    stored: Stored | None = None
    kept: Kept = field(default_factory=Kept)

    @property
    def records(self) -> int:
        return int(self.surveyed[survey.RECORDS])

    @property
    def skipped(self) -> NDArray[np.bool_]:
        """Batches whose records are neither mapped nor looked up in the map (M-3)."""
        skipped = self.transactions.unmapped
        return skipped | (self.rows["attributes"] & CONTROL != 0) if self.some(CONTROL) else skipped

    def first_at(self, offset: int) -> int:
        """The first batch that ends at the offset or above; offsets ascend."""
        rows = self.rows
        return bisect_left(range(len(rows)), offset, key=lambda b: int(rows[b]["last_offset"]))

    def first_above(self, offset: int) -> int:
        """The first batch that begins at the offset or above."""
        rows = self.rows
        return bisect_left(range(len(rows)), offset, key=lambda b: int(rows[b]["base_offset"]))

    def some(self, attributes: int) -> bool:
        """Whether any batch has any of these bits."""
        return int(self.surveyed[survey.ATTRIBUTES]) & attributes != 0

    def some_marked(self, lo: int, hi: int) -> bool:
        """Whether a record of batches lo..hi-1, or a neighbour, is superseded or has no key."""
        first = int(self.ordinals[lo]) >> 3
        after = int(self.ordinals[hi - 1] + self.rows[hi - 1]["count"] + 7) >> 3
        return bool(self.superseded[first:after].any() or self.keyless[first:after].any())

    def check(self, wanted: NDArray[np.bool_]) -> None:
        """Check the checksums of wanted batches not checked yet; raises BadSegment."""
        self.check_some(0, wanted)

    def check_some(self, first: int, wanted: NDArray[np.bool_]) -> None:
        """As `check`, for the batches from `first` on; `wanted` has one value for each."""
        those = slice(first, first + len(wanted))
        bad = first_bad_crc(self.data, self.rows[those], wanted & ~self.checked[those])
        if bad >= 0:
            raise self.corrupt(first + bad, "checksum does not match")
        self.checked[those] |= wanted

    def bytes_of(self, lo: int, hi: int) -> int:
        """Bytes of batches lo..hi-1."""
        last = self.rows[hi - 1]
        return int(last["position"] + last["size"] - self.rows[lo]["position"])

    def plain(self, batch: int, target: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The record bytes of a batch, in `target` if that is large enough; raises BadSegment."""
        try:
            return plain_records(self.data, self.rows[batch], str(self.path), target)
        except CorruptData as e:
            raise self.corrupt(batch, e.reason) from e

    def corrupt(self, batch: int, reason: str) -> BadSegment:
        """The error for an unreadable batch, whose first offset is taken from the batch before it.

        No checksum covers a batch's base offset.
        """
        before, position = self.rows[:batch], int(self.positions[batch])
        return _bad_after(self.path, self.plan, before, position, reason)

    def require_below(self, end: int) -> None:
        """Raise BadSegment for a batch that reaches into the next segment, which begins at `end`.

        Which of two records is the newer is then unknown.
        """
        n = self.first_at(end)
        if n < len(self.rows):
            last_offset = self.rows[n]["last_offset"]
            raise self.corrupt(n, f"offset {last_offset} is in the segment of {end} on")

    def require_whole(self) -> None:
        """Raise BadSegment if the file changed, so that other bytes than its own were read."""
        for file in self._files():
            _require_whole(file, self.path, self.plan)

    def forget(self) -> None:
        """Release pages that were read, so that a task stays within its memory."""
        for file in self._files():
            file.forget()

    def close(self) -> None:
        self.kept = Kept()
        for file in self._files():
            file.close()

    def _files(self) -> tuple[MappedFile, ...]:
        image = () if self.file is None else (self.file,)
        return image if self.stored is None else (*image, self.stored.file)


def open_source(
    plan: RoundPlan, segment: PlanSegment, workplace: Workplace | None, *, sparing: bool = False
) -> SourceSegment:
    """Open a segment and scan its headers; raises BadSegment, for unknown features too.

    Without a workplace the image of an old format is held in memory. With `sparing`, pages are
    released on the way: a scan of headers touches nearly all of them.
    """
    path = segment_path(Path(plan.dir), segment.base_offset, LOG)
    file = _mapped(path, segment)
    held: MappedFile | None = file
    stored: Stored | None = None
    opened = [file]
    n_checked = 0
    try:
        if sparing:
            rows, position, reason = scan_prefix(file.data, check_crc=False, on_piece=file.forget)
        else:
            rows, position, reason, n_checked = scan_small_checked(file.data)
        _require_whole(file, path, segment)
        if reason is not None:
            raise _bad_after(path, segment, rows, position, reason)
        data = file.data
        ordinals, starts, ends, surveyed = _measure(rows, segment.base_offset)
        _refuse_unhandled(rows, surveyed, segment, path)
        positions, old_format = rows["position"], np.zeros(len(rows), np.bool_)
        if surveyed[survey.OLD_FORMAT]:
            old_format = rows["magic"] < 2
            nulls = np.zeros(len(rows), np.int32)
            held, data = _image(plan, segment, file, rows, workplace, nulls)
            opened += [] if held is None else [held]
            if plan.keeps_old_formats:
                stored = Stored(file, rows, nulls)
            else:
                opened.remove(file)
                try:
                    _require_whole(file, path, segment)
                finally:
                    file.close()
            lasts, rows = rows["last_offset"], scan_batches(data, str(path), check_crc=False)
            _refuse_beyond(rows, lasts, positions, segment, path)
            ordinals, starts, ends, surveyed = _measure(rows, segment.base_offset)
            n_checked = 0
        _refuse_disorder(rows, surveyed, positions, segment, path)
    except BaseException:
        for each in opened:
            each.close()
        raise
    n_bytes = (int(surveyed[survey.RECORDS]) + 7) // 8 + 8
    n = len(rows)
    return SourceSegment(
        plan=segment, path=path, file=held, data=data, rows=rows,
        positions=positions, starts=starts, ends=ends, old_format=old_format,
        ordinals=ordinals, surveyed=surveyed,
        superseded=np.zeros(n_bytes, np.uint8), keyless=np.zeros(n_bytes, np.uint8),
        tombstones=np.zeros(n, np.int32), checked=_checked(rows, surveyed, n_checked),
        transactions=SegmentTxns.none(n), stored=stored,
    )  # fmt: skip


def _measure(rows: NDArray[np.void], base_offset: int) -> tuple[NDArray[np.int64], ...]:
    """Ordinals, starts and ends of the batches, and what `kernels.survey` finds out about all."""
    ordinals, starts, ends = (np.empty(len(rows), np.int64) for _ in range(3))
    surveyed = np.empty(survey.SURVEY_SIZE, np.int64)
    survey.survey(
        rows,
        base_offset,
        ordinals,
        starts,
        ends,
        INFLATED_BYTES_ALWAYS,
        INFLATED_RATIO_MAX,
        surveyed,
    )
    return ordinals, starts, ends, surveyed


def _checked(
    rows: NDArray[np.void], surveyed: NDArray[np.int64], n_checked: int
) -> NDArray[np.bool_]:
    """Which batches are known to be right, if of the first ones the small ones are."""
    checked = np.zeros(len(rows), np.bool_)
    all_small = int(surveyed[survey.SIZE_MAX]) <= SMALL  # spares a walk over a column
    checked[:n_checked] = all_small or rows["size"][:n_checked] <= SMALL
    return checked


def _mapped(path: Path, segment: PlanSegment) -> MappedFile:
    try:
        return MappedFile(path, segment.size)
    except FileNotFoundError as e:
        raise _bad_after(path, segment, (), 0, "the file is gone") from e
    except CorruptData as e:
        raise _bad(path, segment, e) from e


def _image(
    plan: RoundPlan, segment: PlanSegment, file: MappedFile, rows: NDArray[np.void],
    workplace: Workplace | None, nulls: NDArray[np.int32],
) -> tuple[MappedFile | None, NDArray[np.uint8]]:  # fmt: skip
    """The segment's v2 image, in a file or in memory."""
    path = segment_path(Path(plan.dir), segment.base_offset, LOG)
    flat = plan.rules is Rules.KAFKA_43  # L15
    old = np.flatnonzero(rows["magic"] < 2)
    bad = first_bad_crc(file.data, rows, rows["magic"] < 2)
    if bad >= 0:
        reason = "checksum does not match"
        raise _bad_after(path, segment, rows[:bad], int(rows[bad]["position"]), reason)
    try:
        if workplace is None:
            held, data = None, upgraded(file.data, rows, str(path), flat=flat, nulls=nulls)
        else:
            made = workplace.folder / f"{segment.base_offset:020d}-image"
            size = write_upgraded(
                workplace.fs, made, file.data, rows, str(path), flat=flat, nulls=nulls
            )
            held = MappedFile(made, size)
            data = held.data
    except CorruptData as e:
        at = old[np.searchsorted(rows["position"][old], e.position, side="right") - 1]
        raise _bad_after(path, segment, rows[:at], int(rows[at]["position"]), e.reason) from e
    return held, data


def _require_whole(file: MappedFile, path: Path, segment: PlanSegment) -> None:
    try:
        file.check()
    except CorruptData as e:
        raise _bad(path, segment, e) from e


def _bad(path: Path, segment: PlanSegment, e: CorruptData) -> BadSegment:
    """The error for a file that is wrong as a whole."""
    return _bad_after(path, segment, (), e.position, e.reason)


def _bad_after(
    path: Path, segment: PlanSegment, rows: Sequence[np.void] | NDArray[np.void], position: int,
    reason: str,
) -> BadSegment:  # fmt: skip
    """The error for unreadable bytes after these sound batches."""
    above = int(rows[-1]["last_offset"]) + 1 if len(rows) else segment.base_offset
    return BadSegment(path, BadSpot(segment.base_offset, above, position, reason))


def _refuse_unhandled(
    rows: NDArray[np.void], surveyed: NDArray[np.int64], plan: PlanSegment, path: Path
) -> None:
    if not int(surveyed[survey.ATTRIBUTES]) & ~_PLAIN:
        return
    for n in np.flatnonzero(maybe_unhandled(rows)).tolist():
        for reason in unhandled_reasons(Header(*rows[n].item())):
            position = int(rows[n]["position"])
            raise _bad_after(path, plan, rows[:n], position, f"not cleaned here: {reason}")


_PLAIN = 0x03  # attributes that need no second look: codecs up to lz4, whose bits are 0 to 3


def _refuse_disorder(
    rows: NDArray[np.void], surveyed: NDArray[np.int64], positions: NDArray[np.int64],
    plan: PlanSegment, path: Path,
) -> None:  # fmt: skip
    """Offsets must ascend from the segment's base: no checksum covers a batch's base offset.

    And memory is allocated by the number of records in a header, before its checksum is checked.
    """
    places = surveyed[[survey.DISORDER, survey.CROWDED]]
    n = int(places[places >= 0].min(initial=len(rows)))
    if n < len(rows):
        reason = f"base offset {rows[n]['base_offset']} is not above what precedes it"
        if n == places[1]:
            reason = f"{rows[n]['count']} records in {rows[n]['size']} bytes"
        raise _bad_after(path, plan, rows[:n], int(positions[n]), reason)


def _refuse_beyond(
    rows: NDArray[np.void], ends: NDArray[np.int64], positions: NDArray[np.int64],
    plan: PlanSegment, path: Path,
) -> None:  # fmt: skip
    """Messages in a wrapper must lie at or below its offset (T-11): indexes depend on that."""
    for n in np.flatnonzero(rows["last_offset"] > ends)[:1]:
        above = int(ends[n - 1]) + 1 if n else plan.base_offset
        reason = f"its messages reach offset {rows[n]['last_offset']}, beyond its own"
        raise BadSegment(path, BadSpot(plan.base_offset, above, int(positions[n]), reason))


def marker_types_of(segment: SourceSegment) -> NDArray[np.uint8]:
    """The marker types of the control batches, checksums checked; raises BadSegment."""
    segment.check(segment.rows["attributes"] & CONTROL != 0)
    types, bad = types_of(segment.data, segment.rows)
    if bad >= 0:
        raise segment.corrupt(bad, "a control record does not parse")
    return types


def find_transactions(segments: Sequence[SourceSegment], outcomes: Mapping[int, bool]) -> RoundTxns:
    """M-2: the transactions of segments, and how each ended; `outcomes` as in `fold`."""
    if not any(s.some(TRANSACTIONAL | CONTROL) for s in segments):
        return no_transactions([len(s.rows) for s in segments])
    return fold([(s.rows, marker_types_of(s)) for s in segments], outcomes)


def batches_of(
    segment: SourceSegment, piece: Piece, skipped: NDArray[np.bool_],
    ordinals: NDArray[np.int64], *, valued: bool,
) -> Batches:  # fmt: skip
    """A segment's batches, with the plain records of some of them in a piece."""
    return Batches(
        data=piece.data,
        starts=piece.starts,
        ends=piece.ends,
        rows=segment.rows,
        unchecked=piece.unchecked,
        skipped=skipped,
        ordinals=ordinals,
        valued=valued,
    )


def marks_of(segment: SourceSegment) -> Marks:
    """A segment's own marks, by numbers within it."""
    return Marks(segment.superseded, segment.keyless, segment.tombstones)


def pieces(
    segment: SourceSegment, first: int, after: int, skipped: NDArray[np.bool_],
    arena: Arena | None = None,
) -> Iterator[Piece]:  # fmt: skip
    """Batches first..after-1 in order: plain ones in place, compressed ones inflated.

    Skipped batches are included, but are neither inflated nor checked. What is inflated stays with
    the segment if there is an arena for it.
    """
    rows = segment.rows
    inflater = Inflater(segment, arena)
    for lo, hi in _parts(rows, first, after):
        if not segment.some(CODEC_MASK):
            yield _in_place(segment, lo, hi)
            continue
        part = rows[lo:hi]
        packed = (part["attributes"] & CODEC_MASK != 0) & (part["count"] > 0) & ~skipped[lo:hi]
        segment.check_some(lo, packed)
        edges = (np.flatnonzero(packed[1:] != packed[:-1]) + 1 + lo).tolist()
        for start, end in zip([lo, *edges], [*edges, hi], strict=True):
            if packed[start - lo]:
                yield from inflater.pieces(start, end, packed[start - lo : end - lo])
            else:
                yield _in_place(segment, start, end)
    segment.checked[first:after] |= ~skipped[first:after]


def _in_place(segment: SourceSegment, lo: int, hi: int) -> Piece:
    unchecked = not segment.checked[lo:hi].all()
    return Piece(segment.data, segment.starts, segment.ends, lo, hi, unchecked=unchecked)


def _parts(rows: NDArray[np.void], first: int, after: int) -> Iterator[tuple[int, int]]:
    """Batches first..after-1, cut at about every multiple of PIECE_BYTES."""
    while first < after:
        border = (int(rows[first]["position"]) // PIECE_BYTES + 1) * PIECE_BYTES
        end = bisect_left(range(after), border, lo=first, key=lambda b: int(rows[b]["position"]))
        yield first, end
        first = end


class Inflater:
    """Room for the inflated records of a few batches of a segment at a time.

    With an arena these are kept with the segment, for as long as that has room; what is kept is
    not inflated again.
    """

    def __init__(self, segment: SourceSegment, arena: Arena | None = None) -> None:
        self._segment, self._arena = segment, arena
        self._own = np.empty(SCRATCH_BYTES if segment.some(CODEC_MASK) else 0, np.uint8)
        self._use(self._own)
        self._starts = np.zeros(len(segment.rows), np.int64)
        self._ends = np.zeros(len(segment.rows), np.int64)
        self._largest = 0

    def pieces(self, lo: int, hi: int, wanted: NDArray[np.bool_]) -> Iterator[Piece]:
        """Batches lo..hi-1, the wanted ones inflated; each piece may be overwritten by the next."""
        at = lo
        for piece in self._segment.kept.between(lo, hi):
            yield from self._inflated(at, piece.lo, wanted[at - lo :])
            yield piece
            at = piece.hi
        yield from self._inflated(at, hi, wanted[at - lo :])

    def _inflated(self, lo: int, hi: int, wanted: NDArray[np.bool_]) -> Iterator[Piece]:
        first, filled = lo, self._begin()
        b = lo
        while b < hi:
            b, filled = self._many(b, hi, wanted[b - lo :], filled)
            if b == hi:
                break
            size = len(self._scratch)
            if filled and size - filled < self._largest:
                yield self._piece(first, b, filled)
                first, filled = b, self._begin()
                continue
            plain = self._segment.plain(b, self._scratch[filled:])
            n_bytes = len(plain)
            self._largest = max(self._largest, n_bytes)
            if n_bytes > size - filled:
                if first < b:
                    yield self._piece(first, b, filled)
                self._starts[b], self._ends[b] = 0, n_bytes
                yield Piece(plain, self._starts, self._ends, b, b + 1, unchecked=False)
                first, filled = b + 1, self._begin()
            else:
                self._starts[b], self._ends[b] = filled, filled + n_bytes
                filled += n_bytes
            b += 1
        if first < hi:
            yield self._piece(first, hi, filled)

    def _begin(self) -> int:
        """A new piece is begun; returns how much of it is filled."""
        if self._arena is not None:
            room = self._arena.free(kept.PIECE_BYTES)
            if room is None:
                self._arena = None
            self._use(self._own if room is None else room)
        return 0

    def _use(self, scratch: NDArray[np.uint8]) -> None:
        self._scratch = scratch
        self._data = scratch.view()
        self._data.flags.writeable = False  # one array type for the kernels

    def _many(self, lo: int, hi: int, wanted: NDArray[np.bool_], filled: int) -> tuple[int, int]:
        """Inflate from batch `lo` on: up to which, and the bytes that are filled then.

        That one is for `SourceSegment.plain`, or there is no room for it.
        """
        rows, first = self._segment.rows, int(wanted[: hi - lo].argmax())
        if not wanted[first]:
            return hi, filled
        codec = int(rows[lo + first]["attributes"]) & CODEC_MASK
        if not frames.is_taken(codec):
            return lo + first, filled
        used = frames.decompressing(codec)
        b, filled, self._largest = frames.inflate_many(
            codec, used, self._segment.data, rows, lo, hi, wanted, self._scratch, filled,
            self._largest, self._starts, self._ends,
        )  # fmt: skip
        return b, filled

    def _piece(self, lo: int, hi: int, filled: int) -> Piece:
        piece = Piece(self._data, self._starts, self._ends, lo, hi, unchecked=False)
        if self._arena is not None:
            self._arena.take(filled)
            self._segment.kept.add(piece)
        return piece
