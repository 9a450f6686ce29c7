"""LeaveGroup (key 13): members leave, or an administrator removes them (KIP-345).

Needs READ group.

v0-2 one member, whose error is the request's · v3 several, by member or instance id · v5 reasons.
"""

from __future__ import annotations

from lapse.base.errors import ErrorCode
from lapse.broker.request.authorize import GROUP_REFUSED, reads_group, whole
from lapse.broker.request.context import Services, Session
from lapse.broker.request.endpoint import Endpoint
from lapse.coordination.classic.events import Leave, Leaving, Left
from lapse.wire.schema.leave_group import (
    LEAVE_GROUP,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberResponse,
)

_SEVERAL_FROM = 3


async def handle(
    services: Services, _session: Session, version: int, request: LeaveGroupRequest
) -> LeaveGroupResponse:
    """Remove the members through the group coordinator."""
    if not request.group_id:
        return LeaveGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    if version < _SEVERAL_FROM:
        leaving: tuple[Leaving, ...] = (Leaving(request.member_id),)
    else:
        leaving = tuple(
            Leaving(m.member_id, m.group_instance_id, m.reason) for m in request.members
        )
    left = await services.groups.handle(request.group_id, Leave(object(), leaving))
    if version < _SEVERAL_FROM:
        return LeaveGroupResponse(error_code=_only_error(left))
    return LeaveGroupResponse(
        error_code=left.error,
        members=tuple(
            MemberResponse(
                member_id=m.member_id, group_instance_id=m.instance_id, error_code=m.error
            )
            for m in left.members
        ),
    )


def _only_error(left: Left) -> ErrorCode:
    return left.members[0].error if left.members and not left.error else left.error


API = Endpoint(
    LEAVE_GROUP,
    LeaveGroupRequest,
    LeaveGroupResponse,
    handle,
    whole(reads_group, lambda _: LeaveGroupResponse(error_code=GROUP_REFUSED)),
)
