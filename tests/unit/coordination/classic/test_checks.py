"""What a group refuses, and whom."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lapse.base.errors import ErrorCode
from lapse.coordination.classic.events import (
    Commit,
    Protocol,
)
from lapse.coordination.classic.state import State
from tests.support.coordination.classic import (
    FENCED,
    GONE,
    ILLEGAL,
    INCONSISTENT,
    NO_DELAY,
    NONE,
    RANGE,
    REBALANCE,
    ROUND_ROBIN,
    SESSION_MS,
    STATES,
    STATIC,
    UNKNOWN,
    A,
    Owner,
    by_state,
    dead,
    stable,
)

# --- joins that are refused --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("session_ms", "code"),
    [
        (5_999, ErrorCode.INVALID_SESSION_TIMEOUT),
        (6_000, None),
        (1_800_000, None),
        (1_800_001, ErrorCode.INVALID_SESSION_TIMEOUT),
    ],
)
def test_session_timeouts_have_bounds(session_ms: int, code: ErrorCode | None) -> None:
    owner = Owner()
    token = owner.join(session_timeout_ms=session_ms)
    assert (owner.joined(token).error if token in owner.answers else None) == code
    assert owner.group.is_unused == (code is not None)


@pytest.mark.parametrize(
    ("protocols", "more", "code"),
    [
        ((), {}, None),
        ((ROUND_ROBIN, RANGE), {}, None),
        ((ROUND_ROBIN,), {}, INCONSISTENT),
        ((), {"protocol_type": "connect"}, INCONSISTENT),
        ((), {"protocol_type": ""}, INCONSISTENT),
    ],
    ids=["same", "one-shared", "none-shared", "other-type", "no-type"],
)
@pytest.mark.parametrize("state", [State.PREPARING, State.COMPLETING, State.STABLE])
def test_a_member_must_share_type_and_a_protocol(
    state: State, protocols: tuple[Protocol, ...], more: dict[str, Any], code: ErrorCode | None
) -> None:
    owner = STATES[state]()
    token = owner.join("", *protocols, **more)
    assert (owner.joined(token).error if token in owner.answers else None) == code


@pytest.mark.parametrize("more", [{"protocol_type": ""}, {"protocols": ()}], ids=["type", "names"])
def test_the_first_member_must_name_type_and_protocols(more: dict[str, Any]) -> None:
    owner = Owner()
    assert owner.joined(owner.join(**more)).error is INCONSISTENT
    assert owner.group.is_unused


@by_state(empty=UNKNOWN, preparing=UNKNOWN, completing=UNKNOWN, stable=UNKNOWN, dead=GONE)
def test_joining_with_an_id_nobody_has(state: State, code: ErrorCode) -> None:
    owner = STATES[state]()
    answer = owner.joined(owner.join("stranger"))
    assert (answer.error, answer.member_id, answer.generation) == (code, "stranger", -1)


def test_a_dead_group_takes_nobody() -> None:
    owner = dead()
    assert owner.joined(owner.join()).error is GONE
    assert owner.left(owner.leave("c-1")).error is GONE
    assert owner.left(owner.leave("c-1")).members == ()


# --- size (KIP-389) ----------------------------------------------------------------------------


TWO = replace(NO_DELAY, size_max=2)
FULL = ErrorCode.GROUP_MAX_SIZE_REACHED


def test_a_full_group_takes_nobody() -> None:
    owner = Owner(TWO)
    owner.stable(A, A)
    answer = owner.joined(owner.join())
    assert (answer.error, answer.member_id) == (FULL, "")
    assert (owner.group.state, owner.heartbeat("c-1")) == (State.STABLE, NONE)


def test_a_full_group_takes_its_members_again() -> None:
    owner = Owner(TWO)
    owner.stable(A, A)
    first = owner.join("c-1")
    second = owner.join("c-2")
    assert [owner.joined(t).error for t in (first, second)] == [NONE, NONE]
    owner = Owner(replace(TWO, initial_rebalance_delay_ms=3_000))
    owner.join()
    owner.join()
    again = owner.join("c-2")
    assert again in owner.waiting


def test_ids_given_out_do_not_reserve_a_place() -> None:
    owner = Owner(TWO)
    for _ in range(3):
        owner.join(needs_member_id=True)
    tokens = [owner.join(f"c-{n}") for n in (1, 2, 3)]
    assert owner.joined(tokens[2]).error is FULL
    owner.sleep(1)
    assert [owner.joined(t).error for t in tokens[:2]] == [NONE, NONE]


def test_of_a_group_that_is_too_large_the_last_to_rejoin_find_no_room() -> None:
    owner = Owner()
    owner.stable(A, A, A)
    owner = Owner(TWO, owner.group.record())
    assert (owner.group.state, owner.heartbeat("c-1")) == (State.PREPARING, REBALANCE)
    tokens = [owner.join(f"c-{n}") for n in (3, 1, 2)]
    assert [owner.joined(t).error for t in tokens] == [NONE, NONE, FULL]
    assert {m.member_id for m in owner.joined(tokens[1]).members} == {"c-1", "c-3"}


# --- sync and heartbeat, by state --------------------------------------------------------------


@by_state(empty=UNKNOWN, preparing=REBALANCE, stable=NONE, dead=GONE)
def test_sync_by_state(state: State, code: ErrorCode) -> None:
    owner = STATES[state]()
    assert owner.synced(owner.sync("c-1")).error is code


@by_state(empty=UNKNOWN, preparing=REBALANCE, completing=NONE, stable=NONE, dead=GONE)
def test_heartbeat_by_state(state: State, code: ErrorCode) -> None:
    assert STATES[state]().heartbeat("c-1") is code


@pytest.mark.parametrize(
    ("member_id", "more", "code"),
    [
        ("i-1", {"instance_id": "i"}, NONE),
        ("i-1", {}, NONE),
        ("i-1", {"generation": 2}, ILLEGAL),
        ("i-1", {"generation": 0}, ILLEGAL),
        ("x", {}, UNKNOWN),
        ("", {}, UNKNOWN),
        ("x", {"instance_id": "i"}, FENCED),
        ("x", {"instance_id": "i", "generation": 9}, FENCED),
        ("i-1", {"instance_id": "other"}, UNKNOWN),
    ],
)
def test_who_may_sync_beat_and_commit(
    member_id: str, more: dict[str, Any], code: ErrorCode
) -> None:
    owner = Owner()
    owner.stable(STATIC)
    assert owner.heartbeat(member_id, **more) is code
    assert owner.synced(owner.sync(member_id, **more)).error is code
    commit = Commit(member_id, **({"generation": 1} | more))
    assert owner.group.commit(commit, owner.now_ms) is code


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"protocol_type": "consumer", "protocol": "range"}, NONE),
        ({"protocol_type": "connect", "protocol": "range"}, INCONSISTENT),
        ({"protocol_type": "consumer", "protocol": "sticky"}, INCONSISTENT),
        ({"needs_protocol": True}, INCONSISTENT),
        ({"needs_protocol": True, "protocol_type": "consumer"}, INCONSISTENT),
        ({"needs_protocol": True, "protocol_type": "consumer", "protocol": "range"}, NONE),
        ({}, NONE),
    ],
)
def test_sync_names_the_protocol(more: dict[str, Any], code: ErrorCode) -> None:
    """KIP-559; from version 5 it must."""
    owner = stable()
    assert owner.synced(owner.sync("c-1", **more)).error is code


# --- commits -----------------------------------------------------------------------------------


@by_state(empty=NONE, preparing=UNKNOWN, completing=UNKNOWN, stable=UNKNOWN, dead=GONE)
def test_commits_from_outside_the_group(state: State, code: ErrorCode) -> None:
    owner = STATES[state]()
    assert owner.group.commit(Commit(), owner.now_ms) is code


@by_state(empty=NONE, preparing=NONE, completing=NONE, stable=NONE, dead=GONE)
def test_transactions_from_outside_the_group(state: State, code: ErrorCode) -> None:
    """Before KIP-447 they did not say for whom."""
    owner = STATES[state]()
    assert owner.group.commit(Commit(transactional=True), owner.now_ms) is code


@by_state(empty=UNKNOWN, preparing=NONE, completing=REBALANCE, stable=NONE, dead=GONE)
def test_commits_of_a_member(state: State, code: ErrorCode) -> None:
    owner = STATES[state]()
    commit = Commit("c-1", owner.group.generation)
    assert owner.group.commit(commit, owner.now_ms) is code


@by_state(empty=UNKNOWN, preparing=NONE, completing=NONE, stable=NONE, dead=GONE)
def test_transactions_of_a_member(state: State, code: ErrorCode) -> None:
    owner = STATES[state]()
    commit = Commit("c-1", owner.group.generation, transactional=True)
    assert owner.group.commit(commit, owner.now_ms) is code


@pytest.mark.parametrize("transactional", [False, True])
def test_commits_keep_a_session_alive(transactional: bool) -> None:
    owner = stable()
    for _ in range(2):
        owner.sleep(SESSION_MS - 1)
        owner.group.commit(Commit("c-1", 1, transactional=transactional), owner.now_ms)
    assert (owner.group.state is State.EMPTY) == transactional
