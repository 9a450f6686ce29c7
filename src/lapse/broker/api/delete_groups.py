"""DeleteGroups (key 42): forget groups without members, and what they committed (KIP-229).

Needs DELETE group.

v0-2 the same to us.
"""

from __future__ import annotations

from lapse.base.errors import ErrorCode, KafkaError
from lapse.broker.request.authorize import GROUP_REFUSED, Items, each
from lapse.broker.request.context import Services, Session
from lapse.broker.request.endpoint import Endpoint
from lapse.security.acls import Operation
from lapse.wire.schema.delete_groups import (
    DELETE_GROUPS,
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)


async def handle(
    services: Services, _session: Session, _version: int, request: DeleteGroupsRequest
) -> DeleteGroupsResponse:
    """Delete each."""
    results = [
        DeletableGroupResult(group_id=group_id, error_code=await _delete(services, group_id))
        for group_id in dict.fromkeys(request.groups_names)
    ]
    return DeleteGroupsResponse(results=tuple(results))


async def _delete(services: Services, group_id: str) -> ErrorCode:
    try:
        shard = await services.groups.shard_of(group_id)
    except KafkaError as e:
        return e.code
    return await shard.delete_group(group_id)


API = Endpoint(
    DELETE_GROUPS,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    handle,
    each(
        Items(
            "groups_names",
            "results",
            lambda caller, name: caller.may_group(Operation.DELETE, name),
            lambda name: DeletableGroupResult(group_id=name, error_code=GROUP_REFUSED),
        )
    ),
)
