"""What is committed, and who is in sync, as a leader counts it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lapse.replication.leader import UNKNOWN, LeaderReplicas

ALL = frozenset({1, 2, 3})
LAG_MS = 1000


def leader(isr: tuple[int, ...] = (1, 2, 3), *, high_watermark: int = 0) -> LeaderReplicas:
    return LeaderReplicas(
        1, (1, 2, 3), isr, epoch_start=10, high_watermark=high_watermark, now_ms=0
    )


def test_what_every_in_sync_replica_has_is_committed() -> None:
    replicas = leader()
    replicas.fetched(2, 20, 0, 20, 1)
    assert not replicas.advance(20)  # the third has said nothing in this epoch
    replicas.fetched(3, 15, 0, 20, 1)
    assert replicas.advance(20)
    assert replicas.high_watermark == 15
    replicas.fetched(3, 12, 0, 20, 2)  # it has lost something
    assert not replicas.advance(20)
    assert replicas.high_watermark == 15


def test_who_is_not_in_sync_is_not_waited_for() -> None:
    replicas = leader((1, 2))
    replicas.fetched(2, 18, 0, 20, 1)
    assert replicas.advance(20)
    assert replicas.high_watermark == 18


def test_alone_all_is_committed_at_once() -> None:
    replicas = leader((1,))
    assert replicas.advance(7)
    assert replicas.high_watermark == 7


def test_who_joins_counts_before_it_is_stored_and_who_leaves_until_then() -> None:
    replicas = leader((1, 2), high_watermark=10)
    replicas.fetched(2, 30, 0, 30, 1)
    replicas.fetched(3, 10, 0, 30, 1)
    replicas.asked = frozenset({1, 3})
    assert not replicas.advance(30)  # both 2 and 3
    replicas.asked = None
    assert replicas.advance(30)


def test_a_follower_stays_while_it_catches_up_within_the_lag() -> None:
    replicas = leader()
    replicas.fetched(2, 20, 0, 20, 500)
    replicas.fetched(3, 10, 0, 20, 500)
    assert replicas.wanted_isr(20, 1000, LAG_MS, 2, log_start=0) == ALL
    assert replicas.wanted_isr(20, 1001, LAG_MS, 2, log_start=0) == {1, 2}
    replicas.fetched(3, 20, 0, 40, 1200)  # what the leader had at its fetch before
    assert replicas.wanted_isr(40, 1500, LAG_MS, 2, log_start=0) == ALL  # caught up as of 500
    assert replicas.wanted_isr(40, 1501, LAG_MS, 2, log_start=0) == {1}  # the second, too


def test_without_new_records_nobody_lags() -> None:
    replicas = leader()
    for broker in (2, 3):
        replicas.fetched(broker, 20, 0, 20, 1)
    assert replicas.wanted_isr(20, 10**9, LAG_MS, 2, log_start=0) == ALL


def test_who_joins_has_all_that_is_committed_and_all_of_earlier_epochs() -> None:
    replicas = leader((1,), high_watermark=4)
    replicas.fetched(2, 9, 0, 12, 1)  # above the high watermark, below where the epoch began
    assert replicas.wanted_isr(12, 1, LAG_MS, 2, log_start=0) == {1}
    replicas.fetched(2, 10, 0, 12, 2)
    assert replicas.wanted_isr(12, 2, LAG_MS, 2, log_start=0) == {1, 2}
    assert replicas.wanted_isr(12, 2, LAG_MS, 3, log_start=0) == {1}  # it is about to stop
    replicas.advance(12)
    assert replicas.high_watermark == 12
    assert replicas.wanted_isr(12, 2, LAG_MS, 2, log_start=0) == {1}


def test_the_low_watermark_is_of_who_is_alive_or_in_sync() -> None:
    """D-9, and beyond it: who is in sync counts though it is dead."""
    replicas = leader((1, 2))
    replicas.fetched(2, 20, 5, 20, 1)
    starts = replicas.log_starts(9, frozenset({1, 2, 3}))
    assert (starts.counted, starts.away) == ({1: 9, 2: 5, 3: UNKNOWN}, frozenset())
    starts = replicas.log_starts(9, frozenset({1}))  # in sync, though it may be dead
    assert (starts.counted, starts.away) == ({1: 9, 2: 5}, {3})


def test_who_left_the_count_is_not_in_sync_whatever_it_has() -> None:
    replicas = leader((1,), high_watermark=12)
    replicas.uncounted = frozenset({2})
    for follower in (2, 3):
        replicas.fetched(follower, 12, 0, 12, 1)
    assert replicas.wanted_isr(12, 1, LAG_MS, 2, log_start=0) == {1}
    assert replicas.wanted_isr(12, 1, LAG_MS, 3, log_start=0) == {1, 3}


def test_strangers_count_nothing() -> None:
    replicas = leader((1,))
    replicas.fetched(9, 100, 0, 20, 1)
    assert 9 not in replicas.wanted_isr(20, 1, LAG_MS, 9, log_start=0)


@given(
    st.lists(st.tuples(st.sampled_from([2, 3]), st.integers(0, 40), st.integers(0, 5)), max_size=30)
)
def test_the_high_watermark_never_goes_back_nor_beyond_who_is_counted(
    story: list[tuple[int, int, int]],
) -> None:
    replicas, end = leader(), 10
    for broker, offset, more in story:
        end += more
        replicas.fetched(broker, min(offset, end), 0, end, 1)
        before = replicas.high_watermark
        replicas.advance(end)
        assert replicas.high_watermark >= before
        if replicas.high_watermark > before:
            ends = [f.end_offset for f in replicas.followers.values()]
            assert UNKNOWN not in ends
            assert replicas.high_watermark <= min(ends)


def test_who_comes_is_known_by_its_first_fetch_and_who_goes_not_any_more() -> None:
    """KIP-455: this broker leads on, in the same epoch."""
    replicas = leader((1, 2), high_watermark=10)
    replicas.fetched(2, 20, 0, 20, 5)
    replicas.set_replicas((1, 2, 4), 10)
    assert replicas.followers.keys() == {2, 4}
    assert replicas.followers[2].end_offset == 20
    assert replicas.followers[4].end_offset == UNKNOWN
    assert not replicas.fetched(3, 20, 0, 20, 11)
    replicas.fetched(4, 20, 0, 20, 11)
    assert replicas.wanted_isr(20, 11, LAG_MS, joining=4, log_start=0) == {1, 2, 4}


def test_a_consumer_reads_from_whom_has_most_of_those_that_may_be_read() -> None:
    """KIP-392: in sync, in the consumer's rack, and there with the offset."""
    replicas = leader((1, 2, 3))
    assert replicas.furthest_with(0, {2, 3}) is None  # nobody has fetched yet
    replicas.fetched(2, 15, 5, 20, 1)
    replicas.fetched(3, 20, 0, 20, 1)
    assert replicas.furthest_with(10, {2, 3}) == 3
    assert replicas.furthest_with(10, {2}) == 2
    assert replicas.furthest_with(16, {2}) is None
    assert replicas.furthest_with(4, {2}) is None
    assert replicas.furthest_with(10, set()) is None
    replicas.isr = frozenset({1, 2})
    assert replicas.furthest_with(10, {2, 3}) == 2


def test_who_joins_has_nothing_below_the_leaders_log_start() -> None:
    """It may be of a leader that an unclean election has put an end to."""
    replicas = leader((1,), high_watermark=10)
    replicas.fetched(2, 20, 5, 20, 1)
    assert replicas.wanted_isr(20, 1, LAG_MS, 2, log_start=6) == {1}
    replicas.fetched(2, 20, 6, 20, 2)
    assert replicas.wanted_isr(20, 2, LAG_MS, 2, log_start=6) == {1, 2}
    replicas.isr = frozenset({1, 2})
    assert replicas.wanted_isr(20, 2, LAG_MS, log_start=9) == {1, 2}  # who is in sync stays


def test_who_is_away_and_may_lack_a_deletion_is_noticed() -> None:
    replicas = leader((1, 2))
    replicas.fetched(2, 20, 0, 20, 1)
    everybody, two = ALL, frozenset({1, 2})
    assert not replicas.is_start_unknown_to_some(0, two)  # nothing was deleted
    assert replicas.is_start_unknown_to_some(5, two)  # the third has said nothing
    assert not replicas.is_start_unknown_to_some(5, everybody)
    replicas.fetched(3, 20, 5, 20, 1)
    assert not replicas.is_start_unknown_to_some(5, two)
    assert replicas.is_start_unknown_to_some(6, two)
