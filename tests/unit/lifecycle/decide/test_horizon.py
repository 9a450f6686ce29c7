"""When a delete horizon has passed (KIP-534, L3) and when its removal is due (L4)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lapse.lifecycle.decide.horizon import (
    NO_REMOVAL,
    Removal,
    Stamp,
    markers_due_ms,
    passed_until,
    pending_removal,
    removal_due_ms,
    tombstones_due_ms,
)
from lapse.log.summary import Ended
from tests.support.lifecycle.decide.logs import DAY, NOW, compacted, log, segment


def test_without_rounds_of_ours_the_clock_decides() -> None:
    assert passed_until(500, []) == 500


def test_a_round_that_took_long_holds_its_own_horizon_only() -> None:
    slow = Stamp(now_ms=100, horizon_ms=200, committed_ms=150)
    assert slow.may_pass_ms == 250
    assert passed_until(199, [slow]) == 199
    assert passed_until(220, [slow]) == 199  # older ones have passed, this one has not
    assert passed_until(249, [slow]) == 199
    assert passed_until(250, [slow]) == 250


rounds = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 90), st.integers(0, 60)), max_size=6)


@given(rounds, st.integers(0, 900))
def test_no_tombstone_goes_before_commit_plus_retention(
    drawn: list[tuple[int, int, int]], later: int
) -> None:
    """Whatever a round's pause, duration or the retention in force when it ran."""
    at = 1000
    stamps = []
    for pause, duration, retention in drawn:
        at += pause
        stamps.append(Stamp(at, at + retention, at + duration))
        at += duration
    now = at + later
    passed = passed_until(now, stamps)
    assert passed <= now
    for stamp in stamps:
        retention = stamp.horizon_ms - stamp.now_ms
        if stamp.horizon_ms <= passed:
            assert now >= stamp.committed_ms + retention
    # … and for no longer than that: once all commits lie far enough back, the clock decides.
    if all(now >= s.committed_ms + (s.horizon_ms - s.now_ms) for s in stamps):
        assert passed == now
    # What is held back is held by no more than the longest round took.
    assert passed >= now - 1 - max((d for _, d, _ in drawn), default=0)


def test_pending_removal_is_told_by_sealed_segments() -> None:
    facts = log([
        segment(0, horizon_earliest_ms=70, horizon_bytes=10),
        segment(10, horizon_earliest_ms=-1, horizon_bytes=0),
        segment(20, horizon_earliest_ms=50, horizon_bytes=5),
        segment(30, with_summary=False),
        segment(40, horizon_earliest_ms=1, horizon_bytes=1000),  # the active one
    ])  # fmt: skip
    assert pending_removal(facts, 40) == Removal(50, 15)
    assert pending_removal(facts, 20) == Removal(70, 10)  # what no round reaches calls for none
    assert pending_removal(log([segment(0), segment(10)]), 10) == Removal(None, 0)
    # L3: segments that another replica has not cleaned to hold nothing that may go.
    assert pending_removal(facts, 40, 20) == Removal(70, 10)
    assert pending_removal(facts, 40, 21) == Removal(50, 15)
    assert pending_removal(facts, 40, 0) == Removal(None, 0)


def test_removal_is_due_half_way_into_its_lag() -> None:
    assert removal_due_ms(Removal(1000, 1), 600) == 1300
    assert removal_due_ms(Removal(1000, 1), 0) == 1000
    assert removal_due_ms(Removal(None, 0), 600) is None


def test_l4_spent_markers_are_due_half_way_into_the_lag_from_their_last_append() -> None:
    """X-5 … X-7: in Kafka they wait for a round that nothing calls for (H-6)."""
    alone = Ended(7, 3, committed=True, alone=True)
    facts = log([
        segment(0, commits=1, ended=(alone,), append_last_ms=500),
        segment(10, commits=2, ended=(Ended(8, 12, True),), spent_markers=1, append_last_ms=900),
        segment(20),
    ])  # fmt: skip
    assert markers_due_ms(facts, 20, 600) == 1200
    assert markers_due_ms(facts, 10, 600) == 800
    assert markers_due_ms(facts, 0, 600) is None
    stamped = segment(0, commits=1, ended=(alone._replace(stamped=True),), append_last_ms=500)
    assert markers_due_ms(log([stamped, segment(10)]), 10, 600) is None


def test_what_a_round_vouches_for_ends_where_it_ended() -> None:
    stamp = Stamp(0, 70, 0, first_offset=10, end_offset=20)
    assert stamp.covers(70, 10, 19)
    assert not stamp.covers(70, 9, 19)
    assert not stamp.covers(70, 10, 20)
    assert not stamp.covers(71, 10, 19)
    held = log([segment(0), segment(10, horizon_earliest_ms=70, horizon_bytes=3), segment(20)])
    assert pending_removal(held, 20, stamps=[stamp]) == Removal(70, 3)
    for elsewhere in ((0, 10), (20, 30)):
        assert pending_removal(held, 20, stamps=[Stamp(0, 70, 0, *elsewhere)]) == NO_REMOVAL


def test_a_horizon_in_the_first_millisecond_of_all_is_one() -> None:
    facts = log([segment(0, horizon_earliest_ms=0, horizon_bytes=7, tombstones=0), segment(10)])
    assert pending_removal(facts, 10) == Removal(0, 7)
    topic = compacted(lapse_tombstone_removal_max_lag_ms=600)
    assert tombstones_due_ms(facts, 10, 10, topic) == NOW - DAY + 300, "and nobody's of ours"


def test_l4_tombstones_without_horizon_count_from_the_earliest_last_append() -> None:
    """What has no summary, or is of an old format that stays and carries no horizon, has none."""
    topic = compacted(lapse_tombstone_removal_max_lag_ms=600)
    old = compacted(lapse_tombstone_removal_max_lag_ms=600, message_format_version="0.10.2")
    facts = log([
        segment(0, with_summary=False),
        segment(10, tombstones=1, old_format=1, append_last_ms=400),
        segment(20, tombstones=1, append_last_ms=900),
        segment(30, tombstones=1, append_last_ms=0),
        segment(40),
    ])  # fmt: skip
    assert tombstones_due_ms(facts, 30, 40, topic) == 700
    assert tombstones_due_ms(facts, 30, 40, old) == 1200
    assert tombstones_due_ms(facts, 40, 40, old) == 300, "an append in the first millisecond"
    unknown = log([segment(0, tombstones=1, append_last_ms=-1, mtime_ms=800), segment(10)])
    assert tombstones_due_ms(unknown, 10, 10, topic) == 1100
