"""A log as a bar: which part is clean, dirty, uncleanable or still written. Pure.

Drawn by offsets, or by bytes where segments are known: a compacted log's first million offsets may
be a handful of records, so bytes say more of what a round would do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

WIDTH = 1000  # of the drawing, in its own units
NARROW = 3  # nothing that is there is drawn narrower


@dataclass(frozen=True, slots=True)
class Piece:
    """A segment of the log."""

    base_offset: int
    end_offset: int
    size_bytes: int
    is_sealed: bool


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of one kind: clean, dirty, uncleanable or active; `x` and `width` of WIDTH."""

    kind: str
    x: float
    width: float
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Mark:
    """An offset that the bar shows; `x` of WIDTH."""

    name: str
    offset: int
    x: float


def parts_of(pieces: Sequence[Piece], first_dirty: int | None, upper: int | None) -> list[Part]:
    """Neighbours of a kind together; without bounds the sealed ones are just `sealed`."""
    total = sum(piece.size_bytes for piece in pieces)
    grouped: list[tuple[str, int]] = []
    for piece in pieces:
        kind = _kind(piece, first_dirty, upper)
        if grouped and grouped[-1][0] == kind:
            grouped[-1] = (kind, grouped[-1][1] + piece.size_bytes)
        else:
            grouped.append((kind, piece.size_bytes))
    if not total:
        return []
    widths = [max(WIDTH * size / total, NARROW) if size else 0.0 for _, size in grouped]
    scale = WIDTH / sum(widths)
    ends = accumulate((width * scale for width in widths), initial=0.0)
    return [
        Part(kind, round(x, 2), round(width * scale, 2), size)
        for (kind, size), width, x in zip(grouped, widths, ends, strict=False)
        if size
    ]


def marks_of(
    pieces: Sequence[Piece], parts: Sequence[Part], offsets: dict[str, int | None]
) -> list[Mark]:
    """Where offsets lie in the bar; those that are not known are left out."""
    return [
        Mark(name, offset, round(_place(pieces, parts, offset), 2))
        for name, offset in offsets.items()
        if offset is not None and offset >= 0
    ]


def _kind(piece: Piece, first_dirty: int | None, upper: int | None) -> str:
    if not piece.is_sealed:
        return "active"
    if first_dirty is None or upper is None:
        return "sealed"
    if piece.base_offset < first_dirty:
        return "clean"
    return "dirty" if piece.base_offset < upper else "uncleanable"


def _place(pieces: Sequence[Piece], parts: Sequence[Part], offset: int) -> float:
    """Within a segment by its offsets: how its bytes lie is not known here."""
    before = 0.0
    for piece in pieces:
        if offset < piece.end_offset:
            inside = max(offset - piece.base_offset, 0) / max(
                piece.end_offset - piece.base_offset, 1
            )
            return _stretched(parts, before + inside * piece.size_bytes)
        before += piece.size_bytes
    return float(WIDTH)


def _stretched(parts: Sequence[Part], at: float) -> float:
    """From bytes to units of the bar, in which narrow parts are wider than they are."""
    for part in parts:
        if at <= part.size_bytes:
            return part.x + part.width * at / part.size_bytes
        at -= part.size_bytes
    return float(WIDTH)
