"""What members of a group of KIP-848 do that speak the classic calls (KIP-848's migration).

To its group such a member is one like the others, with a target and an epoch, which it takes for a
generation; only its client gets other answers. Where another one is given what it is to have
by heartbeats, this one is sent to join again (REBALANCE_IN_PROGRESS), says in its subscription what
it owns, and is given by SyncGroup what it holds then. No member leads and none waits for others:
joins and syncs are answered at once. As GroupMetadataManager of Kafka 4.3, which has them whatever
`group.consumer.migration.policy` says.

Refusals raise KafkaError with the code that the answer is to have.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable

from lapse.base.errors import ErrorCode, KafkaError
from lapse.coordination.classic.events import (
    NO_MEMBER_ID,
    Heartbeat,
    HeartbeatTaken,
    Join,
    Joined,
    Leave,
    Leaving,
    Left,
    LeftMember,
    Protocol,
    Sync,
    Synced,
)
from lapse.coordination.classic.group import ClassicGroup
from lapse.coordination.consumer import transitions
from lapse.coordination.consumer.checks import check_room, known_instance, known_member
from lapse.coordination.consumer.events import JOINING, Beat, Cluster
from lapse.coordination.consumer.migration import (
    assignment_bytes,
    downgraded,
    may_downgrade,
    partitions_by_id,
)
from lapse.coordination.consumer.state import ConsumerState, Draft, Member, plain
from lapse.coordination.consumer.transitions import Now
from lapse.coordination.records.consumer_groups import (
    ClassicMemberMetadata,
    ClassicProtocol,
    MemberState,
)
from lapse.coordination.records.subscription import (
    PROTOCOL_TYPE,
    ConsumerProtocolSubscription,
    read_versioned,
)
from lapse.wire.errors import MalformedMessage

# --- joining ----------------------------------------------------------------------------------


def join(
    draft: Draft, request: Join, now: Now, new_id: Callable[[], str]
) -> tuple[Joined, ClassicGroup | None]:
    """A member joins, or comes again; and the classic group, if the last other member was it."""
    state, settings = draft.state, now.settings
    limits = settings.classic
    if not (
        limits.session_timeout_min_ms <= request.session_timeout_ms <= limits.session_timeout_max_ms
    ):
        raise KafkaError(ErrorCode.INVALID_SESSION_TIMEOUT, f"{request.session_timeout_ms} ms")
    by_name = {p.name: p for p in reversed(request.protocols)}
    protocols = tuple(dict.fromkeys(by_name[p.name] for p in request.protocols))
    beat = _beat(request, request.member_id or new_id(), protocols, now.cluster)
    check_room(state, beat, settings.size_max)
    _check_protocols(state, request.protocol_type, protocols)
    is_unknown = request.member_id == NO_MEMBER_ID
    if is_unknown and request.needs_member_id and request.instance_id is None:
        return Joined(ErrorCode.MEMBER_ID_REQUIRED, beat.member_id), None
    found = None if request.instance_id is None else state.static(request.instance_id)
    ends = (
        found is not None
        and found.classic is None
        and may_downgrade(state, settings, without=found.member_id)
    )
    before = _member_before(draft, beat, is_unknown=is_unknown)
    has_resubscribed = transitions.subscribe(draft, before, beat, now)
    if ends and draft.state.epoch == state.epoch:
        transitions.reconcile(draft, beat, now, has_resubscribed=has_resubscribed)
    if ends:
        return _end(draft, beat, now, new_id, generation=state.epoch)
    transitions.follow_target(draft, now)
    member = transitions.reconcile(draft, beat, now, has_resubscribed=has_resubscribed)
    return _joined(member.member_id, member.epoch, protocols[0].name), None


def _joined(member_id: str, generation: int, protocol: str) -> Joined:
    return Joined(ErrorCode.NONE, member_id, generation, PROTOCOL_TYPE, protocol)


def _end(
    draft: Draft, beat: Beat, now: Now, new_id: Callable[[], str], *, generation: int
) -> tuple[Joined, ClassicGroup]:
    """A static member took the place of the last one that spoke the new calls."""
    state = draft.state
    quiet = state.epoch == generation and all(
        m.is_reconciled_to(generation) for m in state.members.values()
    )
    group = downgraded(draft, now, new_id, generation=generation, quiet=quiet)
    return _joined(beat.member_id, generation, group.protocol or ""), group


def _beat(request: Join, member_id: str, protocols: tuple[Protocol, ...], cluster: Cluster) -> Beat:
    """What it says in words of the new calls; the protocols all carry the same subscription."""
    if not protocols:
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "no protocols")
    try:
        said, _ = read_versioned(ConsumerProtocolSubscription, protocols[0].metadata)
    except MalformedMessage as e:
        words = f"Member {member_id} has a subscription that cannot be read: {e}"
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, words) from e
    timeout_ms = request.rebalance_timeout_ms
    return Beat(
        member_id,
        JOINING,
        instance_id=request.instance_id,
        rack_id=said.rack_id,
        rebalance_timeout_ms=timeout_ms if timeout_ms > 0 else request.session_timeout_ms,
        topics=said.topics,
        pattern="",
        owned=partitions_by_id(said.owned_partitions, cluster),
        client_id=request.client_id,
        client_host=request.client_host,
        classic=ClassicMemberMetadata(
            session_timeout_ms=request.session_timeout_ms,
            supported_protocols=tuple(
                ClassicProtocol(name=p.name, metadata=p.metadata) for p in protocols
            ),
        ),
    )


def _check_protocols(
    state: ConsumerState, protocol_type: str, protocols: Iterable[Protocol]
) -> None:
    supporters, count = state.classic_protocols()
    fits = any(supporters[p.name] == count for p in protocols)
    if protocol_type != PROTOCOL_TYPE or not fits:
        words = "The member's protocols are not those of the group's classic members."
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, words)


def _member_before(draft: Draft, beat: Beat, *, is_unknown: bool) -> Member:
    """The member as it was, a blank one if it is new.

    An instance that comes without an id takes the place of the member that has it, released or not.
    An id that no member has is one that was given out to join with; unless it says that it owns
    something: that was a member, was missed, and reads what others have by now. Kafka lets it in
    with that.
    """
    state, member_id = draft.state, beat.member_id
    if beat.instance_id is None:
        if beat.owned:
            return known_member(state, member_id)
        return state.members.get(member_id, Member(member_id))
    if not is_unknown:
        return known_instance(state, member_id, beat.instance_id)
    found = state.static(beat.instance_id)
    return Member(member_id) if found is None else transitions.replaced(draft, found, member_id)


# --- living -----------------------------------------------------------------------------------


def sync(state: ConsumerState, request: Sync, cluster: Cluster) -> Synced:
    """What the member holds; REBALANCE_IN_PROGRESS where it is to join for a later epoch."""
    member, classic = _known(state, request)
    protocol = classic.supported_protocols[0]
    pairs = ((request.protocol_type, PROTOCOL_TYPE), (request.protocol, protocol.name))
    if any(said is not None and said != is_so for said, is_so in pairs):
        words = f"Member {member.member_id} joined with {PROTOCOL_TYPE}, {protocol.name}."
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, words)
    has_joined = member.state is MemberState.UNREVOKED_PARTITIONS
    if state.epoch > member.epoch and not has_joined:
        return Synced(ErrorCode.REBALANCE_IN_PROGRESS)
    given = assignment_bytes(plain(member.assigned), protocol.metadata, cluster)
    return Synced(ErrorCode.NONE, request.protocol_type, request.protocol, given)


def heartbeat(state: ConsumerState, request: Heartbeat) -> HeartbeatTaken:
    """A member lives; REBALANCE_IN_PROGRESS where a join would bring it further."""
    member, _ = _known(state, request)
    is_behind = member.epoch < state.epoch or member.state is MemberState.UNREVOKED_PARTITIONS
    if is_behind or _could_have_more(state, member):
        return HeartbeatTaken(ErrorCode.REBALANCE_IN_PROGRESS)
    return HeartbeatTaken(ErrorCode.NONE)


def _could_have_more(state: ConsumerState, member: Member) -> bool:
    """Whether all that it waits for is free by now."""
    if member.state is not MemberState.UNRELEASED_PARTITIONS:
        return False
    target = state.targets.get(member.member_id, {})
    wanted: set[tuple[uuid.UUID, int]] = {
        (topic_id, n)
        for topic_id, numbers in target.items()
        for n in numbers - member.assigned.get(topic_id, {}).keys()
    }
    return not wanted & state.owners.keys()


def _known(state: ConsumerState, request: Sync | Heartbeat) -> tuple[Member, ClassicMemberMetadata]:
    """A classic member of the present generation; raises KafkaError."""
    if request.instance_id is None:
        member = known_member(state, request.member_id)
    else:
        member = known_instance(state, request.member_id, request.instance_id)
    classic = _classic(member)
    if request.generation != member.epoch:
        words = f"Member {member.member_id} is in {member.epoch}, not in {request.generation}."
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION, words)
    return member, classic


def _classic(member: Member) -> ClassicMemberMetadata:
    if member.classic is None:
        words = f"Member {member.member_id} does not use the classic protocol."
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, words)
    return member.classic


# --- leaving ----------------------------------------------------------------------------------


def leave(draft: Draft, request: Leave) -> Left:
    """Members go; what is made of those that stay is the caller's, as in `transitions.leave`."""
    return Left(ErrorCode.NONE, tuple(_leave_one(draft, leaving) for leaving in request.members))


def _leave_one(draft: Draft, leaving: Leaving) -> LeftMember:
    state, member_id, instance_id = draft.state, leaving.member_id, leaving.instance_id
    try:
        if instance_id is None:
            member = known_member(state, member_id)
        elif member_id == NO_MEMBER_ID:
            found = state.static(instance_id)
            member = known_member(state, found.member_id if found is not None else member_id)
        else:
            member = known_instance(state, member_id, instance_id)
        _classic(member)
    except KafkaError as e:
        return LeftMember(member_id, instance_id, e.code)
    transitions.remove(draft, [member.member_id])
    return LeftMember(member.member_id, instance_id, ErrorCode.NONE)
