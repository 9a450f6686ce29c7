"""What events do in each state: from nothing to stable, rebalances, restarts of static members."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from lapse.base.errors import ErrorCode
from lapse.coordination.classic.events import (
    JoinedMember,
    Protocol,
)
from lapse.coordination.classic.state import Event, State
from lapse.coordination.classic.transitions import TABLE
from tests.support.coordination.classic import (
    DELAY,
    GONE,
    ILLEGAL,
    INCONSISTENT,
    NONE,
    RANGE,
    REBALANCE,
    REBALANCE_MS,
    ROUND_ROBIN,
    SESSION_MS,
    UNKNOWN,
    A,
    Owner,
    preparing,
    stable,
)

# --- from nothing to stable --------------------------------------------------------------------


def test_one_member_through_a_rebalance() -> None:
    owner = Owner()
    joining = owner.join()
    assert (owner.group.state, owner.waiting) == (State.PREPARING, {joining})
    owner.sleep(1)
    joined = owner.joined(joining)
    assert (joined.error, joined.member_id, joined.generation) == (NONE, "c-1", 1)
    assert (joined.protocol_type, joined.protocol, joined.leader) == ("consumer", "range", "c-1")
    assert joined.members == (JoinedMember("c-1", None, b"r"),)
    assert not joined.skip_assignment
    syncing = owner.sync("c-1", {"c-1": b"all"})
    assert owner.waiting == {syncing}
    owner.now_ms += 7
    owner.store()
    assert owner.group.state_since_ms == owner.now_ms
    synced = owner.synced(syncing)
    assert (synced.error, synced.assignment) == (NONE, b"all")
    assert (synced.protocol_type, synced.protocol) == ("consumer", "range")
    assert (owner.group.state, owner.heartbeat("c-1")) == (State.STABLE, NONE)


def test_the_log_gets_an_empty_group_then_the_assignment() -> None:
    owner = Owner()
    owner.stable(A)
    first, second = owner.log
    assert first is not None
    assert second is not None
    assert (first.generation, first.protocol_type, first.leader) == (0, "", None)
    assert (first.protocol, first.members) == (None, ())
    assert (second.generation, second.protocol_type, second.leader) == (1, "consumer", "c-1")
    (member,) = second.members
    assert (member.member_id, member.client_id, member.client_host) == ("c-1", "c", "/h")
    assert (member.session_timeout, member.rebalance_timeout) == (SESSION_MS, REBALANCE_MS)
    assert (member.subscription, member.assignment) == (b"r", b"c-1")


def test_followers_wait_for_the_leader_and_the_leader_for_the_log() -> None:
    owner = Owner()
    leader, follower = owner.gather(A, A)
    first = owner.sync(follower)
    owner.store()
    assert owner.waiting == {first}
    second = owner.sync(leader, {leader: b"l", follower: b"f"})
    assert owner.waiting == {first, second}
    owner.store()
    assert [owner.synced(t).assignment for t in (first, second)] == [b"f", b"l"]


def test_only_the_leader_is_told_of_the_members() -> None:
    owner = Owner()
    tokens = [owner.join(), owner.join("", ROUND_ROBIN, RANGE)]
    owner.sleep(1)
    leader, follower = (owner.joined(t) for t in tokens)
    assert [m.member_id for m in leader.members] == ["c-1", "c-2"]
    assert follower.members == ()
    assert follower.leader == leader.member_id


def test_members_the_leader_forgot_get_nothing() -> None:
    owner = Owner()
    leader, other = owner.gather(A, A)
    tokens = [owner.sync(leader, {"stranger": b"x"}), owner.sync(other)]
    owner.store()
    assert [owner.synced(t) for t in tokens] == [owner.synced(tokens[0])] * 2
    assert owner.synced(tokens[0]).assignment == b""
    assert owner.group.state is State.STABLE


def test_a_follower_that_syncs_late_gets_its_assignment_at_once() -> None:
    owner = Owner()
    leader, late = owner.gather(A, A)
    owner.sync(leader, {late: b"f"})
    owner.store()
    assert owner.synced(owner.sync(late)).assignment == b"f"


# --- member ids (KIP-394) ----------------------------------------------------------------------


def test_a_new_client_is_given_an_id_first() -> None:
    owner = Owner()
    answer = owner.joined(owner.join(needs_member_id=True))
    assert (answer.error, answer.member_id) == (ErrorCode.MEMBER_ID_REQUIRED, "c-1")
    owner.store()
    assert (owner.group.state, len(owner.log)) == (State.EMPTY, 1)
    token = owner.join("c-1", needs_member_id=True)
    owner.sleep(1)
    assert owner.joined(token).member_id == "c-1"


def test_an_id_that_nobody_comes_back_with_is_forgotten() -> None:
    owner = Owner()
    owner.join(needs_member_id=True)
    owner.sleep(SESSION_MS)
    assert owner.joined(owner.join("c-1")).error is UNKNOWN


def test_a_rebalance_waits_for_ids_given_out_and_no_longer_than_their_session() -> None:
    owner = preparing()
    owner.join(needs_member_id=True)
    token = owner.join("c-2")
    owner.sleep(SESSION_MS - 1)
    assert token in owner.waiting
    owner.sleep(1)
    assert owner.joined(token).generation == 3


def test_a_pending_id_has_no_instance() -> None:
    owner = Owner()
    owner.join(needs_member_id=True)
    assert owner.joined(owner.join("c-1", instance_id="i")).error is UNKNOWN
    owner.join("c-1")
    owner.sleep(1)
    assert owner.group.state is State.COMPLETING


def test_static_members_need_no_id_first() -> None:
    owner = Owner()
    token = owner.join(instance_id="i", needs_member_id=True)
    owner.sleep(1)
    assert (owner.joined(token).error, owner.joined(token).member_id) == (NONE, "i-1")


# --- the first rebalance (KIP-134) -------------------------------------------------------------


def test_the_first_rebalance_waits_for_others() -> None:
    owner = Owner(DELAY)
    first = owner.join()
    owner.sleep(2_999)
    assert first in owner.waiting
    owner.sleep(1)
    assert owner.joined(first).generation == 1


def test_each_who_comes_makes_it_wait_once_more_up_to_the_rebalance_timeout() -> None:
    owner = Owner(DELAY)
    first = owner.join(rebalance_timeout_ms=8_000)
    for _ in range(7):
        owner.join(rebalance_timeout_ms=8_000)
        owner.sleep(1_000)
    assert first in owner.waiting
    owner.sleep(999)
    assert first in owner.waiting
    owner.sleep(1)
    assert len(owner.joined(first).members) == 8


def test_later_rebalances_wait_for_nothing_but_the_members() -> None:
    owner = Owner(DELAY)
    owner.stable(A)
    second = owner.join()
    again = owner.join("c-1")
    assert [owner.joined(t).generation for t in (second, again)] == [2, 2]


def test_a_group_that_is_empty_again_has_a_first_rebalance_again() -> None:
    owner = Owner(DELAY)
    owner.stable(A)
    owner.leave("c-1")
    owner.store()
    token = owner.join()
    owner.sleep(2_999)
    assert token in owner.waiting


def test_without_a_delay_it_is_over_with_the_next_tick() -> None:
    owner = Owner()
    owner.join()
    assert owner.group.next_deadline_ms == owner.now_ms + 1


def test_leaving_does_not_shorten_the_first_rebalance() -> None:
    owner = Owner(DELAY)
    first = owner.join()
    owner.join()
    owner.leave("c-2")
    owner.sleep(2_999)
    assert first in owner.waiting


# --- rebalances --------------------------------------------------------------------------------


def test_the_members_vote_on_the_protocol() -> None:
    sticky = Protocol("sticky", b"s")
    owner = Owner()
    tokens = [
        owner.join("", RANGE, ROUND_ROBIN, sticky),
        owner.join("", ROUND_ROBIN, RANGE),
        owner.join("", ROUND_ROBIN, RANGE),
    ]
    owner.sleep(1)
    answer = owner.joined(tokens[0])
    assert answer.protocol == "roundrobin"
    assert {m.metadata for m in answer.members} == {b"rr"}


def test_equal_votes_go_as_the_leader_likes() -> None:
    for first, second in ((RANGE, ROUND_ROBIN), (ROUND_ROBIN, RANGE)):
        owner = Owner()
        token = owner.join("", first, second)
        owner.join("", second, first)
        owner.sleep(1)
        assert owner.joined(token).protocol == first.name


def test_a_protocol_given_twice_counts_once() -> None:
    owner = Owner()
    token = owner.join("", RANGE, Protocol("range", b"again"))
    owner.sleep(1)
    assert owner.joined(token).members[0].metadata == b"r"
    assert owner.joined(owner.join("", ROUND_ROBIN)).error is INCONSISTENT


def test_a_rebalance_goes_on_without_those_who_do_not_come_in_time() -> None:
    owner = Owner()
    long = {"session_timeout_ms": 10 * REBALANCE_MS}
    owner.stable(long, long)
    token = owner.join("c-2", Protocol("range", b"new"))
    owner.sleep(REBALANCE_MS - 1)
    assert token in owner.waiting
    owner.sleep(1)
    answer = owner.joined(token)
    assert (answer.generation, answer.leader, len(answer.members)) == (2, "c-2", 1)
    assert owner.heartbeat("c-1") is UNKNOWN


def test_the_slowest_member_sets_the_rebalance_timeout() -> None:
    owner = Owner()
    long = {"session_timeout_ms": 1_000_000}
    owner.stable(long | {"rebalance_timeout_ms": 20_000}, long | {"rebalance_timeout_ms": 90_000})
    token = owner.join("c-1", session_timeout_ms=1_000_000, rebalance_timeout_ms=20_000)
    owner.sleep(89_999)
    assert token in owner.waiting
    owner.sleep(1)
    assert token in owner.answers


@pytest.mark.parametrize("timeout_ms", [-1, 0])
def test_version_0_has_its_session_timeout_for_both(timeout_ms: int) -> None:
    owner = Owner()
    owner.stable({"rebalance_timeout_ms": timeout_ms}, {"rebalance_timeout_ms": timeout_ms})
    token = owner.join("c-1", rebalance_timeout_ms=timeout_ms)
    owner.heartbeat("c-2")
    owner.sleep(SESSION_MS - 1)
    assert token in owner.waiting
    owner.sleep(1)
    assert token in owner.answers


@pytest.mark.parametrize("state", [State.COMPLETING, State.STABLE])
@pytest.mark.parametrize("leads", [True, False])
@pytest.mark.parametrize("changed", [True, False])
def test_joining_again(state: State, leads: bool, changed: bool) -> None:
    """The same again is answered at once; but a stable group's leader asks for a rebalance."""
    owner = Owner()
    ids = owner.gather(A, A)
    if state is State.STABLE:
        owner.settle(ids)
    token = owner.join(ids[0] if leads else ids[1], Protocol("range", b"2" if changed else b"r"))
    if changed or (leads and state is State.STABLE):
        assert owner.group.state is State.PREPARING
        assert token in owner.waiting
    else:
        answer = owner.joined(token)
        assert (answer.error, answer.generation, owner.group.state) == (NONE, 1, state)
        assert len(answer.members) == (2 if leads else 0)


def test_a_slow_clients_second_join_takes_the_place_of_the_first() -> None:
    owner = preparing()
    first = next(iter(owner.waiting))
    second = owner.join("c-1")
    assert owner.joined(first).error is REBALANCE
    assert owner.waiting == {second}
    third = owner.join("c-2")
    assert [owner.joined(t).generation for t in (second, third)] == [3, 3]


def test_a_slow_clients_second_sync_takes_the_place_of_the_first() -> None:
    owner = Owner()
    leader, other = owner.gather(A, A)
    first, second = owner.sync(other), owner.sync(other)
    assert owner.synced(first).error is REBALANCE
    owner.sync(leader, {other: b"f"})
    owner.store()
    assert owner.synced(second).assignment == b"f"


def test_of_two_assignments_of_a_generation_the_first_counts() -> None:
    owner = Owner()
    (leader,) = owner.gather(A)
    owner.store()
    first, second = owner.sync(leader, {leader: b"1"}), owner.sync(leader, {leader: b"2"})
    assert len(owner.to_store) == 1
    owner.store()
    assert owner.synced(first).error is REBALANCE
    assert owner.synced(second).assignment == b"1"
    assert owner.log[-1] is not None
    assert owner.log[-1].members[0].assignment == b"1"


def test_a_join_while_others_sync_sends_them_back_to_join() -> None:
    owner = Owner()
    _, other = owner.gather(A, A)
    syncing = owner.sync(other)
    owner.join()
    assert owner.synced(syncing).error is REBALANCE
    assert owner.group.state is State.PREPARING
    assert not owner.group.members.unsynced


def test_assignments_last_until_a_new_generation_is_given_up() -> None:
    owner = Owner()
    owner.stable(A)
    owner.join()
    (first, _) = owner.group.describe().members
    assert first.assignment == b"c-1"
    owner.join("c-1")
    owner.join()
    assert {m.assignment for m in owner.group.describe().members} == {b""}


def test_an_assignment_that_a_rebalance_overtook_is_void() -> None:
    owner = Owner()
    (leader,) = owner.gather(A)
    owner.store()
    syncing = owner.sync(leader, {leader: b"1"})
    joining = owner.join()
    assert owner.synced(syncing).error is REBALANCE
    owner.store()
    assert owner.group.state is State.PREPARING
    owner.join(leader)
    assert owner.joined(joining).generation == 2
    assert owner.synced(owner.sync("c-2", generation=1)).error is ILLEGAL
    owner.settle([leader, "c-2"])
    assert owner.group.state is State.STABLE


def test_an_assignment_of_an_earlier_generation_does_not_settle_the_next() -> None:
    owner = Owner()
    (leader,) = owner.gather(A)
    owner.store()
    owner.sync(leader, {leader: b"1"})
    owner.join()
    owner.join(leader)
    assert (owner.group.state, owner.group.generation) == (State.COMPLETING, 2)
    syncing = owner.sync(leader, {leader: b"2"})
    owner.store_one()
    assert (owner.group.state, syncing in owner.waiting) == (State.COMPLETING, True)
    owner.store_one()
    assert owner.synced(syncing).assignment == b"2"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS, GONE),
        (ErrorCode.REQUEST_TIMED_OUT, GONE),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, GONE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.CORRUPT_MESSAGE, ErrorCode.CORRUPT_MESSAGE),
    ],
)
def test_an_assignment_that_cannot_be_stored_is_given_to_nobody(
    error: ErrorCode, told: ErrorCode
) -> None:
    owner = Owner()
    leader, other = owner.gather(A, A)
    owner.store()
    tokens = [owner.sync(other), owner.sync(leader, {leader: b"l", other: b"f"})]
    owner.store(error)
    assert [(owner.synced(t).error, owner.synced(t).assignment) for t in tokens] == [
        (told, b"")
    ] * 2
    assert owner.group.state is State.PREPARING
    tokens = [owner.join(leader), owner.join(other)]
    assert [owner.joined(t).generation for t in tokens] == [2, 2]


def test_those_who_never_sync_are_dropped_after_the_rebalance_timeout() -> None:
    """KAFKA-12890: also when they go on sending heartbeats."""
    owner = Owner()
    leader, silent = owner.gather(A, A)
    owner.sync(leader, {silent: b"f"})
    owner.store()
    for _ in range(REBALANCE_MS // 1_000 - 1):
        owner.sleep(1_000)
        assert (owner.heartbeat(leader), owner.heartbeat(silent)) == (NONE, NONE)
    owner.sleep(1_000)
    assert owner.heartbeat(silent) is UNKNOWN
    assert (owner.group.state, owner.heartbeat(leader)) == (State.PREPARING, REBALANCE)


def test_a_leader_that_never_syncs_is_dropped_and_followers_join_again() -> None:
    owner = Owner()
    leader, other = owner.gather(A, A)
    syncing = owner.sync(other)
    for _ in range(REBALANCE_MS // 5_000):
        owner.heartbeat(leader)
        owner.sleep(5_000)
    assert owner.synced(syncing).error is REBALANCE
    assert owner.joined(owner.join(other)).leader == other


def test_after_the_highest_generation_comes_zero() -> None:
    owner = stable()
    record = replace(owner.group.record(), generation=2**31 - 1)
    owner = Owner(loaded=record)
    owner.join("c-1")
    assert owner.group.generation == 0
    owner.settle(["c-1"])
    assert owner.heartbeat("c-1", generation=0) is NONE


# --- the table ----------------------------------------------------------------------------------

REQUESTS = {Event.JOIN_NEW, Event.JOIN_INSTANCE, Event.JOIN_PENDING, Event.JOIN_MEMBER}
REQUESTS |= {Event.SYNC, Event.HEARTBEAT, Event.LEFT}
STORES = {Event.CREATED, Event.ASSIGNED, Event.REPLACED, Event.EMPTIED}


def test_every_pair_that_can_happen_is_in_the_table() -> None:
    missing = {pair for pair in itertools.product(State, Event) if pair not in TABLE}
    checked = {(State.DEAD, event) for event in REQUESTS}
    memberless = {Event.JOIN_INSTANCE, Event.JOIN_MEMBER, Event.SYNC, Event.HEARTBEAT}
    checked |= {(State.EMPTY, event) for event in memberless}
    timers = {Event.EXPIRED, Event.PENDING_EXPIRED, Event.JOIN_PHASE_OVER, Event.SYNC_PHASE_OVER}
    unset = {(State.DEAD, event) for event in timers} | {(State.EMPTY, Event.EXPIRED)}
    unset |= {(s, Event.JOIN_PHASE_OVER) for s in State if s is not State.PREPARING}
    unset |= {(s, Event.SYNC_PHASE_OVER) for s in (State.EMPTY, State.PREPARING)}
    refused = {(s, Event.DELETE) for s in State if s is not State.EMPTY}
    refused |= {(s, Event.DELETED) for s in State if s is not State.DEAD}
    assert missing == checked | unset | refused
    assert {event for _, event in TABLE} == set(Event)


def test_a_store_may_end_in_any_state() -> None:
    assert all((state, event) in TABLE for state in State for event in STORES)
