"""Which logs get a round: moments, sizes and times at the very edge of what they mean."""

from __future__ import annotations

import pytest

from lapse.lifecycle.decide.clock import Step
from lapse.lifecycle.decide.horizon import NO_REMOVAL, Removal, Stamp
from lapse.lifecycle.decide.select import (
    Blocked,
    Decision,
    Due,
    LogInfo,
    RoundOptions,
    decide,
    must_be_made,
    oldest_ms,
)
from lapse.lifecycle.decide.verdict import Rules
from lapse.log.facts import LogFacts, SegmentFacts, StartMove
from tests.support.lifecycle.decide.logs import DAY, NOW, compacted, log, ours, segment

EXACT = RoundOptions(rules=Rules.KAFKA_43)


def decided(
    facts: LogFacts,
    wish: RoundOptions | None = None,
    stamps: tuple[Stamp, ...] | None = None,
    **settings: object,
) -> Decision:
    """Where no stamps are given, all horizons are of rounds of ours."""
    known = ours(facts) if stamps is None else stamps
    return decide(LogInfo(facts, compacted(**settings), known), NOW, wish)


def sealed(*segments: SegmentFacts, **facts: object) -> LogFacts:
    """A log of these and an empty active one."""
    return log([*segments, segment(10 * len(segments), 0)], **facts)


def test_without_a_max_lag_nothing_must_be_cleaned() -> None:
    found = decided(sealed(segment(0)))
    assert (found.must_clean_bytes, found.delay_ms, found.must_clean_ratio) == (0, 0, 0.0)
    assert decided(log([segment(0, 0)])).must_clean_ratio == 0.0, "a log of no bytes"


@pytest.mark.parametrize(("oldest_ms", "must_bytes"), [(0, 0), (1, 100)])
def test_s6_a_segment_that_says_0_says_nothing(oldest_ms: int, must_bytes: int) -> None:
    found = decided(sealed(segment(0, append_first_ms=oldest_ms)), max_compaction_lag_ms=1000)
    assert found.must_clean_bytes == must_bytes


def test_oldest_ms_is_the_first_append_where_one_is_known() -> None:
    at_0 = segment(0, append_first_ms=0, first_batch_max_timestamp=7)
    assert (oldest_ms(at_0, Rules.LAPSE), oldest_ms(at_0, Rules.KAFKA_43)) == (0, 7)
    assert oldest_ms(segment(0, append_first_ms=-1, first_batch_max_timestamp=7), Rules.LAPSE) == 7
    assert oldest_ms(segment(0, with_summary=False), Rules.LAPSE) == -1


def test_s3_a_wish_by_force_waits_for_nothing_however_fresh() -> None:
    fresh = sealed(segment(0, largest_timestamp=NOW, append_last_ms=NOW))
    held = decided(fresh, min_compaction_lag_ms=1)
    assert held.bounds.upper == 0
    assert decided(fresh, RoundOptions(force=True), min_compaction_lag_ms=1).bounds.upper == 10


def test_a_clock_that_was_set_right_prolongs_even_the_least_min_lag() -> None:
    """What it noted half a second ago may have been appended just now."""
    facts = sealed(segment(0, largest_timestamp=NOW - 500, append_last_ms=NOW - 500))
    stepped = RoundOptions(steps=(Step(NOW - 2000, NOW - 1, 1000),))
    assert decided(facts, stepped, min_compaction_lag_ms=1).bounds.upper == 0
    assert decided(facts, min_compaction_lag_ms=1).bounds.upper == 10


def test_what_is_stamped_is_stamped_with_no_earlier_time_than_the_decisions() -> None:
    assert decided(sealed(segment(0)), RoundOptions(stamp_ms=NOW - 5)).stamp_ms == NOW
    assert decided(sealed(segment(0)), RoundOptions(stamp_ms=NOW + 5)).stamp_ms == NOW + 5


def test_l6_what_has_a_deadline_must_be_made() -> None:
    late = decided(sealed(segment(0, append_first_ms=NOW - 5000)), max_compaction_lag_ms=1000)
    assert Due.MAX_LAG in late.due
    assert must_be_made(late)
    assert not must_be_made(decided(sealed(segment(0)))), "it only tidies up"


def test_l4_bytes_that_wait_are_held_against_the_whole_log() -> None:
    """Clean and dirty: with half of it dirty too, 90 bytes of 200 are not above the ratio."""
    held = segment(0, horizon_earliest_ms=NOW - 10, horizon_bytes=90)
    facts = sealed(held, segment(10), cleaner_checkpoint=10)
    settings = {"lapse_tombstone_removal_max_lag_ms": DAY, "min_cleanable_dirty_ratio": "0.5"}
    assert decided(facts, **settings).due == ()
    more = sealed(
        segment(0, horizon_earliest_ms=NOW - 10, horizon_bytes=101), segment(10),
        cleaner_checkpoint=10,
    )  # fmt: skip
    assert decided(more, **settings).due == (Due.HORIZON,)


def test_kafka_gives_up_a_log_whose_first_segment_is_bad() -> None:
    facts = sealed(segment(0, unreadable_from=0), segment(10), segment(20))
    found = decided(facts, EXACT)
    assert (found.blocked, found.due) == (Blocked.UNHANDLED, ())
    assert "unreadable at offset 0" in found.detail


def test_l10_deleted_records_in_a_segment_that_is_bad_from_its_start_stay() -> None:
    bad = sealed(segment(0, unreadable_from=0), log_start_offset=3, start_moves=(StartMove(3, 0),))
    good = sealed(segment(0), log_start_offset=3, start_moves=(StartMove(3, 0),))
    for facts, due in ((bad, ()), (good, (Due.DELETED,))):
        assert decided(facts, cleanup_policy="delete").due == due


def test_only_what_the_rules_of_a_round_count_calls_for_one() -> None:
    """Under ours a horizon of ours; under Kafka's any, but never by the clock alone (H-6)."""
    facts = sealed(
        segment(0, horizon_earliest_ms=NOW - 10, horizon_bytes=99), cleaner_checkpoint=10
    )
    assert decided(facts).removal == Removal(NOW - 10, 99)
    assert decided(facts, stamps=()).removal == NO_REMOVAL
    assert decided(facts, EXACT, stamps=()).removal == Removal(NOW - 10, 99)


def test_h2_a_setting_that_is_lowered_does_not_hurry_what_was_stamped_too_early() -> None:
    wish = RoundOptions(steps=(Step(NOW - 3000, NOW - 901, 500),))
    stamp = Stamp(NOW - 2100, NOW - 100, NOW - 2100, 0, 10)
    waits = segment(0, horizon_earliest_ms=NOW - 100, horizon_bytes=1)
    facts = sealed(waits, cleaner_checkpoint=10)
    info = LogInfo(facts, compacted(delete_retention_ms=100), (stamp,))
    assert decide(info, NOW).passed_until_ms == NOW
    assert decide(info, NOW, wish).passed_until_ms == NOW - 500
