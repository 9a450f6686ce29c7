"""When a log must be looked at again, and how late it is (S-6, S-14, KIP-354; L4, L5, L10, L11).

That each reason has its moment is tested where the reason is (`test_select`), that none is missed
by `tests/property/test_decide.py`.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from lapse.lifecycle.decide.deadline import ROLL_SLACK_MS, compaction_delay_ms, next_look_ms
from lapse.lifecycle.decide.select import LogInfo, decide
from lapse.log.facts import LogFacts
from tests.support.lifecycle.decide.logs import DAY, NOW, compacted, log, ours, segment

EMPTY = segment(10, 0, append_first_ms=-1, first_batch_max_timestamp=-1)


def look(facts: LogFacts, **settings: object) -> int | None:
    return next_look_ms(decide(LogInfo(facts, compacted(**settings)), NOW))


def test_s6_max_lag_strikes_by_the_clock() -> None:
    facts = log([segment(0), segment(10, append_first_ms=NOW - 900), segment(20, 0)],
                cleaner_checkpoint=10)  # fmt: skip
    assert look(facts, max_compaction_lag_ms=1000) == NOW + 101


def test_s14_the_active_segment_is_looked_at_once_it_must_have_been_rolled() -> None:
    facts = log([segment(0), segment(10, append_first_ms=NOW - 9000)], cleaner_checkpoint=10)
    assert look(facts, max_compaction_lag_ms=1000) == NOW + ROLL_SLACK_MS
    assert look(facts, max_compaction_lag_ms=9500) == NOW + 501


def test_s3_min_lag_ends_by_the_clock() -> None:
    young = segment(0, largest_timestamp=NOW - 300, append_last_ms=NOW - 300)
    assert look(log([young, segment(10, 0)]), min_compaction_lag_ms=1000) == NOW + 700


def test_nothing_comes_by_the_clock_to_what_is_not_compacted() -> None:
    facts = log([segment(0, append_first_ms=NOW - 900), segment(10, 0)])
    assert look(facts, cleanup_policy="delete", max_compaction_lag_ms=1000) is None


@pytest.mark.parametrize(
    ("checkpoint", "lag", "delay"),
    [
        (None, 1000, 8000),  # the oldest
        (10, 1000, 4000),
        (15, 1000, 4000),  # partly mapped
        (20, 1000, 2000),  # only the active one: late all the same
        (30, 1000, 0),  # all is clean
        (None, 9000, 0),
        (None, DAY, 0),
    ],
)
def test_s6_delay_is_of_the_log_as_it_is(checkpoint: int | None, lag: int, delay: int) -> None:
    """Kafka's gauge stands still while nothing is eligible (V-2)."""
    ages = (9000, 5000, 3000)
    facts = log(
        [segment(10 * n, append_first_ms=NOW - age) for n, age in enumerate(ages)],
        cleaner_checkpoint=checkpoint,
    )
    settings = compacted(max_compaction_lag_ms=lag)
    assert compaction_delay_ms(facts, settings, NOW) == delay
    assert compaction_delay_ms(facts, settings, NOW + 7) == (delay + 7 if delay else
                                                            7 if lag == 9000 else 0)  # fmt: skip


def test_delay_of_what_is_not_compacted_or_empty_is_none() -> None:
    facts = log([segment(0, append_first_ms=NOW - 9000), segment(10)])
    assert compaction_delay_ms(facts, compacted(cleanup_policy="delete"), NOW) == 0
    empty = log([segment(0, 0, append_first_ms=5)])
    assert compaction_delay_ms(empty, compacted(max_compaction_lag_ms=1), NOW) == 0


@pytest.mark.parametrize(("oldest_ms", "counts"), [(0, False), (1, True)])
def test_s6_the_first_millisecond_of_all_is_no_append_as_in_kafka(
    oldest_ms: int, counts: bool
) -> None:
    """A first timestamp of 0 is what Kafka takes for none; of 1 it is a record's."""
    sealed = log([segment(0, append_first_ms=oldest_ms), EMPTY])
    active = log([segment(0, append_first_ms=oldest_ms)])
    topic = compacted(max_compaction_lag_ms=1000)
    for facts in (sealed, active):
        delay = compaction_delay_ms(facts, topic, NOW)
        assert delay == (NOW - 1000 - 1 if counts else 0)
        moment = look(facts, max_compaction_lag_ms=NOW + DAY, segment_ms=1)
        assert moment == (NOW + DAY + 2 if counts else None)


def test_s6_a_segment_that_is_clean_to_its_end_strikes_no_more() -> None:
    facts = log([segment(0, append_first_ms=NOW - 900), segment(10, append_first_ms=NOW - 5),
                 replace(EMPTY, base_offset=20)], cleaner_checkpoint=10)  # fmt: skip
    assert look(facts, max_compaction_lag_ms=1000) == NOW + 996
    clean = replace(facts, cleaner_checkpoint=20)
    assert look(clean, max_compaction_lag_ms=1000) is None
    idle = log([segment(0), segment(10, append_first_ms=NOW - 5)], cleaner_checkpoint=20)
    assert look(idle, max_compaction_lag_ms=1000) is None, "nothing of the active one is dirty"


def test_s14_what_must_be_rolled_at_this_very_moment_is_left_to_the_owner() -> None:
    facts = log([segment(0), segment(10, append_first_ms=NOW - 1001)], cleaner_checkpoint=10)
    assert look(facts, max_compaction_lag_ms=1000) == NOW + ROLL_SLACK_MS


def test_l4_a_horizon_that_has_passed_is_looked_at_half_way_into_the_lag() -> None:
    held = segment(0, 1000, horizon_earliest_ms=NOW - 10, horizon_bytes=1)
    facts = log([held, segment(10, 0)], cleaner_checkpoint=10)
    lag = {"lapse_tombstone_removal_max_lag_ms": 1000}
    found = decide(LogInfo(facts, compacted(**lag), ours(facts)), NOW)
    assert next_look_ms(found) == NOW + 490


def test_an_active_segment_that_nobody_has_looked_through_is_no_reason() -> None:
    facts = log([segment(0), segment(10, with_summary=False)], cleaner_checkpoint=10)
    assert look(facts) is None
