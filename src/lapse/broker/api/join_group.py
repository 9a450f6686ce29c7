"""JoinGroup (key 11): become a member of a group, or take part in its rebalance.

Needs READ group.

Behaviour: the response is sent when the rebalance's first phase is over, which may take as long as
the slowest member's rebalance timeout; a member without an id is given one first (KIP-394).
`coordination.classic.group` decides which members may join, and when. An empty group id is
INVALID_GROUP_ID. A KIP-848 group with members accepts consumers at once
(`coordination.consumer.classic_members`); one without members becomes a classic group.

v0 the session timeout is the rebalance timeout · v1 rebalance timeout (KIP-62) · v4 ids first · v5
instance ids (KIP-345) · v7 protocol type and null protocols (KIP-559) · v8 a reason (KIP-800) · v9
a leader that may skip the assignment (KIP-814).
"""

from __future__ import annotations

from lapse.base.errors import ErrorCode
from lapse.broker.request.authorize import GROUP_REFUSED, reads_group, whole
from lapse.broker.request.context import Services, Session
from lapse.broker.request.endpoint import Endpoint
from lapse.coordination.classic.events import Join, Joined, Protocol
from lapse.wire.schema.join_group import (
    JOIN_GROUP,
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
)

_IDS_FIRST_FROM = 4
_NULL_PROTOCOL_FROM = 7
_SKIP_FROM = 9


async def handle(
    services: Services, session: Session, version: int, request: JoinGroupRequest
) -> JoinGroupResponse:
    """Pass the join to the group coordinator."""
    if not request.group_id:
        return _response(Joined(ErrorCode.INVALID_GROUP_ID, request.member_id), version)
    join = Join(
        token=object(),
        member_id=request.member_id,
        session_timeout_ms=request.session_timeout_ms,
        protocol_type=request.protocol_type,
        protocols=tuple(Protocol(p.name, bytes(p.metadata)) for p in request.protocols),
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        instance_id=request.group_instance_id,
        client_id=session.client_id,
        client_host=session.client_host,
        needs_member_id=version >= _IDS_FIRST_FROM,
        may_skip_assignment=version >= _SKIP_FROM,
        reason=request.reason,
    )
    return _response(await services.groups.handle(request.group_id, join), version)


def _response(joined: Joined, version: int) -> JoinGroupResponse:
    protocol = joined.protocol
    return JoinGroupResponse(
        error_code=joined.error,
        generation_id=joined.generation,
        protocol_type=joined.protocol_type,
        protocol_name="" if protocol is None and version < _NULL_PROTOCOL_FROM else protocol,
        leader=joined.leader,
        skip_assignment=joined.skip_assignment,
        member_id=joined.member_id,
        members=tuple(
            JoinGroupResponseMember(
                member_id=m.member_id, group_instance_id=m.instance_id, metadata=m.metadata
            )
            for m in joined.members
        ),
    )


API = Endpoint(
    JOIN_GROUP,
    JoinGroupRequest,
    JoinGroupResponse,
    handle,
    whole(
        reads_group,
        lambda request: JoinGroupResponse(
            error_code=GROUP_REFUSED,
            protocol_name="",
            leader="",
            member_id=request.member_id,
            members=(),
        ),
    ),
)
