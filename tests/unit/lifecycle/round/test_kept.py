"""What the map stage inflates stays for the rewrite, as long as there is memory for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lapse.lifecycle.round import kept as kept_module
from lapse.lifecycle.round import source as sources
from lapse.lifecycle.round.kept import Arena, Kept, Piece
from lapse.lifecycle.round.source import Inflater, SourceSegment, open_source, pieces
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.layout import Codec
from tests.support.lifecycle.round.split.splits import planned
from tests.support.lifecycle.rounds import NOW

BATCHES = 10
NONE = np.zeros(BATCHES, np.bool_)


@pytest.fixture(autouse=True)
def _no_idle_arena(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_module, "_idle", [])


def segment_of(folder: Path) -> SourceSegment:
    """Batches whose records take 304 bytes each, all of another key."""
    content = b"".join(
        build_batch([NewRecord(b"k%d" % n, b"v" * 290, NOW)], BatchSpec(n, Codec.GZIP))
        for n in range(BATCHES)
    )
    plan = planned(folder, [(0, content)], BATCHES)
    return open_source(plan, plan.segments[0], None)


def plain_of(piece: Piece) -> list[bytes]:
    return [
        piece.data[piece.starts[b] : piece.ends[b]].tobytes() for b in range(piece.lo, piece.hi)
    ]


def test_what_is_kept_is_not_inflated_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment, arena = segment_of(tmp_path), Arena(16 << 20)
    first = [plain for p in pieces(segment, 0, BATCHES, NONE, arena) for plain in plain_of(p)]
    assert len(set(first)) == BATCHES
    monkeypatch.delattr(SourceSegment, "plain")
    again = [plain for p in Inflater(segment).pieces(0, BATCHES, ~NONE) for plain in plain_of(p)]
    assert again == first
    [part] = Inflater(segment).pieces(3, 7, ~NONE[3:7])
    assert (part.lo, part.hi, plain_of(part)) == (3, 7, first[3:7])
    segment.close()


@pytest.mark.parametrize("room", [0, 1999, 2000, 3500, 4000])
def test_what_there_is_no_room_for_is_inflated_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    """Pieces of 2,000 bytes hold six batches, and one is kept while 2,000 more are free."""
    monkeypatch.setattr(sources, "SCRATCH_BYTES", 500)
    monkeypatch.setattr(kept_module, "PIECE_BYTES", 2000)
    segment, arena = segment_of(tmp_path), Arena(room)
    first = [plain for p in pieces(segment, 0, BATCHES, NONE, arena) for plain in plain_of(p)]
    held = [(piece.lo, piece.hi) for piece in segment.kept.pieces]
    assert held == {0: [], 1999: [], 2000: [(0, 6)], 3500: [(0, 6)], 4000: [(0, 6), (6, 10)]}[room]
    for lo, hi in ((0, BATCHES), (2, 9), (5, 7), (7, 10)):
        found = list(Inflater(segment).pieces(lo, hi, ~NONE[lo:hi]))
        assert [b for p in found for b in range(p.lo, p.hi)] == list(range(lo, hi))
    again = [plain for p in Inflater(segment).pieces(0, BATCHES, ~NONE) for plain in plain_of(p)]
    assert again == first
    segment.close()


def test_what_is_skipped_by_a_map_is_not_there_for_a_rewrite(tmp_path: Path) -> None:
    segment, skipped = segment_of(tmp_path), NONE.copy()
    skipped[4:6] = True
    for _ in pieces(segment, 0, BATCHES, skipped, Arena(16 << 20)):
        pass
    assert [(piece.lo, piece.hi) for piece in segment.kept.pieces] == [(0, 4), (6, 10)]
    found = [plain for p in Inflater(segment).pieces(0, BATCHES, ~NONE) for plain in plain_of(p)]
    assert len(set(found)) == BATCHES
    wanted = ~NONE
    wanted[[0, 5]] = False
    some = [plain for p in Inflater(segment).pieces(0, BATCHES, wanted) for plain in plain_of(p)]
    assert (some[4], some[5]) == (found[4], b"")
    segment.close()


def test_a_segment_that_is_closed_has_nothing_that_lies_in_the_arena(tmp_path: Path) -> None:
    """The next round overwrites it."""
    segment = segment_of(tmp_path)
    for _ in pieces(segment, 0, BATCHES, NONE, Arena(16 << 20)):
        pass
    assert segment.kept.pieces
    segment.close()
    assert segment.kept.pieces == []


def test_parts_of_pieces_are_found() -> None:
    nothing = np.empty(0, np.uint8)
    places = np.empty(0, np.int64)
    made = [Piece(nothing, places, places, lo, hi, unchecked=False) for lo, hi in ((2, 4), (6, 9))]
    kept = Kept(made)
    found = {
        (lo, hi): [(piece.lo, piece.hi) for piece in kept.between(lo, hi)]
        for lo, hi in ((0, 2), (0, 3), (3, 7), (4, 6), (2, 9), (7, 8), (9, 12))
    }
    assert found == {
        (0, 2): [],
        (0, 3): [(2, 3)],
        (3, 7): [(3, 4), (6, 7)],
        (4, 6): [],
        (2, 9): [(2, 4), (6, 9)],
        (7, 8): [(7, 8)],
        (9, 12): [],
    }
    assert (made[0].lo, made[0].hi) == (2, 4)  # itself unchanged


def test_an_arena_gives_what_is_left_of_it() -> None:
    arena = Arena(1000)
    assert arena.free(1001) is None
    first = arena.free(600)
    assert first is not None
    first[:] = 1
    arena.take(600)
    assert arena.free(361) is None  # pieces begin at lines of the cache
    rest = arena.free(360)
    assert rest is not None
    rest[:] = 2
    assert first.tolist() == [1] * 600
    arena.close()
    assert arena.free(1) is None


def test_the_next_arena_has_the_memory_of_the_last_one() -> None:
    one = Arena(4 << 20)
    room = one.free(4 << 20)
    assert room is not None
    place = room.ctypes.data
    one.take(10)
    del room
    one.close()
    smaller, besides = Arena(2 << 20), Arena(2 << 20)
    places = [each.free(1) for each in (smaller, besides)]
    assert [p is not None and p.ctypes.data == place for p in places] == [True, False]
    smaller.take(1)
    smaller.close()
    larger = Arena(8 << 20)  # for which that has no room
    assert larger.free(8 << 20) is not None
    assert kept_module._idle == []


@pytest.mark.parametrize("size", [1 << 60, (1 << 63) - 1, 1 << 63, 1 << 80])
def test_where_there_is_no_memory_nothing_is_kept(size: int) -> None:
    """`--memory` may be any number."""
    assert Arena(size).free(1) is None


def test_one_that_nothing_was_taken_of_hands_it_on_too() -> None:
    """A round whose dirty part holds nothing compressed comes between two others."""
    places = []
    for size in (4 << 20, 2 << 20, 0, 4 << 20):
        arena = Arena(size)
        room = arena.free(1)
        places += [] if room is None else [room.ctypes.data]
        del room
        arena.close()
    assert len(places) == 3
    assert len(set(places)) == 1
