"""SyncGroup (key 14): a member's assignment; the leader brings everybody's.

Needs READ group.

Behaviour: the answer waits for the leader and for its assignment being in the log.

v3 instance ids · v5 protocol type and name, both to be given (KIP-559).
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
    """Ask the group."""
    if not request.group_id:
        return _answer(Synced(ErrorCode.INVALID_GROUP_ID))
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
    return _answer(await services.groups.ask(request.group_id, sync))


def _answer(synced: Synced) -> SyncGroupResponse:
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
