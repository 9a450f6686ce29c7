"""When the active segment is closed by time (S-14, L5, L7, L16, and L11 for D-7)."""

from __future__ import annotations

import pytest

from lapse.lifecycle.decide.roll import (
    ActiveSegment,
    roll_due,
    roll_due_ms,
    trim_roll_due,
    trim_roll_due_ms,
)
from lapse.log.facts import StartMove
from lapse.log.roll import age_limit_ms
from tests.support.lifecycle.decide.logs import compacted

HOUR = 3_600_000  # lapse.clock.jump.max.ms


@pytest.mark.parametrize(
    ("policy", "segment_ms", "max_lag", "limit"),
    [
        ("compact", 1000, 5000, 1000),
        ("compact", 5000, 1000, 1000),
        ("compact,delete", 5000, 1000, 1000),
        ("delete", 5000, 1000, 5000),  # the lag is a matter of compaction
        ("", 5000, 1000, 5000),
    ],
)
def test_s14_age_limit(policy: str, segment_ms: int, max_lag: int, limit: int) -> None:
    topic = compacted(cleanup_policy=policy, segment_ms=segment_ms, max_compaction_lag_ms=max_lag)
    assert age_limit_ms(topic) == limit


def test_l5_an_idle_segment_is_due_by_the_clock_alone() -> None:
    topic = compacted(segment_ms=1000)
    active = ActiveSegment(append_first_ms=70, size=1)
    assert roll_due_ms(active, topic) == 1070
    assert not roll_due(active, topic, 1069, HOUR)
    assert roll_due(active, topic, 1070, HOUR)


def test_an_empty_segment_is_never_due() -> None:
    topic = compacted(segment_ms=1)
    assert roll_due_ms(ActiveSegment(70, 0), topic) is None
    assert roll_due_ms(ActiveSegment(-1, 10), topic) is None
    assert not roll_due(ActiveSegment(70, 0), topic, 1 << 60, HOUR)


@pytest.mark.parametrize("draw", [0.0, 0.5, 0.999999])
@pytest.mark.parametrize("segment_ms", [1, 2, 3_600_000])
def test_l7_jitter_never_eats_the_whole_limit(draw: float, segment_ms: int) -> None:
    """T-21, E16: in Kafka jitter above max lag rolls on every append."""
    topic = compacted(
        segment_ms=7 * 86_400_000,
        max_compaction_lag_ms=segment_ms,
        segment_jitter_ms=6 * 86_400_000,
    )
    assert 1 <= age_limit_ms(topic, draw) <= segment_ms


def test_jitter_takes_away_what_was_drawn() -> None:
    topic = compacted(segment_ms=1000, segment_jitter_ms=100)
    assert [age_limit_ms(topic, draw) for draw in (0.0, 0.25, 0.99)] == [1000, 975, 901]
    assert roll_due_ms(ActiveSegment(0, 1, 0.25), topic) == 975


MOVES = (StartMove(9, 100), StartMove(14, 130), StartMove(19, 150))


@pytest.mark.parametrize(
    ("base", "first_ms"),
    [(0, 100), (8, 100), (9, 130), (13, 130), (14, 150), (18, 150), (19, None), (30, None)],
)
def test_l11_half_of_the_time_since_the_first_move_into_it(base: int, first_ms: int | None) -> None:
    """file.delete.delay.ms counts in the bound."""
    topic = compacted(lapse_physical_delete_max_lag_ms=1000, file_delete_delay_ms=200)
    due_ms = trim_roll_due_ms(base, MOVES, topic)
    assert due_ms == (None if first_ms is None else first_ms + 400)
    if due_ms is not None:
        assert not trim_roll_due(base, MOVES, topic, due_ms - 1)
        assert trim_roll_due(base, MOVES, topic, due_ms)
    else:
        assert not trim_roll_due(base, MOVES, topic, 1 << 60)


@pytest.mark.parametrize("lag", [0, 199, 200])
def test_l11_at_once_where_the_delay_leaves_no_time(lag: int) -> None:
    topic = compacted(lapse_physical_delete_max_lag_ms=lag, file_delete_delay_ms=200)
    assert trim_roll_due_ms(0, MOVES, topic) == 100


def test_l11_holds_under_record_time_and_after_the_clock_was_set_back() -> None:
    topic = compacted(lapse_roll_time="record", lapse_physical_delete_max_lag_ms=10_000)
    assert trim_roll_due_ms(0, MOVES, topic) == 100
    assert trim_roll_due(0, MOVES, compacted(), 99)  # else it would wait until that time is again
    assert not trim_roll_due(20, MOVES, compacted(), 99)


def test_a_segment_begun_by_a_clock_that_was_ahead_does_not_wait_for_it() -> None:
    topic = compacted(segment_ms=10_000_000)
    year = ActiveSegment(append_first_ms=31_536_000_000, size=1)
    assert roll_due(year, topic, 99, HOUR)
    assert not roll_due(ActiveSegment(append_first_ms=31_536_000_000, size=0), topic, 99, HOUR)
    hour = ActiveSegment(append_first_ms=3_600_099, size=1)  # set back, and soon right again
    assert not roll_due(hour, topic, 99, HOUR)
    assert roll_due(hour, topic, 99, HOUR - 1)


def test_l11_a_move_from_the_future_is_not_waited_for() -> None:
    """But only one that left something dead in this segment, and not one of this very moment."""
    topic = compacted(lapse_physical_delete_max_lag_ms=10_000, file_delete_delay_ms=0)
    now = 1000
    past, future = StartMove(15, now - 1), StartMove(17, now + 1)
    assert trim_roll_due(10, (past, future), topic, now)
    assert not trim_roll_due(10, (past,), topic, now)
    assert not trim_roll_due(10, (past, StartMove(10, now + 1)), topic, now), "below it"
    assert not trim_roll_due(10, (StartMove(15, now),), topic, now)
