"""Inflated batches that the map stage leaves for the rewrite, within the memory of the task.

Nearly all that is mapped the rewrite reads again, and inflating is a large part of either; so it
does what holds a hit below the first dirty offset. What the memory has no room for is inflated
twice.
"""

from __future__ import annotations

import contextlib
import mmap
from bisect import bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

HUGE_PAGE = 2 << 20
PIECE_BYTES = 4 << 20  # of an arena at a time: calls cost more than caches spare
_ALIGNED = 64  # pieces begin at a line of the cache


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Batches lo..hi-1 of a segment with their records plain in `data`.

    starts[b] and ends[b] are valid for b in that range only. `unchecked`: `data` is the
    segment itself, and not all checksums are checked yet; that of an inflated batch was.
    """

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    lo: int
    hi: int
    unchecked: bool


def anonymous(size: int) -> mmap.mmap:
    """Memory that is zero and takes none until it is touched; on huge pages where available.

    A probe into a table then misses the TLB less, and a first touch costs less. What is shorter
    than a huge page does not use one: it would take all of the page.
    """
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if size >= HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


class Arena:
    """Memory for what is kept of a round, `size` bytes; it takes only what is used of them.

    When it is closed the kernel may take the memory whenever it needs some. As long as it does not,
    the next arena of this process is spared to have it cleared, which costs a byte as much as
    inflating it with lz4.
    """

    def __init__(self, size: int) -> None:
        self._memory: mmap.mmap | None = None
        with contextlib.suppress(OSError, OverflowError):  # where there is none, nothing is kept
            self._memory = _idle_or_new(size) if size else None
        whole = b"" if self._memory is None else self._memory
        self._room = np.frombuffer(whole, np.uint8)[:size]
        self._taken = self._taken_before = 0

    def free(self, n_bytes: int) -> NDArray[np.uint8] | None:
        """The next `n_bytes`, which are free until some are taken; None where fewer are left."""
        end = self._taken + n_bytes
        return self._room[self._taken : end] if end <= len(self._room) else None

    def take(self, n_bytes: int) -> None:
        """Keep the first ones of these."""
        self._taken_before = self._taken
        self._taken += -(-n_bytes // _ALIGNED) * _ALIGNED

    def give_back(self) -> None:
        """What was taken last is free again."""
        self._taken = self._taken_before

    def close(self) -> None:
        """Give it back: nothing that lies in it may be read any more."""
        memory, self._memory, self._room = self._memory, None, self._room[:0]
        if memory is not None and hasattr(mmap, "MADV_FREE"):
            memory.madvise(mmap.MADV_FREE)
            _idle[:] = [memory]


_idle: list[mmap.mmap] = []  # of this process, one at most


def _idle_or_new(size: int) -> mmap.mmap:
    try:
        memory = _idle.pop()
    except IndexError:
        return anonymous(size)
    return memory if len(memory) >= size else anonymous(size)


@dataclass(slots=True)
class Kept:
    """What is kept of one segment: pieces that lie in an arena, in order, all batches inflated."""

    pieces: list[Piece] = field(default_factory=list)

    def add(self, piece: Piece) -> None:
        """Keep one more; it may lie between others."""
        insort(self.pieces, piece, key=lambda other: other.lo)

    def drop(self, piece: Piece, arena: Arena) -> None:
        """Keep it no longer and give its room back, if it is the one that was added last."""
        if piece in self.pieces:  # parts of one that was kept before are none of them
            self.pieces.remove(piece)
            arena.give_back()

    def between(self, lo: int, hi: int) -> Iterator[Piece]:
        """The parts of pieces that are among the batches lo..hi-1."""
        first = bisect_right(self.pieces, lo, key=lambda piece: piece.hi)
        for piece in self.pieces[first:]:
            if piece.lo >= hi:
                return
            yield replace(piece, lo=max(piece.lo, lo), hi=min(piece.hi, hi))
