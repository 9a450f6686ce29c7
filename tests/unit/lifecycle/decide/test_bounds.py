"""First dirty and first uncleanable offset, case by case (S-2 … S-5, L9, L10)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lapse.lifecycle.decide.bounds import (
    Bound,
    Bounds,
    bad_segment,
    find_bounds,
    first_dirty,
    lag_from,
    readable,
    record_age_from,
)
from lapse.lifecycle.decide.verdict import Rules
from lapse.log.facts import BadRange, LogFacts
from lapse.log.summary import Begun, Ended
from tests.support.lifecycle.decide.logs import DAY, NOW, compacted, log, segment

FOUR = [segment(0), segment(10, 200), segment(20, 400), segment(30, 7)]


def bounds(facts: LogFacts, rules: Rules = Rules.LAPSE, **settings: object) -> Bounds:
    return find_bounds(facts, compacted(**settings), NOW, rules)


@pytest.mark.parametrize(
    ("checkpoint", "log_start", "expected"),
    [
        (None, 0, (0, False)),
        (None, 13, (13, False)),
        (20, 0, (20, False)),
        (13, 13, (13, False)),
        (12, 13, (13, True)),  # below the start
        (40, 0, (40, False)),  # the end itself is in the log
        (41, 0, (0, True)),  # beyond the end: from the start, not from the end
        (41, 13, (13, True)),
    ],
)
def test_s2_first_dirty(checkpoint: int | None, log_start: int, expected: tuple[int, bool]) -> None:
    facts = log(FOUR, cleaner_checkpoint=checkpoint, log_start_offset=log_start)
    assert first_dirty(facts) == expected
    found = bounds(facts)
    assert (found.dirty, found.checkpoint_reset) == expected


@pytest.mark.parametrize(
    ("checkpoint", "given", "lapse", "kafka"),
    [
        (20, 10, (10, False), (10, False)),
        (20, 25, (20, False), (25, False)),  # 20 … 24 would count as mapped
        (None, 10, (0, False), (10, False)),
        (99, 10, (0, True), (10, False)),
        (20, 41, (0, True), (0, True)),
    ],
)
def test_l1_first_dirty_may_be_given_where_nothing_is_left_out(
    checkpoint: int | None, given: int, lapse: tuple[int, bool], kafka: tuple[int, bool]
) -> None:
    facts = log(FOUR, cleaner_checkpoint=checkpoint)
    for rules, expected in ((Rules.LAPSE, lapse), (Rules.KAFKA_43, kafka)):
        found = find_bounds(facts, compacted(), NOW, rules, given)
        assert (found.dirty, found.checkpoint_reset) == expected


@pytest.mark.parametrize(
    ("checkpoint", "upper", "clean", "dirty"),
    [
        (None, 30, 0, 700),
        (0, 30, 0, 700),
        (10, 30, 100, 600),
        (13, 30, 300, 600),  # S-5: a partly mapped segment counts in both sums
        (20, 30, 300, 400),
        (30, 30, 700, 0),  # all is clean: no sealed segment holds the dirty offset
        (33, 30, 707, 0),
    ],
)
def test_s5_bytes(checkpoint: int | None, upper: int, clean: int, dirty: int) -> None:
    found = bounds(log(FOUR, cleaner_checkpoint=checkpoint))
    assert (found.upper, found.bound) == (upper, Bound.ACTIVE_SEGMENT)  # S-3
    assert (found.clean_bytes, found.dirty_bytes) == (clean, dirty)
    assert found.ratio == dirty / (clean + dirty)


def test_a_clean_log_is_not_dirty_even_where_min_lag_asks() -> None:
    facts = log(FOUR, cleaner_checkpoint=30)
    assert bounds(facts, min_compaction_lag_ms=5 * DAY).dirty_bytes == 0


def test_an_empty_log_has_ratio_zero() -> None:
    found = bounds(log([segment(0, 0)]))
    assert (found.dirty, found.upper, found.ratio) == (0, 0, 0.0)


@pytest.mark.parametrize(
    ("stable", "upper", "bound"),
    [
        (40, 30, Bound.ACTIVE_SEGMENT),
        (30, 30, Bound.ACTIVE_SEGMENT),
        (29, 20, Bound.LAST_STABLE),  # S-4: the whole segment waits
        (20, 20, Bound.LAST_STABLE),
        (5, 0, Bound.LAST_STABLE),
    ],
)
def test_s3_s4_last_stable_offset(stable: int, upper: int, bound: Bound) -> None:
    found = bounds(log(FOUR, last_stable_offset=stable))
    assert (found.upper, found.bound) == (upper, bound)


def test_s3_the_bound_is_never_below_the_dirty_offset() -> None:
    found = bounds(log(FOUR, last_stable_offset=5, cleaner_checkpoint=20))
    assert (found.dirty, found.upper, found.dirty_bytes) == (20, 20, 0)


def aged(*ages_ms: int) -> LogFacts:
    """Sealed segments whose records and appends are so old, and an active one."""
    segments = [
        segment(10 * n, largest_timestamp=NOW - age, append_last_ms=NOW - age)
        for n, age in enumerate(ages_ms)
    ]
    return log([*segments, segment(10 * len(ages_ms))])


@pytest.mark.parametrize(
    ("ages", "checkpoint", "upper", "held"),
    [
        ((900, 800, 700), None, 30, None),
        ((900, 800, 100), None, 20, 20),
        ((900, 100, 800), None, 10, 10),  # S-3b: stops at the first too young
        ((500, 500, 500), None, 30, None),  # exactly as old as min lag: old enough
        ((499, 900, 900), None, 0, 0),
        ((100, 900, 800), 10, 30, None),  # not looked at below the dirty offset
        ((900, 100, 800), 15, 10, 10),  # the segment with the dirty offset counts
    ],
)
def test_s3_min_lag(
    ages: tuple[int, ...], checkpoint: int | None, upper: int, held: int | None
) -> None:
    facts = log(aged(*ages).segments, cleaner_checkpoint=checkpoint)
    found = bounds(facts, min_compaction_lag_ms=500)
    assert (found.upper, found.held_segment) == (upper, held)
    assert found.bound is (Bound.ACTIVE_SEGMENT if held is None else Bound.MIN_LAG)


def test_min_lag_zero_asks_nobody() -> None:
    assert bounds(aged(-9000, -9000), min_compaction_lag_ms=0).upper == 20


def test_l9_a_timestamp_from_the_future_does_not_hold_the_log() -> None:
    """S-3b, E17: Kafka waits for it; we by the append clock, which no producer sets."""
    future = segment(0, largest_timestamp=NOW + 400 * DAY, append_last_ms=NOW - DAY)
    facts = log([future, segment(10), segment(20)])
    lag = {"min_compaction_lag_ms": 1000}
    assert bounds(facts, Rules.LAPSE, **lag).upper == 20
    assert bounds(facts, Rules.KAFKA_43, **lag).upper == 0


@pytest.mark.parametrize(
    ("facts", "lapse", "kafka"),
    [
        ({"largest_timestamp": 50, "append_last_ms": 90}, 50, 50),
        ({"largest_timestamp": 90, "append_last_ms": 50}, 50, 90),
        ({"largest_timestamp": 90, "append_last_ms": -1}, 90, 90),
        ({"largest_timestamp": 90, "with_summary": False}, 90, 90),
        ({"largest_timestamp": -1, "mtime_ms": 70, "append_last_ms": 90}, 90, 70),
        ({"largest_timestamp": -1, "mtime_ms": 90, "append_last_ms": 70}, 70, 90),
        ({"largest_timestamp": -1, "mtime_ms": 70, "append_last_ms": -1}, 70, 70),
        # Beside an old record some have no time: they are as old as their append.
        ({"largest_timestamp": 50, "append_last_ms": 90, "untimed_batches": 1}, 90, 50),
        ({"largest_timestamp": 50, "append_last_ms": 90, "untimed_batches": -1}, 90, 50),
        ({"largest_timestamp": 90, "append_last_ms": 50, "untimed_batches": 1}, 50, 90),
        # An estimate comes from the mtime, which a copy may have set to anything.
        ({"largest_timestamp": 90, "append_last_ms": 50, "append_estimated": True}, 90, 90),
        (
            {
                "largest_timestamp": -1,
                "mtime_ms": 50,
                "append_last_ms": 70,
                "append_estimated": True,
            },
            50,
            50,
        ),
        ({"largest_timestamp": 0, "mtime_ms": 70, "append_last_ms": 90}, 0, 0),
    ],
)
def test_record_age(facts: dict[str, object], lapse: int, kafka: int) -> None:
    assert record_age_from(segment(0, **facts), Rules.LAPSE) == lapse
    assert record_age_from(segment(0, **facts), Rules.KAFKA_43) == kafka


@pytest.mark.parametrize(
    ("facts", "lapse"),
    [
        ({"largest_timestamp": NOW - 90, "append_last_ms": NOW - 50}, NOW - 50),
        ({"largest_timestamp": NOW - 50, "append_last_ms": NOW - 90}, NOW - 90),
        ({"largest_timestamp": NOW - 90, "append_last_ms": NOW}, NOW),
        ({"largest_timestamp": NOW - 90, "append_last_ms": NOW + 1}, NOW - 90),
        ({"largest_timestamp": NOW - 90, "append_last_ms": -1}, NOW - 90),
        ({"largest_timestamp": 5, "append_last_ms": NOW, "append_estimated": True}, 5),
    ],
)  # fmt: skip
def test_s3_min_lag_counts_from_the_append(facts: dict[str, int], lapse: int) -> None:
    """Not from times that producers give: a topic may be filled again with old ones."""
    one = segment(0, **facts)
    assert lag_from(one, NOW, Rules.LAPSE) == lapse
    assert lag_from(one, NOW, Rules.KAFKA_43) == facts["largest_timestamp"]
    facts_of = log([one, segment(10)])
    for lag_ms, upper in ((NOW - lapse, 10), (NOW - lapse + 1, 0)):
        found = find_bounds(facts_of, compacted(min_compaction_lag_ms=lag_ms), NOW, Rules.LAPSE)
        assert found.upper == upper


# --- bounds that are ours -------------------------------------------------------------------------


def bad_at(offset: int, next_try_ms: int = NOW + 1) -> BadRange:
    return BadRange(offset // 10 * 10, offset, 77, "checksum", NOW - DAY, 3, next_try_ms)


@pytest.mark.parametrize(
    ("offset", "checkpoint", "upper", "dirty_bytes"),
    [
        (25, None, 20, 300),  # cleaning goes on below it
        (20, None, 20, 300),
        (3, None, 0, 0),
        (25, 20, 20, 0),
        (5, 20, 0, 0),  # below the first dirty offset: nothing is mapped, nothing removed above
        (35, None, 30, 700),  # in the active segment
    ],
)
def test_l10_nothing_at_or_above_a_bad_place_is_looked_at(
    offset: int, checkpoint: int | None, upper: int, dirty_bytes: int
) -> None:
    facts = log(FOUR, cleaner_checkpoint=checkpoint, bad=bad_at(offset))
    found = bounds(facts)
    assert (found.upper, found.dirty_bytes) == (upper, dirty_bytes)
    assert found.bound is (Bound.ACTIVE_SEGMENT if offset == 35 else Bound.BAD_RANGE)
    assert found.dirty == (checkpoint or 0)  # which moves no checkpoint
    assert bounds(facts, Rules.KAFKA_43).bound is Bound.ACTIVE_SEGMENT


def test_l10_when_its_time_has_come_it_is_tried_in_full() -> None:
    assert bounds(log(FOUR, bad=bad_at(25, NOW + 1))).upper == 20
    assert bounds(log(FOUR, bad=bad_at(25, NOW))).upper == 30


def test_l10_a_bad_place_that_retention_took_along_bounds_nothing() -> None:
    facts = log(FOUR[2:], bad=bad_at(15))
    assert (bounds(facts).upper, bad_segment(facts)) == (30, None)


@pytest.mark.parametrize(
    ("at", "checkpoint", "upper"), [(0, None, 0), (10, None, 10), (10, 20, 10), (30, None, 30)]
)
def test_l10_what_its_owner_could_not_read_bounds_for_good(
    at: int, checkpoint: int | None, upper: int
) -> None:
    segments = [replace(s, summary=replace(s.summary, unreadable_from=at + 4))
                if s.base_offset == at else s for s in FOUR]  # fmt: skip
    facts = log(segments, cleaner_checkpoint=checkpoint)
    found = bounds(facts)
    assert found.upper == upper
    assert found.bound is (Bound.ACTIVE_SEGMENT if at == 30 else Bound.UNREADABLE)
    assert bounds(facts, Rules.KAFKA_43).bound is Bound.ACTIVE_SEGMENT


def begun(at: int, producer: int = 7, offset: int = 4) -> dict[str, object]:
    return {"begun": (Begun(producer, at + offset),), "transactional": 1}


def ended(producer: int = 7) -> dict[str, object]:
    return {"ended": (Ended(producer, 33, committed=True),), "commits": 1}


def test_s3_an_undecided_transaction_holds_what_the_lso_does_not() -> None:
    """KAFKA-13194: Kafka trusts its LSO; a hanging one below it counts as committed there (X-3)."""
    facts = log([segment(0), segment(10, **begun(10)), segment(20), segment(30)])
    found = bounds(facts)
    assert (found.upper, found.bound) == (10, Bound.UNDECIDED)
    assert bounds(facts, Rules.KAFKA_43).upper == 30
    assert bounds(replace(facts, cleaner_checkpoint=20)).upper == 10


def test_s3_a_decided_one_holds_nothing() -> None:
    for decided in (segment(20, **ended()), segment(20)):
        active = segment(30) if decided.summary.ended else segment(30, **ended())
        found = bounds(log([segment(0, **begun(0)), segment(10), decided, active]))
        assert (found.upper, found.bound) == (30, Bound.ACTIVE_SEGMENT)


def test_s3_a_marker_behind_a_gap_decides_nothing() -> None:
    """It may be that of a later transaction, the first one's lost in the gap."""
    gap = segment(10, unreadable_from=12)
    found = bounds(log([segment(0, **begun(0)), gap, segment(20, **ended()), segment(30)]))
    assert (found.upper, found.bound) == (0, Bound.UNDECIDED)
    whole = replace(gap, summary=replace(gap.summary, ended=ended()["ended"]))
    found = bounds(log([segment(0, **begun(0)), whole, segment(20), segment(30)]))
    assert (found.upper, found.bound) == (10, Bound.UNREADABLE)


# --- the first of all: 0 is a time and an offset, -1 is none --------------------------------------


def test_an_append_in_the_first_millisecond_of_all_bounds_a_timestamp() -> None:
    assert record_age_from(segment(0, largest_timestamp=5, append_last_ms=0), Rules.LAPSE) == 0
    assert record_age_from(segment(0, largest_timestamp=5, append_last_ms=-1), Rules.LAPSE) == 5


def test_what_cannot_be_read_from_its_first_record_on_is_known() -> None:
    facts = log([segment(0, unreadable_from=0), segment(10), segment(20)])
    assert readable(facts) == facts.segments[:1]
    assert readable(log(FOUR)) == log(FOUR).segments


def test_l10_a_bad_place_at_the_very_start_of_a_log_is_in_its_first_segment() -> None:
    facts = log(FOUR, bad=BadRange(0, 0, 0, "", NOW, 1, NOW + 1))
    assert bad_segment(facts) == facts.segments[0]
    assert bad_segment(log(FOUR[1:], bad=facts.bad)) is None, "it is gone"


def test_s3_the_least_min_lag_there_is_holds_what_was_appended_now() -> None:
    fresh = segment(0, largest_timestamp=NOW, append_last_ms=NOW)
    found = bounds(log([fresh, segment(10)]), min_compaction_lag_ms=1)
    assert (found.upper, found.bound, found.held_segment) == (0, Bound.MIN_LAG, 0)


def test_s3_where_a_transaction_holds_as_much_it_is_what_holds() -> None:
    """Min lag would end by the clock, and nobody could say so of this log."""
    fresh = segment(10, largest_timestamp=NOW, append_last_ms=NOW)
    facts = log([segment(0), fresh, segment(20)], last_stable_offset=10)
    found = bounds(facts, min_compaction_lag_ms=1000)
    assert (found.upper, found.bound, found.held_segment) == (10, Bound.LAST_STABLE, None)
