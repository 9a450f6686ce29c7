"""Which leading segments expire (T-23 … T-25, L9, D-7)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lapse.lifecycle.decide.clock import Step
from lapse.lifecycle.decide.retention import segments_to_delete
from lapse.log.facts import BadRange, LogFacts, SegmentFacts
from tests.support.lifecycle.decide.logs import NOW, compacted, log, segment


def old(base: int, age: int, size: int = 100) -> SegmentFacts:
    return segment(base, size, largest_timestamp=NOW - age, append_last_ms=NOW - age)


def gone(facts: LogFacts, policy: str = "delete", **settings: object) -> tuple[int, ...]:
    settings.setdefault("retention_ms", -1)
    return segments_to_delete(facts, compacted(cleanup_policy=policy, **settings), NOW)


FOUR = [old(0, 40), old(10, 30), old(20, 20), old(30, 10, 50)]


@pytest.mark.parametrize(
    ("log_start", "expected"),
    [(0, ()), (9, ()), (10, (0,)), (19, (0,)), (20, (0, 10)), (35, (0, 10, 20)), (40, (0, 10, 20))],
)
@pytest.mark.parametrize("policy", ["compact", "delete", "compact,delete", ""])
def test_t23_below_log_start_whatever_the_policy(
    policy: str, log_start: int, expected: tuple[int, ...]
) -> None:
    """A segment goes when the next one begins at or below the log start; never the active one."""
    assert gone(log(FOUR, log_start_offset=log_start), policy) == expected


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (350, ()),
        (251, ()),  # taking a whole segment would leave less than the limit
        (250, (0,)),
        (150, (0, 10)),
        (1, (0, 10, 20)),
        (0, (0, 10, 20, 30)),  # T-24: the active one too
        (-1, ()),
    ],
)
def test_t23_size(limit: int, expected: tuple[int, ...]) -> None:
    assert gone(log(FOUR), retention_bytes=limit) == expected
    assert gone(log(FOUR), "compact,delete", retention_bytes=limit) == expected
    assert gone(log(FOUR), "compact", retention_bytes=limit) == ()


@pytest.mark.parametrize(
    ("limit", "expected"),
    [(40, ()), (39, (0,)), (25, (0, 10)), (10, (0, 10, 20)), (9, (0, 10, 20, 30)), (-1, ())],
)
def test_t23_time(limit: int, expected: tuple[int, ...]) -> None:
    """Older than the limit, not as old as it."""
    assert gone(log(FOUR), retention_ms=limit) == expected
    assert gone(log(FOUR), "compact", retention_ms=limit) == ()


def test_t23_time_stops_at_the_first_young_one() -> None:
    facts = log([old(0, 40), old(10, 5), old(20, 40), old(30, 0)])
    assert gone(facts, retention_ms=10) == (0,)


def test_t23_each_rule_goes_on_where_the_one_before_stopped() -> None:
    start = log(FOUR, log_start_offset=10)
    assert gone(start, retention_bytes=150) == (0, 10)  # what is below the start counts no more
    assert gone(start, retention_bytes=149) == (0, 10)
    pinned = log([old(0, -999, 300), old(10, 40), old(20, 5), old(30, 0)])
    assert gone(pinned, retention_bytes=250, retention_ms=10) == (0, 10)


@pytest.mark.parametrize(
    "policy", [{"retention_ms": 0}, {"retention_bytes": 0}], ids=["by time", "by size"]
)
def test_t23_only_what_is_wholly_below_the_high_watermark(policy: dict[str, int]) -> None:
    end = log(FOUR).log_end_offset
    for high_watermark, expected in (
        (9, ()), (10, (0,)), (25, (0, 10)), (30, (0, 10, 20)), (end - 1, (0, 10, 20)),
        (end, (0, 10, 20, 30)),
    ):  # fmt: skip
        assert gone(log(FOUR, high_watermark=high_watermark), **policy) == expected


def test_t24_an_empty_active_segment_is_not_deleted() -> None:
    facts = log([old(0, 40), old(10, 40, 0)])
    assert gone(facts, retention_ms=0, retention_bytes=0) == (0,)


@pytest.mark.parametrize("policy", ["compact", ""])
def test_other_policies_keep_all_but_what_is_below_the_log_start(policy: str) -> None:
    facts = log(FOUR, log_start_offset=15)
    assert gone(facts, policy, retention_ms=0, retention_bytes=0) == (0,)


@pytest.mark.parametrize(
    ("start", "limit", "expected"), [(20, -1, (0, 10)), (10, 150, (0, 10)), (0, -1, ())]
)
def test_without_a_trusted_clock_nothing_goes_by_age(
    start: int, limit: int, expected: tuple[int, ...]
) -> None:
    """ADR-11: what is too much and what was deleted by offset ask for no time."""
    topic = compacted(cleanup_policy="compact,delete", retention_ms=0, retention_bytes=limit)
    assert segments_to_delete(log(FOUR, log_start_offset=start), topic, None) == expected


def test_what_a_clock_noted_too_early_stays_for_as_much_longer() -> None:
    """It was behind while 0 and 10 were written, and was set right 20 ago."""
    topic = compacted(cleanup_policy="delete", retention_ms=12)
    for late_ms, expected in ((0, (0, 10)), (15, (0,)), (25, ())):
        steps = [Step(NOW - 45, NOW - 21, late_ms)]
        assert segments_to_delete(log(FOUR), topic, NOW - 9, steps) == expected
        assert segments_to_delete(log(FOUR), topic, NOW, steps) == (0, 10, 20)


def test_l10_a_place_that_cannot_be_read_does_not_stop_retention() -> None:
    """S-12: in Kafka it does."""
    bad = BadRange(10, 12, 0, "bad checksum", NOW, 1, NOW + 60_000)
    facts = replace(log(FOUR), bad=bad)
    assert gone(facts, retention_ms=25) == (0, 10)


def test_t25_age_counts_from_the_largest_timestamp_or_mtime() -> None:
    """The whole table is `record_age_from`'s (`test_bounds`)."""
    by_time = {"largest_timestamp": NOW - 40, "append_last_ms": NOW}
    by_mtime = {"mtime_ms": NOW - 40}
    assert gone(log([segment(0, **by_time), old(10, 0)]), retention_ms=39) == (0,)
    assert gone(log([segment(0, **by_time), old(10, 0)]), retention_ms=40) == ()
    unstamped = segment(0, largest_timestamp=-1, with_summary=False, **by_mtime)
    assert gone(log([unstamped, old(10, 0)]), retention_ms=39) == (0,)
    assert gone(log([unstamped, old(10, 0)]), retention_ms=40) == ()


def test_l9_a_future_timestamp_does_not_pin_the_log() -> None:
    future = segment(0, largest_timestamp=NOW + 999_999, append_last_ms=NOW - 40)
    facts = log([future, old(10, 30), old(20, 0)])
    assert gone(facts, retention_ms=20) == (0, 10)


def test_an_estimated_append_clock_takes_nothing_early() -> None:
    """It comes from an mtime, which may be any: a restored directory has old ones."""
    young = segment(0, largest_timestamp=NOW, append_last_ms=5, append_estimated=True)
    assert gone(log([young, old(10, 0)]), retention_ms=20) == ()
    known = segment(0, largest_timestamp=NOW, append_last_ms=5)
    assert gone(log([known, old(10, 0)]), retention_ms=20) == (0,)


def test_an_active_segment_with_anything_in_it_expires_as_the_others_do() -> None:
    topic = compacted(cleanup_policy="delete", retention_ms=1000)
    for size, gone in ((1, (0,)), (0, ())):
        old = log([segment(0, size, largest_timestamp=NOW - 5000, append_last_ms=NOW - 5000)])
        assert segments_to_delete(old, topic, NOW) == gone
