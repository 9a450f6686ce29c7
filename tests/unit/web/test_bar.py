"""A log as a bar: its parts fill it, in order, and offsets lie where their bytes are."""

from __future__ import annotations

import random

from lapse.web.bar import NARROW, WIDTH, Mark, Part, Piece, marks_of, parts_of

LOG = [
    Piece(0, 100, 500, True),
    Piece(100, 150, 100, True),
    Piece(150, 160, 300, True),
    Piece(160, 200, 100, False),
]


def test_each_part_is_as_wide_as_its_bytes() -> None:
    assert parts_of(LOG, 100, 150) == [
        Part("clean", 0, 500, 500),
        Part("dirty", 500, 100, 100),
        Part("uncleanable", 600, 300, 300),
        Part("active", 900, 100, 100),
    ]


def test_neighbours_of_a_kind_are_one() -> None:
    assert [part.kind for part in parts_of(LOG, 0, 160)] == ["dirty", "active"]
    assert [part.kind for part in parts_of(LOG, 160, 160)] == ["clean", "active"]
    assert [part.kind for part in parts_of(LOG, None, None)] == ["sealed", "active"]
    assert parts_of([], 0, 0) == []
    assert parts_of([Piece(0, 0, 0, False)], 0, 0) == []


def test_what_is_there_is_seen_however_small() -> None:
    """And the bar is full all the same, whatever there is."""
    chance = random.Random(3)
    for _ in range(200):
        sizes = [chance.choice([0, 1, 50, 10**12]) for _ in range(chance.randrange(1, 9))]
        pieces = [
            Piece(10 * n, 10 * n + 10, size, n < len(sizes) - 1) for n, size in enumerate(sizes)
        ]
        parts = parts_of(pieces, chance.randrange(90), chance.randrange(90))
        if not sum(sizes):
            assert parts == []
            continue
        assert sum(part.size_bytes for part in parts) == sum(sizes)
        assert all(part.width >= NARROW * 0.98 for part in parts)
        at = 0.0
        for part in parts:
            assert abs(part.x - at) < 0.05
            at = part.x + part.width
        assert abs(at - WIDTH) < 0.1


def test_offsets_lie_where_their_bytes_are() -> None:
    parts = parts_of(LOG, 100, 150)
    wanted = {"start": 0, "inside": 50, "first dirty": 100, "end": 200, "beyond": 999}
    assert marks_of(LOG, parts, {**wanted, "not known": None, "none": -1}) == [
        Mark("start", 0, 0),
        Mark("inside", 50, 250),
        Mark("first dirty", 100, 500),
        Mark("end", 200, 1000),
        Mark("beyond", 999, 1000),
    ]


def test_offsets_in_a_part_that_is_drawn_wider_than_it_is() -> None:
    log = [Piece(0, 10, 1, True), Piece(10, 20, 10**9, False)]
    parts = parts_of(log, 10, 10)
    (mark,) = marks_of(log, parts, {"here": 10})
    assert mark.x == parts[0].width
