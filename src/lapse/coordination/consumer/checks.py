"""What a group of KIP-848 refuses, and with which code; nothing here changes anything.

Heartbeats are refused by raising: their answer has room for words. Commits and fetches of offsets
get a code.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable

from lapse.base.errors import ErrorCode, KafkaError
from lapse.coordination.classic.events import NO_GENERATION, NO_MEMBER_ID, Commit
from lapse.coordination.consumer.events import (
    AS_BEFORE_MS,
    AWAY,
    JOINING,
    Beat,
    ConsumerGroupSettings,
    Partitions,
)
from lapse.coordination.consumer.state import ConsumerState, Member


def check_beat(
    group_id: str, beat: Beat, settings: ConsumerGroupSettings, *, makes_own_id: bool
) -> None:
    """Raise INVALID_REQUEST or UNSUPPORTED_ASSIGNOR for what no group can take.

    `makes_own_id`: from version 1 on the member brings its id when it joins (KIP-1082).
    """
    _require(group_id != "", "GroupId can't be empty.")
    _require(beat.instance_id != "", "InstanceId can't be empty.")
    _require(beat.rack_id != "", "RackId can't be empty.")
    _require(beat.epoch >= AWAY, f"MemberEpoch is invalid: {beat.epoch}.")
    needs_id = makes_own_id or beat.epoch != JOINING
    _require(bool(beat.member_id) or not needs_id, "MemberId can't be empty.")
    if beat.epoch == JOINING:
        is_timed = beat.rebalance_timeout_ms != AS_BEFORE_MS
        _require(is_timed, "RebalanceTimeoutMs must be provided in first request.")
        has_none = beat.owned is not None and not beat.owned
        _require(has_none, "TopicPartitions must be empty when (re-)joining.")
        subscribes = beat.topics is not None or beat.pattern is not None
        _require(
            subscribes,
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null "
            "when (re-)joining.",
        )
    if beat.epoch == AWAY:
        _require(beat.instance_id is not None, "InstanceId can't be null.")
    if beat.assignor is not None and beat.assignor not in settings.assignors:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {beat.assignor} is not supported. "
            f"Supported assignors: {', '.join(settings.assignors)}.",
        )


def _require(is_fine: bool, words: str) -> None:
    if not is_fine:
        raise KafkaError(ErrorCode.INVALID_REQUEST, words)


def check_room(state: ConsumerState, beat: Beat, size_max: int) -> None:
    """Raise GROUP_MAX_SIZE_REACHED for a new member in a full group."""
    if len(state.members) >= size_max and beat.member_id not in state.members:
        raise KafkaError(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"The consumer group has reached its maximum capacity of {size_max} members.",
        )


def known_member(state: ConsumerState, member_id: str) -> Member:
    """A member by its id; raises UNKNOWN_MEMBER_ID."""
    member = state.members.get(member_id)
    if member is None:
        raise KafkaError(
            ErrorCode.UNKNOWN_MEMBER_ID,
            f"Member {member_id} is not a member of group {state.group_id}.",
        )
    return member


def known_instance(state: ConsumerState, member_id: str, instance_id: str) -> Member:
    """A static member; raises UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID if another took over."""
    member = state.static(instance_id)
    if member is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
    if member.member_id != member_id:
        raise KafkaError(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} was fenced by member "
            f"{member.member_id}.",
        )
    return member


def check_released(member: Member, member_id: str) -> None:
    """Raise UNRELEASED_INSTANCE_ID unless the member said that its instance goes away."""
    if member.epoch != AWAY:
        raise KafkaError(
            ErrorCode.UNRELEASED_INSTANCE_ID,
            f"Static member {member_id} with instance id {member.instance_id} cannot join the "
            f"group because the instance id is owned by {member.member_id} member.",
        )


def check_epoch(member: Member, epoch: int, owned: Partitions | None) -> None:
    """Raise FENCED_MEMBER_EPOCH unless the epoch is the member's, or it joins anew.

    The epoch before is fine if the answer with the new one may have got lost: the member then owns
    nothing that it would have had to give up.
    """
    if epoch in (JOINING, member.epoch):
        return
    is_behind = epoch < member.epoch
    if is_behind and epoch == member.previous_epoch and _is_part(owned, member):
        return
    raise KafkaError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {'smaller' if is_behind else 'greater'} member epoch "
        f"({epoch}) than the one known by the group coordinator ({member.epoch}). "
        "The member must abandon all its partitions and rejoin.",
    )


def _is_part(owned: Partitions | None, member: Member) -> bool:
    if owned is None:
        return False
    return all(numbers <= member.assigned.get(t, {}).keys() for t, numbers in owned.items())


def check_commit(
    state: ConsumerState, commit: Commit, partitions: Iterable[tuple[uuid.UUID, int]]
) -> ErrorCode:
    """Whether a member may commit offsets of these partitions, or somebody from outside.

    One that speaks the classic calls must be of its present generation. Another that has moved on
    to a later epoch may, for what it has held since the epoch that it commits in (KIP-1251).
    """
    epoch = commit.generation
    if epoch < 0 and not state.members:
        return ErrorCode.NONE
    is_anonymous = commit.member_id == NO_MEMBER_ID and commit.instance_id is None
    if commit.transactional and epoch == NO_GENERATION and is_anonymous:
        return ErrorCode.NONE
    member = state.members.get(commit.member_id)
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if member.classic is not None:
        return ErrorCode.NONE if epoch == member.epoch else ErrorCode.ILLEGAL_GENERATION
    if not commit.transactional and not commit.knows_epochs:
        return ErrorCode.UNSUPPORTED_VERSION
    if epoch == member.epoch:
        return ErrorCode.NONE
    if epoch < member.epoch and all(_held_since(member, pair, epoch) for pair in partitions):
        return ErrorCode.NONE
    return ErrorCode.ILLEGAL_GENERATION if commit.transactional else ErrorCode.STALE_MEMBER_EPOCH


def _held_since(member: Member, pair: tuple[uuid.UUID, int], epoch: int) -> bool:
    topic_id, number = pair
    since = (h.get(topic_id, {}).get(number) for h in (member.assigned, member.revoking))
    return any(e is not None and e <= epoch for e in since)


def check_fetch(state: ConsumerState, member_id: str | None, epoch: int) -> ErrorCode:
    """Whether offsets may be fetched: by members of the present epoch, or from outside."""
    if not member_id and epoch < 0:
        return ErrorCode.NONE
    member = state.members.get(member_id or NO_MEMBER_ID)
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if epoch == member.epoch:
        return ErrorCode.NONE
    is_classic = member.classic is not None
    return ErrorCode.ILLEGAL_GENERATION if is_classic else ErrorCode.STALE_MEMBER_EPOCH
