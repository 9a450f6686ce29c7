"""A classic group as its owner meets it: sessions, leaving, deletion, moves, its record."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lapse.base.errors import ErrorCode
from lapse.coordination.classic.events import (
    Leaving,
    LeftMember,
    Protocol,
)
from lapse.coordination.classic.group import ClassicGroup
from lapse.coordination.classic.state import State
from lapse.coordination.offsets.expiry import ExpiryRule
from tests.support.coordination.classic import (
    DELAY,
    FENCED,
    GONE,
    NO_DELAY,
    NON_EMPTY,
    NONE,
    REBALANCE,
    SESSION_MS,
    STATES,
    STATIC,
    UNKNOWN,
    A,
    Owner,
    by_state,
    consumer,
    empty,
    preparing,
    stable,
)


@pytest.mark.parametrize("state", State)
def test_the_makers_of_states_make_them(state: State) -> None:
    owner = STATES[state]()
    assert (owner.group.state, owner.to_store) == (state, type(owner.to_store)())


# --- sessions ----------------------------------------------------------------------------------


def test_a_member_that_is_silent_for_its_session_is_gone() -> None:
    owner = Owner()
    silent, alive = owner.stable(A, A)
    owner.sleep(SESSION_MS - 1)
    assert owner.heartbeat(alive) is NONE
    owner.sleep(1)
    assert owner.heartbeat(alive) is REBALANCE
    assert owner.heartbeat(silent) is UNKNOWN


def test_the_group_is_empty_when_the_last_session_ends() -> None:
    owner = stable()
    owner.sleep(SESSION_MS)
    assert (owner.group.state, owner.group.generation) == (State.EMPTY, 2)
    record = owner.log[-1]
    assert record is not None
    assert (record.members, record.generation, record.protocol) == ((), 2, None)
    assert (record.protocol_type, record.leader) == ("consumer", None)


def test_who_waits_for_us_need_not_send_heartbeats() -> None:
    owner = Owner()
    long = {"session_timeout_ms": 50_000}
    owner.stable(A, long)
    token = owner.join("c-1")
    owner.sleep(40_000)
    assert token in owner.waiting
    owner.join("c-2", session_timeout_ms=50_000)
    assert owner.joined(token).error is NONE
    syncing = owner.sync("c-1", {})
    owner.now_ms += 40_000
    owner.take(owner.group.tick(owner.now_ms))
    owner.store()
    assert owner.synced(syncing).error is NONE
    assert owner.heartbeat("c-1") is NONE


def test_sessions_count_again_after_the_answer() -> None:
    owner = Owner()
    (member,) = owner.gather(A)
    owner.store()
    owner.sync(member)
    owner.now_ms += 2 * SESSION_MS
    owner.take(owner.group.tick(owner.now_ms))
    owner.store()
    owner.sleep(SESSION_MS - 1)
    assert owner.group.state is State.STABLE
    owner.sleep(1)
    assert owner.group.state is State.EMPTY


def test_new_members_wait_five_minutes_at_most() -> None:
    """An old client that retries its join is a new member each time."""
    owner = Owner()
    hour = {"session_timeout_ms": 1_000_000, "rebalance_timeout_ms": 3_600_000}
    owner.stable(hour)
    token = owner.join()
    owner.sleep(299_999)
    assert token in owner.waiting
    owner.sleep(1)
    assert (owner.joined(token).error, owner.joined(token).member_id) == (UNKNOWN, "")


# --- leaving -----------------------------------------------------------------------------------


def test_leaving_members_make_room_and_a_rebalance() -> None:
    owner = Owner()
    owner.stable(A, A, A)
    token = owner.leave("c-1", "stranger", "c-3")
    answer = owner.left(token)
    assert answer.error is NONE
    assert [m.error for m in answer.members] == [NONE, UNKNOWN, NONE]
    assert owner.heartbeat("c-2") is REBALANCE
    assert owner.joined(owner.join("c-2")).leader == "c-2"


def test_the_last_ones_leave_is_answered_when_the_log_has_it() -> None:
    owner = stable()
    token = owner.leave("c-1")
    assert (owner.group.state, owner.waiting) == (State.EMPTY, {token})
    owner.store()
    assert owner.left(token).members == (LeftMember("c-1", None, NONE),)


def test_the_last_ones_leave_that_is_not_stored_is_an_error() -> None:
    owner = stable()
    token = owner.leave("c-1")
    owner.store(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert (owner.left(token).error, owner.left(token).members) == (GONE, ())


@pytest.mark.parametrize(
    ("leaving", "code"),
    [
        (Leaving("", "i"), NONE),
        (Leaving("i-1", "i"), NONE),
        (Leaving("i-1"), NONE),
        (Leaving("x", "i"), FENCED),
        (Leaving("i-1", "other"), UNKNOWN),
        (Leaving("", "other"), UNKNOWN),
        (Leaving(""), UNKNOWN),
        (Leaving("", None, "why"), UNKNOWN),
    ],
)
def test_who_may_be_made_to_leave(leaving: Leaving, code: ErrorCode) -> None:
    owner = Owner()
    owner.stable(STATIC)
    token = owner.leave(leaving)
    owner.store()
    assert owner.left(token).members == (LeftMember(leaving.member_id, leaving.instance_id, code),)
    assert owner.group.state is (State.EMPTY if code is NONE else State.STABLE)


def test_a_pending_id_may_leave() -> None:
    owner = preparing()
    owner.join(needs_member_id=True)
    token = owner.join("c-2")
    assert token in owner.waiting
    assert owner.left(owner.leave("c-3")).members[0].error is NONE
    assert owner.joined(token).generation == 3


def test_who_leaves_while_it_waits_is_answered() -> None:
    owner = Owner()
    leader, other = owner.gather(A, A)
    syncing = owner.sync(other)
    owner.leave(other)
    assert owner.synced(syncing).error is UNKNOWN
    joining = owner.join(leader, Protocol("range", b"2"))
    owner.join()
    owner.leave(leader)
    assert owner.joined(joining).error is NONE
    owner = preparing()
    (joining,) = owner.waiting
    owner.leave("c-1")
    assert owner.joined(joining).error is UNKNOWN


# --- the whole group ---------------------------------------------------------------------------


@by_state(
    empty=NONE,
    preparing=NON_EMPTY,
    completing=NON_EMPTY,
    stable=NON_EMPTY,
    dead=ErrorCode.GROUP_ID_NOT_FOUND,
)
def test_deleting_a_group(state: State, code: ErrorCode) -> None:
    owner = STATES[state]()
    error, effects = owner.group.delete(owner.now_ms)
    owner.take(effects)
    assert error is code
    assert (owner.group.state is State.DEAD) == (state in {State.EMPTY, State.DEAD})
    owner.store()
    assert (owner.log[-1] is None) == (code is NONE)


def test_a_deleted_group_forgets_the_ids_it_gave_out() -> None:
    owner = Owner()
    owner.join(needs_member_id=True)
    owner.store()
    owner.take(owner.group.delete(owner.now_ms)[1])
    owner.sleep(SESSION_MS)
    assert (owner.group.state, owner.log[-1]) == (State.DEAD, None)


def test_a_deletion_that_is_not_stored_is_taken_back() -> None:
    owner = empty()
    since_ms = owner.group.state_since_ms
    owner.now_ms += 5
    owner.take(owner.group.delete(owner.now_ms)[1])
    assert owner.joined(owner.join()).error is GONE
    owner.store(ErrorCode.KAFKA_STORAGE_ERROR)
    assert (owner.group.state, owner.group.state_since_ms) == (State.EMPTY, since_ms)
    owner.join()
    assert owner.group.state is State.PREPARING


def test_a_group_that_the_log_does_not_get_does_not_live() -> None:
    owner = Owner(DELAY)
    token = owner.join()
    owner.store(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert (owner.joined(token).error, owner.group.state) == (GONE, State.DEAD)
    assert owner.group.next_deadline_ms is None


@pytest.mark.parametrize("state", State)
def test_all_who_wait_are_told_when_the_coordinator_moves(state: State) -> None:
    owner = STATES[state]()
    if state is State.COMPLETING:
        owner.sync("c-1")
    if state is State.EMPTY:
        owner.stable(A)
        owner.leave(f"c-{owner.group.generation - 1}")
    tokens = set(owner.waiting)
    assert bool(tokens) == (state in {State.PREPARING, State.COMPLETING, State.EMPTY})
    owner.take(owner.group.unload(owner.now_ms))
    moved: Any = {owner.answers[t].error for t in tokens}
    assert moved <= {ErrorCode.NOT_COORDINATOR}
    assert (owner.waiting, owner.group.state) == (set(), State.DEAD)
    owner.store()
    assert owner.group.next_deadline_ms is None


@by_state(
    empty=NONE, preparing=NONE, completing=NONE, stable=NONE, dead=ErrorCode.GROUP_ID_NOT_FOUND
)
def test_fetching_and_deleting_offsets_of_consumers(state: State, code: ErrorCode) -> None:
    group = STATES[state]().group
    assert group.check_fetch() is code
    assert group.check_delete_offsets() is code


def test_offsets_of_other_members_than_consumers_are_not_deleted() -> None:
    owner = Owner()
    owner.stable({"protocol_type": "connect"})
    assert owner.group.check_delete_offsets() is NON_EMPTY
    owner.leave("c-1")
    assert owner.group.check_delete_offsets() is NONE


def test_topics_that_members_read() -> None:
    owner = Owner()
    assert not owner.group.is_subscribed_to("a")
    owner.stable({"protocols": (consumer("a", "b"),)}, {"protocols": (consumer("c"),)})
    assert [owner.group.is_subscribed_to(t) for t in "abcd"] == [True, True, True, False]
    owner.leave("c-1", "c-2")
    assert not owner.group.is_subscribed_to("a")


def test_a_subscription_that_cannot_be_read_may_be_to_anything() -> None:
    owner = stable()
    assert owner.group.is_subscribed_to("a")
    assert owner.group.expiry_rule() is None


def test_a_subscription_without_a_version_may_be_to_anything() -> None:
    for data in (b"", b"\0", b"\xff\xff" + consumer("a").metadata[2:]):
        owner = Owner()
        owner.stable({"protocols": (Protocol("range", data),)})
        assert owner.group.is_subscribed_to("b"), data


def test_a_subscription_of_a_version_to_come_is_read() -> None:
    data = b"\x7f\xff" + consumer("a").metadata[2:] + b"more"
    owner = Owner()
    owner.stable({"protocols": (Protocol("range", data),)})
    assert [owner.group.is_subscribed_to(t) for t in "ab"] == [True, False]


def test_how_offsets_age_by_state() -> None:
    """KIP-211."""
    simple = Owner().group.expiry_rule()
    assert simple == ExpiryRule()
    owner = Owner()
    owner.gather({"protocols": (consumer("a"),)})
    assert owner.group.expiry_rule() is None
    owner.settle(["c-1"])
    assert owner.group.expiry_rule() == ExpiryRule(subscribed=frozenset("a"))
    owner.now_ms += 77
    owner.leave("c-1")
    assert owner.group.expiry_rule() == ExpiryRule(unused_since_ms=owner.now_ms)


def test_describing_tells_the_protocol_of_a_stable_group_only() -> None:
    for state, make in STATES.items():
        described = make().group.describe()
        is_stable = state is State.STABLE
        assert (described.state, described.protocol) == (state, "range" if is_stable else "")
        assert {m.metadata for m in described.members} <= {b"r" if is_stable else b""}
    (member,) = stable().group.describe().members
    assert (member.member_id, member.client_host, member.assignment) == ("c-1", "/h", b"c-1")


# --- the log -----------------------------------------------------------------------------------


def test_a_group_comes_back_from_its_record() -> None:
    owner = Owner()
    owner.stable(STATIC, A)
    record = owner.log[-1]
    assert record is not None
    again = Owner(loaded=record)
    assert again.group.state is State.STABLE
    assert again.group.record() == record
    assert again.heartbeat("i-1", instance_id="i") is NONE
    assert again.synced(again.sync("c-2")).assignment == b"c-2"
    again.sleep(SESSION_MS)
    assert again.group.state is State.EMPTY


def test_an_empty_group_comes_back_from_its_record() -> None:
    owner = empty()
    record = owner.log[-1]
    assert record is not None
    again = Owner(loaded=record)
    assert (again.group.state, again.group.record()) == (State.EMPTY, record)
    assert again.group.next_deadline_ms is None


@pytest.mark.parametrize(("since_ms", "rule_ms"), [(-1, None), (0, 0), (7, 7)])
def test_old_records_do_not_say_since_when(since_ms: int, rule_ms: int | None) -> None:
    record = replace(empty().group.record(), current_state_timestamp=since_ms)
    rule = Owner(loaded=record).group.expiry_rule()
    assert rule == ExpiryRule(unused_since_ms=rule_ms)


def test_the_leader_comes_back_from_the_record() -> None:
    owner = Owner()
    owner.stable(A, A)
    record = replace(owner.group.record(), leader="c-2")
    again = Owner(loaded=record)
    assert (again.group.members.leader, again.group.record()) == ("c-2", record)


def test_a_record_whose_leader_is_no_member_is_led_by_the_first() -> None:
    record = replace(stable().group.record(), leader="stranger")
    assert Owner(loaded=record).group.members.leader == "c-1"


def test_a_ticket_nobody_knows_is_passed_over() -> None:
    owner = stable()
    assert owner.group.stored(99, NONE, owner.now_ms) == ()


def test_ids_are_made_of_the_client_or_the_instance() -> None:
    group = ClassicGroup("g", NO_DELAY, lambda: "uuid", 0)
    owner = Owner()
    owner.group = group
    assert owner.gather({"client_id": "sarama"}) == ["sarama-uuid"]
