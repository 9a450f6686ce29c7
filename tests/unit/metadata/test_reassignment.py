"""Moving replicas (KIP-455): none goes before all that come are in sync, and none is forgotten."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.base.errors import ErrorCode, KafkaError
from lapse.metadata.absence import counted_again, noted
from lapse.metadata.election import Brokers, settled
from lapse.metadata.partition_states import NO_LEADER, Away, PartitionState, with_isr
from lapse.metadata.reassignment import Wish, completed, left, reassigned

NOW = 1_000
ALL = Brokers(frozenset(range(1, 7)))


def state(isr: tuple[int, ...] = (1, 2, 3), leader: int = 1) -> PartitionState:
    return PartitionState((1, 2, 3), isr, leader, 7, version=4)


def asked(before: PartitionState, *target: int, brokers: Brokers = ALL) -> PartitionState:
    return reassigned(before, Wish(target), brokers, NOW)


def test_who_comes_begins_anew_and_who_goes_stays_until_then() -> None:
    begun = asked(state(), 1, 2, 4)
    assert begun == replace(
        state(), replicas=(1, 2, 4, 3), adding=(4,), removing=(3,), away=(Away(4, NOW, False),)
    )
    assert begun.target == (1, 2, 4)
    assert begun.uncounted == {4}
    assert noted(begun, ALL, None) == begun
    assert completed(begun, ALL) is None
    assert completed(with_isr(counted_again(begun, 4), (1, 2, 3)), ALL) is None
    ended = completed(with_isr(counted_again(begun, 4), (1, 2, 4, 3)), ALL)
    assert ended == replace(state((1, 2, 4)), replicas=(1, 2, 4), left_at=(3,))
    assert left(ended, 3) == replace(ended, left_at=())


def test_the_leader_goes_last() -> None:
    begun = asked(state(), 4, 5)
    assert (begun.leader, begun.leader_epoch) == (1, 7)
    half = with_isr(begun, (4, 1, 2, 3))
    assert completed(half, ALL) is None
    ended = completed(with_isr(begun, (4, 5, 1, 2, 3)), ALL)
    assert ended is not None
    assert (ended.replicas, ended.isr, ended.leader, ended.leader_epoch) == ((4, 5), (4, 5), 4, 8)
    assert ended.left_at == (1, 2, 3)


def test_nobody_goes_while_nobody_else_could_lead() -> None:
    whole = with_isr(asked(state(), 4), (4, 1, 2, 3))
    assert completed(whole, Brokers(frozenset({1, 2, 3}))) is None
    ended = completed(whole, Brokers(frozenset({1, 4}), leaving=frozenset({4})))
    assert ended is not None
    assert ended.leader == 4


def test_fewer_replicas_are_in_force_at_once() -> None:
    ended = asked(state(), 2)
    assert ended == PartitionState((2,), (2,), 2, 8, 4, left_at=(1, 3))


def test_fewer_than_are_in_sync_wait_for_one_that_is() -> None:
    begun = asked(state(isr=(1,)), 2)
    assert (begun.replicas, begun.removing, begun.isr) == ((2, 1, 3), (1, 3), (1,))
    assert completed(begun, ALL) is None
    assert completed(with_isr(begun, (2, 1)), ALL) is not None


def test_another_order_is_in_force_at_once() -> None:
    assert asked(state(), 3, 1, 2) == replace(
        state(isr=(3, 1, 2)), replicas=(3, 1, 2)
    )  # who leads is for the preferred election
    assert asked(state(), 1, 2, 3) == state()


def test_it_is_called_off() -> None:
    begun = with_isr(counted_again(asked(state(), 4, 5), 4), (4, 1, 2, 3))
    off = reassigned(begun, Wish(None), ALL, NOW)
    assert off == replace(state(), left_at=(4, 5))
    led = replace(begun, leader=4, leader_epoch=9)
    off = reassigned(led, Wish(None), ALL, NOW)
    assert (off.leader, off.leader_epoch, off.isr) == (1, 10, (1, 2, 3))


def test_it_goes_elsewhere_while_it_is_under_way() -> None:
    begun = with_isr(counted_again(asked(state(), 4, 5, 6), 4), (4, 1, 2, 3))
    other = asked(begun, 4, 5, 1)
    assert (other.adding, other.removing, other.left_at) == ((4, 5), (2, 3), (6,))
    assert other.uncounted == {5}  # 4 has begun anew already
    back = asked(replace(off_from(other), version=4), 6, 1, 2)
    assert back.uncounted == {6}
    assert 6 not in back.left_at


def off_from(one: PartitionState) -> PartitionState:
    return reassigned(one, Wish(None), ALL, NOW)


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ((), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ((1, 1), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ((1, 2, 77), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ((-1,), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
    ],
)
def test_what_cannot_be_is_refused(target: tuple[int, ...] | None, code: ErrorCode) -> None:
    with pytest.raises(KafkaError) as refused:
        reassigned(state(), Wish(target), ALL, NOW)
    assert refused.value.code == code


def test_the_number_of_replicas_may_have_to_stay() -> None:
    with pytest.raises(KafkaError) as refused:
        reassigned(state(), Wish((1, 2), any_factor=False), ALL, NOW)
    assert refused.value.code == ErrorCode.INVALID_REPLICATION_FACTOR
    assert reassigned(state(), Wish((1, 2, 4), any_factor=False), ALL, NOW).adding == (4,)


def test_nobody_in_sync_is_lost() -> None:
    """A move away from the only one in sync, called off once that one has gone from the others."""
    begun = with_isr(asked(state(isr=(1,)), 4, 2), (4,))
    with pytest.raises(KafkaError, match="none of"):
        reassigned(replace(begun, leader=4), Wish(None), ALL, NOW)


@given(st.data())
def test_whatever_is_asked_no_in_sync_replica_is_lost(data: st.DataObject) -> None:
    """Wishes, comings and goings in any order.

    Who had a replica has one, or is remembered; who comes has begun anew before it is in sync.
    """
    now = state()
    ever = set(now.replicas)
    targets = [p for n in (1, 2, 3) for c in combinations(range(1, 7), n) for p in permutations(c)]
    for _ in range(data.draw(st.integers(1, 12))):
        alive = Brokers(frozenset(data.draw(st.sets(st.integers(1, 6), min_size=1))))
        match data.draw(st.sampled_from(("ask", "off", "join", "shrink", "look", "left"))):
            case "ask":
                now = tried(now, Wish(data.draw(st.sampled_from(targets))), alive)
            case "off":
                now = tried(now, Wish(None), alive)
            case "join":
                joining = data.draw(st.sampled_from(now.replicas))
                in_sync = {*now.isr, joining}
                now = counted_again(now, joining)
                now = with_isr(now, tuple(b for b in now.replicas if b in in_sync))
            case "shrink":
                if now.leader != NO_LEADER:
                    now = with_isr(now, (now.leader,))
            case "look":
                now = settled(now, alive) or now
                now = completed(now, alive) or now
            case "left":
                now = left(now, data.draw(st.integers(1, 6)))
                ever = {*now.replicas, *now.left_at}
        ever |= set(now.replicas)
        assert now.isr
        assert set(now.isr) <= set(now.replicas)
        assert now.leader in {*now.isr, NO_LEADER}
        assert ever == {*now.replicas, *now.left_at}
        assert not set(now.replicas) & set(now.left_at)
        assert {*now.adding, *now.removing} <= set(now.replicas)
        assert not now.uncounted & set(now.isr)
        assert len(set(now.replicas)) == len(now.replicas)


def tried(now: PartitionState, wish: Wish, alive: Brokers) -> PartitionState:
    before = set(now.replicas)
    try:
        after = reassigned(now, wish, alive, NOW)
    except KafkaError:
        return now
    assert set(after.replicas) - before <= after.uncounted
    return after
