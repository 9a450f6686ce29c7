"""Which segments become one (G-2 and T-26; L13)."""

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
    span_limit_ms,
    worth_rewriting,
)
from lapse.lifecycle.decide.verdict import Rules
from tests.support.lifecycle.decide.logs import compacted

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
    """G-4: Kafka rewrites every group in every round, and writes ten bytes for a dirty one."""
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
    """G-1: every segment, from the first of the log on, is in one group."""
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


@given(
    st.lists(st.tuples(st.integers(0, 1 << 30), st.integers(0, 40)), min_size=1, max_size=12),
    st.integers(1, 1 << 33),
)
def test_g5_no_merge_overflows_a_segments_offsets(drawn: list[tuple[int, int]], tail: int) -> None:
    """G-3: they are relative to the base of the group's first segment, which the new one keeps."""
    base, segments = 0, []
    for gap, size in drawn:
        base += gap + 1
        segments.append(Sizes(base, size, 0, 0))
    upper = base + tail
    ends = [*(s.base_offset for s in segments[1:]), upper]
    for group in group_segments(segments, LIMITS, upper):
        for i in group[1:]:
            if segments[i].size:
                assert ends[i] - 1 - segments[group[0]].base_offset <= INT_MAX


# --- KIP-354's warning ----------------------------------------------------------------------------

SPANNING = Limits(100, 50, span_ms=1000)


def timed(*items: tuple[int, ...]) -> list[Sizes]:
    """(first append, last append, largest timestamp), one byte each."""
    return [Sizes(10 * n, 1, 0, 0, *item) for n, item in enumerate(items)]


@pytest.mark.parametrize(
    ("segments", "together"),
    [
        (timed((0, 500, 500), (500, 1000, 1000)), True),  # exactly as long as a segment may be
        (timed((0, 500, 500), (501, 1001, 1001)), False),
        (timed((0, 500, 500), (500, 1001, 1000)), True),  # its age counts from the timestamp
        (timed((0, 500, 500), (500, 1000, 99_999)), True),  # L9: and no later than its append
        (timed((5000, 5000, 0), (5000, 5000, 2000)), False),  # a backfill: by record time
        (timed((5000, 5000, 0), (5000, 5000, 1000)), True),
        # One says little by its timestamp, the other by its append clock; together both say much.
        (timed((0, 100, 99_999), (5000, 5000, 90)), False),
        (timed((0, 500, -1), (500, 1000, -1)), True),  # no timestamps: the append clock alone
        (timed((0, 500, -1), (501, 1001, -1)), False),
        (timed((-1, -1, 500), (500, 600, 600)), False),  # unknown: not with others
        (timed((500, 600, 600), (-1, -1, 500)), False),
    ],
)
def test_t26_a_merge_does_not_keep_records_for_longer(
    segments: list[Sizes], together: bool
) -> None:
    assert group_segments(segments, SPANNING, 100) == ([(0, 1)] if together else [(0,), (1,)])
    assert group_segments(segments, LIMITS, 100) == [(0, 1)]  # G-2 alone, as Kafka


def test_t26_an_empty_segment_has_no_age() -> None:
    first, last = timed((0, 500, 500), (90_000, 90_000, 90_000))
    empty = Sizes(10, 0, 0, 0)
    assert group_segments([first, empty], SPANNING, 100) == [(0, 1)]
    assert group_segments([first, empty, last], SPANNING, 100) == [(0, 1), (2,)]


def test_t26_a_long_segment_is_still_rewritten_by_itself() -> None:
    long, after = timed((0, 50_000, 50_000), (50_000, 50_001, 50_001))
    groups = group_segments([long, after], SPANNING, 100)
    assert groups == [(0,), (1,)]
    assert worth_rewriting(groups, [long, after], [True, False], SPANNING) == [(0,)]


@pytest.mark.parametrize(
    ("settings", "rules", "span"),
    [
        ({"cleanup_policy": "compact,delete"}, Rules.LAPSE, 5000),
        ({"cleanup_policy": "compact,delete"}, Rules.KAFKA_43, None),
        ({"cleanup_policy": "compact,delete", "retention_ms": -1}, Rules.LAPSE, None),
        ({"cleanup_policy": "compact"}, Rules.LAPSE, None),
    ],
)
def test_t26_where_a_span_matters(
    settings: dict[str, object], rules: Rules, span: int | None
) -> None:
    assert span_limit_ms(compacted(segment_ms=5000, **settings), rules) == span


def age_from(parts: list[Sizes]) -> int:
    """What retention counts the age of a segment made of these from (T-25, L9)."""
    largest = max(s.largest_ms if s.largest_ms >= 0 else s.last_ms for s in parts)
    return min(largest, max(s.last_ms for s in parts))


@given(
    st.lists(
        st.tuples(st.integers(0, 900), st.integers(0, 900), st.integers(-1, 4000)), max_size=10
    ),
    st.integers(0, 1500),
)
def test_t26_no_part_of_a_merge_waits_longer_than_the_span(
    drawn: list[tuple[int, int, int]], span: int
) -> None:
    at, items = 0, []
    for pause, duration, largest in drawn:
        items.append((at + pause, at + pause + duration, largest))
        at += pause + duration
    segments = timed(*items)
    for group in group_segments(segments, Limits(100, 50, span), 1000):
        parts = [segments[i] for i in group]
        if len(parts) > 1:
            for part in parts:
                assert age_from(parts) - age_from([part]) <= span
                assert age_from(parts) - part.first_ms <= span


def test_t26_a_span_matters_also_where_nothing_is_kept_for_any_time() -> None:
    topic = compacted(cleanup_policy="compact,delete", retention_ms=0, segment_ms=70)
    assert span_limit_ms(topic, Rules.LAPSE) == 70


@pytest.mark.parametrize("third", [(1, 20, 0), (1, 0, 20), (40, 0, 0)])
def test_g2_each_of_three_counts(third: tuple[int, ...]) -> None:
    """What the second took is not there for the third."""
    assert group_segments(sizes(third, third, third), LIMITS, 1000) == [(0, 1), (2,)]


def test_t26_times_of_today_and_the_first_of_all() -> None:
    now = 1_700_000_000_000
    today = timed((now, now, now), (now + 400, now + 900, now + 900))
    assert group_segments(today, SPANNING, 100) == [(0, 1)]
    assert group_segments(timed((0, 0, 0), (0, 0, 0)), SPANNING, 100) == [(0, 1)]
    half_known = timed((0, 0, 0), (5, -1, 5))  # nobody knows when its last append was
    assert group_segments(half_known, SPANNING, 100) == [(0,), (1,)]
