"""What a group of KIP-848 refuses, and with which code."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lapse.base.errors import ErrorCode, KafkaError
from lapse.coordination.classic.events import Commit
from lapse.coordination.consumer.checks import (
    check_beat,
    check_commit,
    check_epoch,
    check_fetch,
    check_released,
    check_room,
    known_instance,
    known_member,
)
from lapse.coordination.consumer.events import Beat, ConsumerGroupSettings
from lapse.coordination.consumer.state import ConsumerState, Member
from lapse.coordination.records.consumer_groups import ClassicMemberMetadata
from tests.support.coordination.consumers import joining, partitions, topic_id

SETTINGS = ConsumerGroupSettings()
E = ErrorCode
T = topic_id("t")
JOIN = joining("m", "t")
HELD = Member("m", instance_id="i", epoch=5, previous_epoch=4, assigned={T: {0: 3, 1: 5}},
              revoking={T: {2: 2}})  # fmt: skip
STATE = ConsumerState("g", epoch=5, members={"m": HELD})


@pytest.mark.parametrize(
    ("beat", "code"),
    [
        (JOIN, None),
        (replace(JOIN, topics=None, pattern="t.*"), None),
        (replace(JOIN, topics=()), None),
        (replace(JOIN, assignor="range"), None),
        (Beat("m", 3), None),
        (Beat("m", -1), None),
        (Beat("m", -2, instance_id="i"), None),
        (replace(JOIN, instance_id=""), E.INVALID_REQUEST),
        (replace(JOIN, rack_id=""), E.INVALID_REQUEST),
        (replace(JOIN, rebalance_timeout_ms=-1), E.INVALID_REQUEST),
        (replace(JOIN, owned=None), E.INVALID_REQUEST),
        (replace(JOIN, owned=partitions(t={0})), E.INVALID_REQUEST),
        (replace(JOIN, topics=None), E.INVALID_REQUEST),
        (replace(JOIN, member_id=""), E.INVALID_REQUEST),
        (Beat("", 3), E.INVALID_REQUEST),
        (Beat("", -1), E.INVALID_REQUEST),
        (Beat("m", -2), E.INVALID_REQUEST),
        (Beat("m", -3), E.INVALID_REQUEST),
        (replace(JOIN, assignor="sticky"), E.UNSUPPORTED_ASSIGNOR),
    ],
)
def test_beats(beat: Beat, code: ErrorCode | None) -> None:
    assert _code(check_beat, "g", beat, SETTINGS, makes_own_id=True) is code


def test_version_0_may_lack_an_id_only_when_it_joins() -> None:
    assert _code(check_beat, "g", replace(JOIN, member_id=""), SETTINGS, makes_own_id=False) is None
    refused = _code(check_beat, "g", Beat("", 3), SETTINGS, makes_own_id=False)
    assert refused is E.INVALID_REQUEST
    assert _code(check_beat, "", JOIN, SETTINGS, makes_own_id=True) is E.INVALID_REQUEST


def test_room() -> None:
    assert _code(check_room, STATE, JOIN, 1) is None, "it is in already"
    assert _code(check_room, STATE, joining("x", "t"), 2) is None
    assert _code(check_room, STATE, joining("x", "t"), 1) is E.GROUP_MAX_SIZE_REACHED


def test_members() -> None:
    assert known_member(STATE, "m") is HELD
    assert _code(known_member, STATE, "x") is E.UNKNOWN_MEMBER_ID
    assert known_instance(STATE, "m", "i") is HELD
    assert _code(known_instance, STATE, "m", "j") is E.UNKNOWN_MEMBER_ID
    assert _code(known_instance, STATE, "x", "i") is E.FENCED_INSTANCE_ID
    assert _code(check_released, HELD, "x") is E.UNRELEASED_INSTANCE_ID
    assert _code(check_released, replace(HELD, epoch=-2), "x") is None


@pytest.mark.parametrize(
    ("epoch", "owned", "code"),
    [
        (5, None, None),
        (0, {}, None),
        (6, None, E.FENCED_MEMBER_EPOCH),
        (4, partitions(t={0, 1}), None),
        (4, {}, None),
        (4, None, E.FENCED_MEMBER_EPOCH),
        (4, partitions(t={2}), E.FENCED_MEMBER_EPOCH),
        (3, {}, E.FENCED_MEMBER_EPOCH),
    ],
)
def test_epochs(epoch: int, owned: Any, code: ErrorCode | None) -> None:
    assert _code(check_epoch, HELD, epoch, owned) is code


@pytest.mark.parametrize(
    ("commit", "numbers", "code"),
    [
        (Commit("m", 5), (0, 9), E.NONE),
        (Commit("m", 6), (0,), E.STALE_MEMBER_EPOCH),
        (Commit("m", 4), (0,), E.NONE),
        (Commit("m", 4), (0, 1), E.STALE_MEMBER_EPOCH),
        (Commit("m", 2), (2,), E.NONE),
        (Commit("m", 2), (0,), E.STALE_MEMBER_EPOCH),
        (Commit("m", 4), (9,), E.STALE_MEMBER_EPOCH),
        (Commit("m", -1), (0,), E.STALE_MEMBER_EPOCH),
        (Commit("x", 5), (0,), E.UNKNOWN_MEMBER_ID),
        (Commit("", -1), (0,), E.UNKNOWN_MEMBER_ID),
        (Commit("m", 5, knows_epochs=False), (0,), E.UNSUPPORTED_VERSION),
        (Commit("", -1, transactional=True), (0,), E.NONE),
        (Commit("m", 5, transactional=True, knows_epochs=False), (0,), E.NONE),
        (Commit("m", 6, transactional=True), (0,), E.ILLEGAL_GENERATION),
        (Commit("m", 4, transactional=True), (1,), E.ILLEGAL_GENERATION),
        (Commit("x", 5, transactional=True), (0,), E.UNKNOWN_MEMBER_ID),
    ],
)
def test_commits(commit: Commit, numbers: tuple[int, ...], code: ErrorCode) -> None:
    assert check_commit(STATE, commit, [(T, n) for n in numbers]) is code


CLASSIC = ConsumerState("g", epoch=6, members={"m": replace(HELD, classic=ClassicMemberMetadata())})


@pytest.mark.parametrize(
    ("commit", "code"),
    [
        (Commit("m", 5, knows_epochs=False), E.NONE),
        (Commit("m", 5, transactional=True), E.NONE),
        (Commit("m", 4, knows_epochs=False), E.ILLEGAL_GENERATION),
        (Commit("m", 6), E.ILLEGAL_GENERATION),
        (Commit("", -1), E.UNKNOWN_MEMBER_ID),
    ],
)
def test_commits_of_classic_members_are_of_their_generation(commit: Commit, code: E) -> None:
    assert check_commit(CLASSIC, commit, [(T, 0)]) is code


def test_fetches_of_classic_members() -> None:
    assert check_fetch(CLASSIC, "m", 5) is E.NONE
    assert check_fetch(CLASSIC, "m", 4) is E.ILLEGAL_GENERATION


def test_commits_to_an_empty_group() -> None:
    assert check_commit(ConsumerState("g"), Commit("", -1), [(T, 0)]) is E.NONE
    assert check_commit(ConsumerState("g"), Commit("m", 1), [(T, 0)]) is E.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(
    ("member_id", "epoch", "code"),
    [
        (None, -1, E.NONE),
        ("", -1, E.NONE),
        ("m", 5, E.NONE),
        ("m", 4, E.STALE_MEMBER_EPOCH),
        ("m", 6, E.STALE_MEMBER_EPOCH),
        ("x", 5, E.UNKNOWN_MEMBER_ID),
        (None, 5, E.UNKNOWN_MEMBER_ID),
    ],
)
def test_fetches(member_id: str | None, epoch: int, code: ErrorCode) -> None:
    assert check_fetch(STATE, member_id, epoch) is code


def _code(check: Any, *given: Any, **more: Any) -> ErrorCode | None:
    try:
        check(*given, **more)
    except KafkaError as e:
        return e.code
    return None
