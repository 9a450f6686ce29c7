"""Elections: only who has all that was acknowledged leads; an epoch has one leader."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.metadata.absence import counted_again
from lapse.metadata.election import (
    Brokers,
    doubted,
    preferred,
    resigned,
    settled,
    stopped,
    unclean,
)
from lapse.metadata.partition_states import (
    NO_LEADER,
    Away,
    LeftWith,
    LogEnd,
    PartitionState,
    with_isr,
)


def state(isr: tuple[int, ...] = (1, 2, 3), leader: int = 1, epoch: int = 7) -> PartitionState:
    return PartitionState((1, 2, 3), isr, leader, epoch, version=4)


def brokers(*alive: int, leaving: tuple[int, ...] = ()) -> Brokers:
    return Brokers(frozenset(alive), frozenset(leaving))


def test_nothing_changes_while_all_are_there() -> None:
    assert settled(state(), brokers(1, 2, 3)) is None
    assert settled(state(isr=(1, 3)), brokers(1, 2, 3)) is None  # joining is the leader's word


def test_a_dead_follower_leaves_the_isr_and_the_epoch_stays() -> None:
    assert settled(state(), brokers(1, 3)) == state(isr=(1, 3))


def test_a_dead_leader_is_followed_by_the_next_in_sync() -> None:
    assert settled(state(), brokers(2, 3)) == state(isr=(2, 3), leader=2, epoch=8)
    assert settled(state(isr=(1, 3)), brokers(2, 3)) == state(isr=(3,), leader=3, epoch=8)


def test_who_is_not_in_sync_never_leads() -> None:
    alone = state(isr=(1,))
    waiting = settled(alone, brokers(2, 3))
    assert waiting == state(isr=(1,), leader=NO_LEADER, epoch=8)
    assert settled(waiting, brokers(2, 3)) is None
    assert settled(waiting, brokers(1, 2, 3)) == state(isr=(1,), leader=1, epoch=9)


def test_who_is_about_to_stop_leads_only_where_no_other_can() -> None:
    assert settled(state(), brokers(1, 2, 3, leaving=(1,))) == state((2, 3), 2, 8)
    assert settled(state(isr=(1,)), brokers(1, 2, 3, leaving=(1,))) is None
    assert settled(state(isr=(1, 2)), brokers(1, leaving=(1,))) == state(isr=(1,))


def test_who_starts_again_leads_in_a_new_epoch_only() -> None:
    assert resigned(state(), 1, lost_nothing=True) == state(leader=NO_LEADER, epoch=8)
    assert resigned(state(), 1, lost_nothing=False) == state((2, 3), NO_LEADER, 8)
    assert resigned(state(), 2, lost_nothing=True) is None
    assert resigned(state(), 2, lost_nothing=False) == state((1, 3))
    assert resigned(state(isr=(1,)), 1, lost_nothing=False) == state((1,), NO_LEADER, 8)
    assert resigned(state(isr=(1, 3)), 2, lost_nothing=False) is None
    alone = PartitionState((1,), (1,), 1, 7)
    assert resigned(alone, 1, lost_nothing=False) is None


SHORT, LONG = LogEnd(7, 10), LogEnd(7, 12)


def test_who_may_have_lost_something_leaves_those_that_have_not() -> None:
    one = doubted(state(leader=2), 1, LONG)
    assert one == replace(state((2, 3), leader=2), left_with=(LeftWith(1, LONG),))
    assert doubted(one, 1, LONG) is None
    assert doubted(state(isr=(1, 3)), 2, LONG) is None  # it lacks something anyway
    assert doubted(state(isr=(1,)), 1, SHORT) is None


def test_who_may_have_lost_something_leads_only_where_nobody_has_more() -> None:
    """It was elected once it was registered again, and before its logs were open."""
    one = doubted(state(), 1, LONG)
    assert one == replace(state((2, 3), NO_LEADER, 8), left_with=(LeftWith(1, LONG),))
    led = settled(one, brokers(1, 2, 3))
    assert led is not None
    assert (led.leader, led.leader_epoch, led.isr) == (2, 9, (2, 3))
    alone = replace(state((1,)), left_with=(LeftWith(2, LONG),))
    after = doubted(alone, 1, SHORT)
    assert after is not None
    assert (after.leader, after.leader_epoch, after.isr) == (NO_LEADER, 8, (2,))
    assert doubted(state((1,)), 1, LONG) is None


@pytest.mark.parametrize("order", list(permutations((1, 2, 3))))
def test_of_those_that_all_may_have_lost_something_the_one_with_most_leads(
    order: tuple[int, ...],
) -> None:
    """All were without power: who is back last, or first, may have lost more than others."""
    ends = {1: LogEnd(6, 99), 2: LONG, 3: SHORT}
    now = state(leader=NO_LEADER)
    for broker in order:
        now = doubted(now, broker, ends[broker]) or now
    assert now.isr == (2,)
    assert settled(now, brokers(1, 3)) is None
    led = settled(now, brokers(1, 2, 3))
    assert led is not None
    assert (led.leader, led.isr) == (2, (2,))


def test_of_two_with_the_same_log_the_one_that_is_there_leads() -> None:
    now = state((1, 2), NO_LEADER)
    for broker in (1, 2):
        now = doubted(now, broker, SHORT) or now
    assert now.isr == (2,)


def test_one_that_was_dead_already_when_the_others_stopped_does_not_lead_with_less() -> None:
    """It was registered still, so it was the last one in sync, and even the leader."""
    now = state((1, 2), leader=2)
    assert stopped(state(), 2, LONG) is None  # two others have it all
    assert stopped(state((1,)), 1, LONG) is None
    now = stopped(now, 2, LONG) or now
    now = settled(now, brokers(1, 2, leaving=(2,))) or now
    assert (now.isr, now.leader) == ((1,), 1)
    without_power = resigned(now, 1, lost_nothing=True)
    assert without_power is not None
    assert (doubted(without_power, 1, SHORT) or without_power).isr == (2,)
    assert (doubted(without_power, 1, LONG) or without_power).isr == (1,)
    alone_since = LogEnd(8, 11)  # it has led, and has what nobody else has
    assert (doubted(without_power, 1, alone_since) or without_power).isr == (1,)
    emptied = resigned(now, 1, lost_nothing=True, has_log=False)
    assert emptied is not None  # it may have had more, and its disk may come back
    assert (emptied.isr, emptied.leader, emptied.lost) == ((1,), NO_LEADER, (1,))
    wanted = unclean(emptied, brokers(1, 2, 3))
    assert wanted is not None
    assert wanted.leader == 2


def test_one_that_nobody_waited_for_never_leads_by_that() -> None:
    """L3: it would bring back what was deleted. Nor one whose disk is another one since."""
    now = replace(state((1,), NO_LEADER), left_with=(LeftWith(2, LONG),))
    assert (doubted(now, 1, SHORT) or now).isr == (2,)
    gone = replace(now, away=(Away(2, 0, counted=False),))
    assert (doubted(gone, 1, SHORT) or gone).isr == (1,)
    lost = resigned(gone, 1, lost_nothing=True, has_log=False)
    assert lost is not None
    assert (lost.isr, lost.lost) == ((1,), (1,))
    assert counted_again(gone, 2).left_with == ()  # it was emptied
    assert resigned(now, 2, lost_nothing=True, has_log=False) == replace(now, left_with=())


def test_how_far_one_was_that_is_in_sync_again_does_not_count() -> None:
    now = doubted(state(), 1, SHORT)
    assert now is not None
    assert with_isr(now, (1, 2, 3)).left_with == ()
    noted = stopped(state((1, 2)), 2, LONG)
    assert noted is not None
    assert with_isr(noted, (1, 2)).left_with == (LeftWith(2, LONG),)  # it is about to stop


def test_the_preferred_leader_comes_back() -> None:
    assert preferred(state(leader=2), brokers(1, 2, 3)) == state(leader=1, epoch=8)
    assert preferred(state(leader=1), brokers(1, 2, 3)) is None
    assert preferred(state(isr=(2, 3), leader=2), brokers(1, 2, 3)) is None
    assert preferred(state(leader=2), brokers(1, 2, 3, leaving=(1,))) is None


@given(
    st.lists(st.tuples(st.sets(st.sampled_from([1, 2, 3])), st.sets(st.sampled_from([1, 2, 3]))))
)
def test_whatever_comes_and_goes(story: list[tuple[set[int], set[int]]]) -> None:
    """The ISR shrinks and is never empty; a leader is in it; each change of leader is an epoch."""
    now = state()
    for alive, leaving in story:
        after = settled(now, Brokers(alive, leaving & alive))
        if after is None:
            continue
        assert after != now
        assert set(after.isr) <= set(now.isr)
        assert after.isr
        assert after.leader == NO_LEADER or after.leader in after.isr
        assert after.leader == NO_LEADER or after.leader in alive
        assert (after.leader_epoch > now.leader_epoch) == (after.leader != now.leader)
        assert settled(after, Brokers(alive, leaving & alive)) is None
        now = after


@pytest.mark.parametrize("alive", [(2, 3), (1, 2, 3)])
def test_nobody_is_elected_twice_in_one_epoch(alive: tuple[int, ...]) -> None:
    one = settled(state(), brokers(2, 3))
    assert one is not None
    other = preferred(one, brokers(*alive))
    assert other is None or other.leader_epoch > one.leader_epoch


# --- disks that are gone --------------------------------------------------------------------------


def test_the_only_in_sync_replica_without_its_log_is_not_elected() -> None:
    """Nobody else has all that was acknowledged, and the disk may come back."""
    alone = state(isr=(1,))
    lost = resigned(alone, 1, lost_nothing=True, has_log=False)
    assert lost == replace(state((1,), NO_LEADER, 8), lost=(1,))
    assert settled(lost, brokers(1, 2, 3)) is None
    assert preferred(lost, brokers(1, 2, 3)) is None
    assert resigned(lost, 1, lost_nothing=True, has_log=False) is None
    assert resigned(lost, 1, lost_nothing=True) == replace(lost, lost=())
    assert resigned(lost, 2, lost_nothing=False) is None


def test_one_without_its_log_leaves_those_that_have_theirs() -> None:
    assert resigned(state(), 1, lost_nothing=True, has_log=False) == state((2, 3), NO_LEADER, 8)
    assert resigned(state(), 2, lost_nothing=True, has_log=False) == state((1, 3))
    assert resigned(state(isr=(1, 3)), 2, lost_nothing=True, has_log=False) is None


def test_the_only_replica_without_its_log_is_not_elected_either() -> None:
    alone = PartitionState((1,), (1,), 1, 7)
    lost = resigned(alone, 1, lost_nothing=True, has_log=False)
    assert lost == PartitionState((1,), (1,), NO_LEADER, 8, lost=(1,))
    assert settled(lost, brokers(1)) is None
    assert resigned(lost, 1, lost_nothing=True, has_log=False) is None
    back = resigned(lost, 1, lost_nothing=True)
    assert back is not None
    assert settled(back, brokers(1)) == PartitionState((1,), (1,), 1, 9)


def test_an_unclean_election_takes_who_has_something_and_was_waited_for() -> None:
    lost = replace(state((1,), NO_LEADER), lost=(1,))
    assert unclean(lost, brokers(1, 2, 3)) == state((2,), leader=2, epoch=8)
    assert unclean(lost, brokers(1, 3)) == state((3,), leader=3, epoch=8)
    assert unclean(lost, brokers(1)) == state((1,), leader=1, epoch=8)  # it begins empty
    assert unclean(lost, brokers()) is None
    away = replace(lost, away=(Away(2, 5, counted=False), Away(3, 5)))
    led = unclean(away, brokers(2, 3))
    assert led is not None
    assert (led.leader, led.isr, led.uncounted) == (3, (3,), {2})
    assert unclean(away, brokers(2)) is None  # it would bring back what was deleted


def test_an_unclean_election_is_a_clean_one_where_that_can_be() -> None:
    """A broker that has just started is in sync, and not elected yet."""
    waiting = state(isr=(2,), leader=NO_LEADER)
    assert unclean(waiting, brokers(1, 2, 3)) == state(isr=(2,), leader=2, epoch=8)
