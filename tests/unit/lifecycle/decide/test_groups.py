"""Which segments become one (SEMANTICS G-2, DESIGN L13)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.lifecycle.decide.groups import (
    INT_MAX,
    Group,
    Limits,
    Sizes,
    group_segments,
    worth_rewriting,
)

LIMITS = Limits(segment_bytes=100, index_bytes=50)


def sizes(*items: tuple[int, ...]) -> list[Sizes]:
    """(size, index bytes, time index bytes), ten offsets each."""
    return [Sizes(10 * n, *(*item, 0, 0)[:3]) for n, item in enumerate(items)]


@pytest.mark.parametrize(
    ("segments", "groups"),
    [
        ([], []),
        ([(60,)], [(0,)]),
        ([(60,), (40,)], [(0, 1)]),  # exactly full
        ([(60,), (41,)], [(0,), (1,)]),
        ([(300,), (1,)], [(0,), (1,)]),  # too large already, still a group of its own
        ([(30,), (30,), (30,), (30,)], [(0, 1, 2), (3,)]),
        ([(90,), (20,), (10,)], [(0,), (1, 2)]),  # greedy, in order: no best fit
        ([(1, 30), (1, 20)], [(0, 1)]),
        ([(1, 30), (1, 21)], [(0,), (1,)]),
        ([(1, 0, 30), (1, 0, 20)], [(0, 1)]),
        ([(1, 0, 30), (1, 0, 21)], [(0,), (1,)]),
    ],
)
def test_g2_bytes(segments: list[tuple[int, ...]], groups: list[Group]) -> None:
    assert group_segments(sizes(*segments), LIMITS, 1000) == groups


@pytest.mark.parametrize(
    ("last_base", "last_size", "upper", "together"),
    [
        (10, 1, INT_MAX + 1, True),  # last offset INT_MAX: the largest relative one
        (10, 1, INT_MAX + 2, False),
        (10, 0, INT_MAX + 2, True),  # KAFKA-12889: an empty one does not matter
        (INT_MAX + 5, 1, INT_MAX + 9, False),
        (INT_MAX + 5, 0, INT_MAX + 9, True),
    ],
)
def test_g2_offsets(last_base: int, last_size: int, upper: int, together: bool) -> None:
    segments = [Sizes(0, 1, 0, 0), Sizes(last_base, last_size, 0, 0)]
    groups = group_segments(segments, LIMITS, upper)
    assert groups == ([(0, 1)] if together else [(0,), (1,)])


def test_g2_a_segments_last_offset_is_where_the_next_begins() -> None:
    segments = [Sizes(0, 1, 0, 0), Sizes(10, 1, 0, 0), Sizes(INT_MAX + 2, 1, 0, 0)]
    assert group_segments(segments, LIMITS, INT_MAX + 9) == [(0,), (1, 2)]
    segments[2] = Sizes(INT_MAX + 1, 1, 0, 0)
    assert group_segments(segments, LIMITS, INT_MAX + 9) == [(0, 1), (2,)]


@pytest.mark.parametrize(
    ("byte_sizes", "touched", "expected"),
    [
        # Large ones: each for itself, and only if something goes.
        ([50, 50, 50, 50], [0, 0, 0, 0], []),
        ([50, 50, 50, 50], [0, 1, 0, 0], [(1,)]),
        ([50, 50, 50, 50], [1, 1, 1, 1], [(0,), (1,), (2,), (3,)]),
        # Two small neighbours become one: half as many.
        ([10, 10], [0, 0], [(0, 1)]),
        ([10, 10, 10], [0, 0, 0], [(0, 1, 2)]),
        # A small one alone gains nothing.
        ([10, 50], [0, 0], []),
        ([10, 50], [1, 0], [(0,)]),
        # 10|50|10 10: three small ones would become two, which is more than half.
        ([10, 50, 10, 10], [0, 0, 0, 0], []),
        ([10, 50, 10, 10], [0, 1, 1, 0], [(1,), (2,)]),
        # 10 10|50|10 10: four become two.
        ([10, 10, 50, 10, 10], [0, 0, 0, 0, 0], [(0, 1), (3, 4)]),
        ([10, 10, 50, 10, 10], [0, 0, 1, 0, 0], [(0, 1), (2,), (3, 4)]),
        # A quarter of segment.bytes is not small.
        ([25, 25], [0, 0], []),
        ([24, 24], [0, 0], [(0, 1)]),
    ],
)
def test_l13(byte_sizes: list[int], touched: list[int], expected: list[Group]) -> None:
    segments = sizes(*((size,) for size in byte_sizes))
    limits = Limits(100, 50)
    groups = group_segments(segments, limits, 1000)
    if len(groups) > 1:  # the table means neighbours that G-2 lets together
        groups = [tuple(range(len(segments)))]
    assert worth_rewriting(groups, segments, list(map(bool, touched)), limits) == expected


@given(
    st.lists(st.tuples(st.integers(0, 120), st.integers(0, 60), st.integers(0, 60)), max_size=12),
    st.data(),
)
def test_groups_keep_order_and_limits(
    items: list[tuple[int, int, int]], choose: st.DataObject
) -> None:
    segments = sizes(*items)
    groups = group_segments(segments, LIMITS, 10 * len(segments))
    assert [i for group in groups for i in group] == list(range(len(segments)))
    touched = choose.draw(st.lists(st.booleans(), min_size=len(segments), max_size=len(segments)))
    chosen = worth_rewriting(groups, segments, touched, LIMITS)
    flat = [i for group in chosen for i in group]
    assert flat == sorted(set(flat))
    assert {i for i, it in enumerate(touched) if it} <= set(flat)  # what loses something is written
    for group in [*groups, *chosen]:
        assert list(group) == list(range(group[0], group[-1] + 1))
        if len(group) > 1:
            for part, most in (("size", 100), ("index_bytes", 50), ("time_index_bytes", 50)):
                assert sum(getattr(segments[i], part) for i in group) <= most
