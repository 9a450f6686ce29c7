"""Heartbeat (key 12): a member shows that it is alive, and learns of a rebalance.

Needs READ group.

v0-2 no difference here · v3 instance ids · v4 the same.
"""

from __future__ import annotations

from lapse.base.errors import ErrorCode
from lapse.broker.request.authorize import GROUP_REFUSED, reads_group, whole
from lapse.broker.request.context import Services, Session
from lapse.broker.request.endpoint import Endpoint
from lapse.coordination.classic.events import Heartbeat
from lapse.wire.schema.heartbeat import HEARTBEAT, HeartbeatRequest, HeartbeatResponse


async def handle(
    services: Services, _session: Session, _version: int, request: HeartbeatRequest
) -> HeartbeatResponse:
    """Pass the heartbeat to the group coordinator."""
    if not request.group_id:
        return HeartbeatResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    beat = Heartbeat(object(), request.member_id, request.generation_id, request.group_instance_id)
    outcome = await services.groups.handle(request.group_id, beat)
    return HeartbeatResponse(error_code=outcome.error)


API = Endpoint(
    HEARTBEAT,
    HeartbeatRequest,
    HeartbeatResponse,
    handle,
    whole(reads_group, lambda _: HeartbeatResponse(error_code=GROUP_REFUSED)),
)
