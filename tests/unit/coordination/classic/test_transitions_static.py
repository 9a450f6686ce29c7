"""Static members: restarts without a rebalance (KIP-345, KIP-814)."""

from __future__ import annotations

import pytest

from lapse.base.errors import ErrorCode
from lapse.coordination.classic.events import (
    Leaving,
    Protocol,
)
from lapse.coordination.classic.state import State
from tests.support.coordination.classic import (
    DELAY,
    FENCED,
    GONE,
    NONE,
    RANGE,
    REBALANCE_MS,
    ROUND_ROBIN,
    SESSION_MS,
    STATIC,
    UNKNOWN,
    A,
    Owner,
)

# --- static members (KIP-345, KIP-814) ---------------------------------------------------------


@pytest.mark.parametrize("leads", [True, False])
def test_an_instance_that_restarts_takes_its_place_without_a_rebalance(leads: bool) -> None:
    owner = Owner()
    joins = (STATIC, A) if leads else (A, STATIC)
    ids = owner.stable(*joins)
    old = next(m for m in ids if m.startswith("i"))
    token = owner.join(**STATIC)
    assert token in owner.waiting
    owner.store()
    answer = owner.joined(token)
    assert (answer.error, answer.generation) == (NONE, 1)
    assert (answer.skip_assignment, len(answer.members)) == ((True, 2) if leads else (False, 0))
    assert answer.leader == (answer.member_id if leads else ids[0])
    assert owner.synced(owner.sync(answer.member_id)).assignment == old.encode()
    assert owner.heartbeat(old, instance_id="i") is FENCED
    assert owner.heartbeat(old) is UNKNOWN
    record = owner.log[-1]
    assert record is not None
    assert answer.member_id in {m.member_id for m in record.members}


def test_an_older_client_is_not_told_that_it_leads() -> None:
    owner = Owner()
    (old,) = owner.stable(STATIC)
    token = owner.join(**STATIC, may_skip_assignment=False)
    owner.store()
    answer = owner.joined(token)
    assert (answer.leader, answer.members, answer.skip_assignment) == (old, (), False)


def test_a_restart_that_cannot_be_stored_is_taken_back() -> None:
    owner = Owner()
    (old,) = owner.stable(STATIC)
    before = owner.group.record()
    token = owner.join("", Protocol("range", b"new"), **STATIC)
    owner.store(ErrorCode.NOT_ENOUGH_REPLICAS)
    answer = owner.joined(token)
    assert (answer.error, answer.member_id, answer.leader) == (GONE, "", old)
    assert owner.group.record() == before
    assert owner.heartbeat(old, instance_id="i") is NONE


def test_a_restart_that_changes_the_protocol_makes_a_rebalance() -> None:
    owner = Owner()
    both = {"protocols": (RANGE, ROUND_ROBIN)}
    owner.gather(STATIC | both, both)
    owner.settle(["i-1", "c-2"])
    token = owner.join(**STATIC, protocols=(ROUND_ROBIN, RANGE))
    assert owner.group.state is State.PREPARING
    owner.join("c-2", RANGE, ROUND_ROBIN)
    assert owner.joined(token).protocol == "roundrobin"


def test_a_restart_during_a_sync_makes_a_rebalance() -> None:
    owner = Owner()
    ids = owner.gather(A, STATIC)
    syncing = owner.sync(ids[1])
    owner.join(**STATIC)
    assert owner.synced(syncing).error is FENCED
    assert owner.group.state is State.PREPARING


def test_a_restart_during_a_join_fences_the_first() -> None:
    owner = Owner(DELAY)
    first = owner.join(**STATIC)
    second = owner.join(**STATIC)
    answer = owner.joined(first)
    assert (answer.error, answer.member_id) == (FENCED, "i-1")
    owner.sleep(6_000)
    assert owner.joined(second).leader == "i-2"


def test_the_session_counts_from_the_answer_to_a_restart() -> None:
    owner = Owner()
    owner.stable(STATIC)
    owner.join(**STATIC)
    owner.now_ms += 2 * SESSION_MS
    owner.take(owner.group.tick(owner.now_ms))
    owner.store()
    owner.sleep(SESSION_MS - 1)
    assert owner.group.state is State.STABLE
    owner.sleep(1)
    assert owner.group.state is State.EMPTY


def test_a_restart_does_not_spare_it_the_sync_that_is_due() -> None:
    owner = Owner()
    long = {"session_timeout_ms": 1_000_000}
    leader, _ = owner.gather(long, STATIC | long)
    owner.sync(leader)
    owner.store()
    owner.join(**STATIC | long)
    owner.sleep(REBALANCE_MS)
    assert owner.group.state is State.PREPARING
    assert [m.member_id for m in owner.group.members] == [leader]


def test_a_restart_twice_before_the_log_has_the_first() -> None:
    owner = Owner()
    owner.stable(STATIC)
    first, second = owner.join(**STATIC), owner.join(**STATIC)
    owner.store()
    assert owner.joined(first).error is FENCED
    assert owner.joined(second).member_id == "i-3"


def test_a_restart_twice_that_the_log_gets_neither_of() -> None:
    owner = Owner()
    owner.stable(STATIC)
    before = owner.group.record()
    owner.join(**STATIC)
    owner.join(**STATIC)
    owner.store(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert owner.group.record() == before


def test_a_restart_twice_that_the_log_gets_the_first_of() -> None:
    owner = Owner()
    owner.stable(STATIC)
    owner.join(**STATIC)
    owner.join(**STATIC)
    owner.store_one()
    owner.store_one(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert owner.group.record() == owner.log[-1]
    assert [m.member_id for m in owner.group.members] == ["i-2"]


def test_a_rebalance_that_begins_before_the_log_has_a_restart_takes_it_in() -> None:
    owner = Owner()
    owner.stable(STATIC, A)
    restarted = owner.join(**STATIC)
    joining = owner.join("c-2", Protocol("range", b"2"))
    assert owner.joined(restarted).generation == owner.joined(joining).generation == 2
    owner.store()
    assert owner.group.state is State.COMPLETING


def test_static_members_keep_their_place_through_a_rebalance_they_miss() -> None:
    owner = Owner()
    long = {"session_timeout_ms": 1_000_000}
    ids = owner.stable(STATIC | long, long)
    token = owner.join(ids[1], Protocol("range", b"2"), **long)
    owner.sleep(REBALANCE_MS)
    answer = owner.joined(token)
    assert (answer.leader, len(answer.members)) == (ids[1], 2)


def test_a_rebalance_that_only_missing_static_members_are_left_of_is_put_off() -> None:
    owner = Owner()
    long = {"session_timeout_ms": 90_000}
    owner.stable(STATIC | long, A)
    owner.leave("c-2")
    owner.sleep(REBALANCE_MS)
    assert (owner.group.state, owner.group.generation) == (State.PREPARING, 1)
    owner.sleep(30_000)
    assert (owner.group.state, owner.group.generation) == (State.EMPTY, 2)


def test_a_static_member_that_leaves_may_come_again() -> None:
    owner = Owner()
    owner.stable(STATIC)
    owner.leave(Leaving("", "i"))
    owner.store()
    assert owner.gather(STATIC) == ["i-2"]
