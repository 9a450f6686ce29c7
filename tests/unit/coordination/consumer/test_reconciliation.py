"""One member's steps to its target: give up, then take, then wait for what others hold."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lapse.base.errors import ErrorCode, KafkaError
from lapse.coordination.consumer.events import Partitions
from lapse.coordination.consumer.reconciliation import Aim, reconciled
from lapse.coordination.consumer.state import Holding, Member, Owners, pairs_of, plain
from lapse.coordination.records.consumer_groups import MemberState
from tests.support.coordination.consumers import partitions, topic_id

T, U = topic_id("t"), topic_id("u")
STABLE, UNREVOKED, UNRELEASED, UNKNOWN = MemberState


def member(epoch: int, assigned: Holding, state: MemberState = STABLE, **more: Holding) -> Member:
    return Member("m", epoch=epoch, previous_epoch=epoch, state=state, assigned=assigned, **more)  # type: ignore[arg-type]


def aim(m: Member, target: Partitions, *, epoch: int = 2, owned: Partitions | None = None,
        others: Owners | None = None, resubscribed: bool = False,
        topics: frozenset[object] = frozenset({T})) -> Aim:  # fmt: skip
    own = {pair: "m" for holding in (m.assigned, m.revoking) for pair in pairs_of(holding)}
    return Aim(epoch, target, topics, resubscribed, owned, own | (others or {}))  # type: ignore[arg-type]


def test_a_new_member_takes_what_is_free_in_the_targets_epoch() -> None:
    m = member(0, {})
    new = reconciled(m, aim(m, partitions(t={0, 1})))
    assert (new.epoch, new.previous_epoch, new.state) == (2, 0, STABLE)
    assert new.assigned == {T: {0: 2, 1: 2}}


def test_it_waits_for_what_another_holds_and_then_takes_it() -> None:
    m = member(0, {})
    new = reconciled(m, aim(m, partitions(t={0, 1}), others={(T, 1): "x"}))
    assert (new.epoch, new.state, new.assigned) == (2, UNRELEASED, {T: {0: 2}})
    assert reconciled(new, aim(new, partitions(t={0, 1}), others={(T, 1): "x"})).assigned == {
        T: {0: 2}
    }
    last = reconciled(new, aim(new, partitions(t={0, 1}), epoch=3))
    assert (last.epoch, last.state, last.assigned) == (3, STABLE, {T: {0: 2, 1: 3}})


def test_it_stays_in_its_epoch_until_it_gave_up_what_it_loses() -> None:
    m = member(1, {T: {0: 1, 1: 1}})
    target = partitions(t={0})
    for owned in (None, partitions(t={0, 1})):
        new = reconciled(m, aim(m, target, owned=owned))
        assert (new.epoch, new.state) == (1, UNREVOKED)
        assert (new.assigned, new.revoking) == ({T: {0: 1}}, {T: {1: 1}})
        assert reconciled(new, aim(new, target, owned=owned)) is new
    done = reconciled(new, aim(new, target, owned=partitions(t={0})))
    assert (done.epoch, done.state, done.revoking) == (2, STABLE, {})
    assert done.assigned == {T: {0: 1}}, "the epoch in which it was given stays"


def test_what_it_does_not_own_need_not_be_given_up() -> None:
    m = member(1, {T: {0: 1, 1: 1}})
    new = reconciled(m, aim(m, partitions(t={0}), owned=partitions(t={0})))
    assert (new.epoch, new.state, plain(new.assigned)) == (2, STABLE, partitions(t={0}))


def test_what_it_was_to_give_up_may_come_back_to_it() -> None:
    m = member(1, {T: {0: 1}}, UNREVOKED, revoking={T: {1: 1}})
    new = reconciled(m, aim(m, partitions(t={0, 1}), owned=partitions(t={0}), epoch=3))
    assert (new.state, new.assigned) == (STABLE, {T: {0: 1, 1: 3}})


def test_the_same_target_is_no_step() -> None:
    m = member(2, {T: {0: 2}})
    assert reconciled(m, aim(m, partitions(t={0}))) is m


def test_topics_that_are_not_read_any_more_are_given_up_before_there_is_a_target() -> None:
    m = member(2, {T: {0: 2}, U: {0: 2}})
    stale = partitions(t={0}, u={0})
    new = reconciled(m, aim(m, stale, resubscribed=True))
    assert (new.epoch, new.state) == (2, UNREVOKED)
    assert (new.assigned, new.revoking) == ({T: {0: 2}}, {U: {0: 2}})
    none_left = reconciled(m, aim(m, stale, resubscribed=True, owned=partitions(t={0})))
    assert (none_left.state, none_left.assigned, none_left.revoking) == (STABLE, {T: {0: 2}}, {})
    same = aim(m, stale, resubscribed=True, topics=frozenset({T, U}))
    assert reconciled(m, same) is m
    # One that is giving up already gives that up too.
    busy = member(1, {T: {0: 1}, U: {0: 1}}, UNREVOKED, revoking={T: {1: 1}})
    more = reconciled(busy, aim(busy, stale, resubscribed=True))
    assert more.revoking == {T: {1: 1}, U: {0: 1}}


def test_a_target_of_a_topic_that_is_not_read_gives_nothing() -> None:
    m = member(0, {})
    assert reconciled(m, aim(m, partitions(t={0}, u={0}))).assigned == {T: {0: 2}}


def test_a_state_of_a_newer_kafka_begins_anew_with_nothing() -> None:
    m = replace(member(1, {T: {0: 1}}), state=UNKNOWN)
    for owned in (None, partitions(t={0})):
        with pytest.raises(KafkaError) as e:
            reconciled(m, aim(m, partitions(t={0}), owned=owned))
        assert e.value.code is ErrorCode.FENCED_MEMBER_EPOCH
    new = reconciled(m, aim(m, partitions(t={0}), owned={}))
    assert (new.epoch, new.state) == (2, STABLE)
