"""Heartbeat (key 12): a member lives, and learns of a rebalance.

v0-2 the same to us · v3 instance ids · v4 the same.
"""

from __future__ import annotations

from lapse.base.errors import ErrorCode
from lapse.broker.services import Services, Session
from lapse.coordination.classic_events import Heartbeat
from lapse.wire.schema.heartbeat import HeartbeatRequest, HeartbeatResponse


async def handle(
    services: Services, _session: Session, _version: int, request: HeartbeatRequest
) -> HeartbeatResponse:
    """Ask the group."""
    if not request.group_id:
        return HeartbeatResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    beat = Heartbeat(object(), request.member_id, request.generation_id, request.group_instance_id)
    taken = await services.groups.ask(request.group_id, beat)
    return HeartbeatResponse(error_code=taken.error)
