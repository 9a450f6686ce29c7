"""SyncGroup (key 14): a member's assignment; the leader sends those of all members.

Needs READ group.

Behaviour: the response waits until the leader has sent the assignment and it is in the log.

v3 instance ids · v5 protocol type and name, both required (KIP-559).
"""

from __future__ import annotations

from lapse.base.errors import ErrorCode
from lapse.broker.request.authorize import GROUP_REFUSED, reads_group, whole
from lapse.broker.request.context import Services, Session
from lapse.broker.request.endpoint import Endpoint
from lapse.coordination.classic.events import Sync, Synced
from lapse.wire.schema.sync_group import SYNC_GROUP, SyncGroupRequest, SyncGroupResponse

_PROTOCOL_FROM = 5


async def handle(
    services: Services, _session: Session, version: int, request: SyncGroupRequest
) -> SyncGroupResponse:
    """Pass the sync to the group coordinator."""
    if not request.group_id:
        return _response(Synced(ErrorCode.INVALID_GROUP_ID))
    sync = Sync(
        token=object(),
        member_id=request.member_id,
        generation=request.generation_id,
        instance_id=request.group_instance_id,
        protocol_type=request.protocol_type,
        protocol=request.protocol_name,
        assignments={a.member_id: bytes(a.assignment) for a in request.assignments},
        needs_protocol=version >= _PROTOCOL_FROM,
    )
    return _response(await services.groups.handle(request.group_id, sync))


def _response(synced: Synced) -> SyncGroupResponse:
    return SyncGroupResponse(
        error_code=synced.error,
        protocol_type=synced.protocol_type,
        protocol_name=synced.protocol,
        assignment=synced.assignment,
    )


API = Endpoint(
    SYNC_GROUP,
    SyncGroupRequest,
    SyncGroupResponse,
    handle,
    whole(
        reads_group,
        lambda _: SyncGroupResponse(error_code=GROUP_REFUSED, assignment=b""),
    ),
)
