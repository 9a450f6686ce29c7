"""What a classic group refuses before an event reaches its state machine.

Each check takes a group and a request and gives Kafka's error code, NONE where there is nothing
against it; none of them changes anything.
"""

from __future__ import annotations

from collections.abc import Mapping

from lapse.base.errors import ErrorCode
from lapse.coordination.classic.events import NO_MEMBER_ID, Commit, Heartbeat, Join, Sync
from lapse.coordination.classic.state import Event, GroupState, State
from lapse.coordination.records.subscription import PROTOCOL_TYPE

DELETE_ERRORS: Mapping[State, ErrorCode] = {
    State.EMPTY: ErrorCode.NONE,
    State.PREPARING: ErrorCode.NON_EMPTY_GROUP,
    State.COMPLETING: ErrorCode.NON_EMPTY_GROUP,
    State.STABLE: ErrorCode.NON_EMPTY_GROUP,
    State.DEAD: ErrorCode.GROUP_ID_NOT_FOUND,
}


def check_join(group: GroupState, request: Join) -> ErrorCode:
    """Session timeout, room, protocols, and that a named member is one."""
    settings, member_id = group.settings, request.member_id
    least_ms, most_ms = settings.session_timeout_min_ms, settings.session_timeout_max_ms
    if not least_ms <= request.session_timeout_ms <= most_ms:
        return ErrorCode.INVALID_SESSION_TIMEOUT
    if group.state is State.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if not _has_room_for(group, member_id):
        return ErrorCode.GROUP_MAX_SIZE_REACHED
    if not _fits(group, request):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if kind_of_join(group, request) is Event.JOIN_MEMBER:
        return group.members.check(member_id, request.instance_id)
    return ErrorCode.NONE


def _has_room_for(group: GroupState, member_id: str) -> bool:
    """While a rebalance collects members, those who come back last find no room."""
    if group.state is State.EMPTY:
        return True
    member = group.members.get(member_id)
    if group.state is State.PREPARING:
        is_in, count = (
            member is not None and member.joining is not None,
            group.members.joining_count,
        )
    else:
        is_in, count = member is not None, len(group.members)
    return is_in or count < group.settings.size_max


def _fits(group: GroupState, request: Join) -> bool:
    """Whether a member has the group's type, and a protocol that all members support."""
    is_type = group.state is State.EMPTY or request.protocol_type == group.protocol_type
    return bool(request.protocol_type) and is_type and group.members.support_any(request.protocols)


def kind_of_join(group: GroupState, request: Join) -> Event:
    """Which of the four joins it is. Only members without an instance id are ever pending."""
    if request.member_id in group.members.pending and request.instance_id is None:
        return Event.JOIN_PENDING
    if request.member_id != NO_MEMBER_ID:
        return Event.JOIN_MEMBER
    is_known = group.members.static_id(request.instance_id) is not None
    return Event.JOIN_INSTANCE if is_known else Event.JOIN_NEW


def check_member(group: GroupState, request: Sync | Heartbeat) -> ErrorCode:
    """That it is a member, and of the present generation."""
    if group.state is State.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    error = group.members.check(request.member_id, request.instance_id)
    if error is ErrorCode.NONE and request.generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    return error


def check_sync(group: GroupState, request: Sync) -> ErrorCode:
    """The same, and that both mean the same protocol (KIP-559)."""
    error = check_member(group, request)
    if error is not ErrorCode.NONE:
        return error
    pairs = (
        (request.protocol_type, group.protocol_type),
        (request.protocol, group.protocol),
    )
    for said, is_so in pairs:
        if (said is None and request.needs_protocol) or (said is not None and said != is_so):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    return ErrorCode.NONE


def check_commit(group: GroupState, request: Commit) -> ErrorCode:
    """Whether offsets may be committed: by a member of this generation, or from outside if empty.

    Transactions are not held to the state, and old ones do not say who they are for (KIP-447).
    """
    if group.state is State.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if request.generation < 0 and group.state is State.EMPTY:
        return ErrorCode.NONE
    is_anonymous = request.member_id == NO_MEMBER_ID and request.instance_id is None
    if request.generation < 0 and is_anonymous:
        return ErrorCode.NONE if request.transactional else ErrorCode.UNKNOWN_MEMBER_ID
    error = group.members.check(request.member_id, request.instance_id)
    if error is not ErrorCode.NONE:
        return error
    if request.generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    if group.state is State.COMPLETING and not request.transactional:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def check_delete_offsets(group: GroupState) -> ErrorCode:
    """Whether single offsets may go; members of a type we cannot read may need any of them."""
    if group.protocol_type == PROTOCOL_TYPE and group.state is not State.DEAD:
        return ErrorCode.NONE
    return DELETE_ERRORS[group.state]
