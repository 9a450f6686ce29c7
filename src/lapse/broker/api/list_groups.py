"""ListGroups (key 16): all groups of this broker.

Needs DESCRIBE cluster or group; other groups are left out.

v0-3 no difference here · v4 states, and a filter by them (KIP-518) · v5 types, and a filter by them
(KIP-848).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from lapse.base.errors import ErrorCode, KafkaError
from lapse.broker.coordinators.group_partition import Shard
from lapse.broker.request.authorize import Caller, Handle
from lapse.broker.request.context import Services, Session
from lapse.broker.request.endpoint import Endpoint
from lapse.coordination.classic.state import State
from lapse.coordination.records.groups import CLASSIC, CONSUMER
from lapse.coordination.records.subscription import PROTOCOL_TYPE
from lapse.security.acls import Operation
from lapse.wire.schema.list_groups import (
    LIST_GROUPS,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)


async def handle(
    services: Services, _session: Session, _version: int, request: ListGroupsRequest
) -> ListGroupsResponse:
    """List all groups that pass the filters."""
    try:
        shards = await services.groups.all_shards()
    except KafkaError as e:
        return ListGroupsResponse(error_code=e.code, groups=())
    states = {name.lower() for name in request.states_filter}
    types = {name.lower() for name in request.types_filter}
    groups = (
        group
        for shard in shards
        for group in _groups(shard)
        if (not states or group.group_state.lower() in states)
        and (not types or group.group_type in types)
    )
    return ListGroupsResponse(error_code=ErrorCode.NONE, groups=tuple(groups))


def _groups(shard: Shard) -> Iterator[ListedGroup]:
    for group_id in sorted({*shard.groups, *shard.consumers.groups, *shard.offsets.groups()}):
        group, consumer = shard.groups.get(group_id), shard.consumers.groups.get(group_id)
        if consumer is not None:
            yield ListedGroup(
                group_id=group_id,
                protocol_type=PROTOCOL_TYPE,
                group_state=consumer.state.phase,
                group_type=CONSUMER,
            )
            continue
        description = None if group is None else group.describe()
        yield ListedGroup(
            group_id=group_id,
            protocol_type="" if description is None else description.protocol_type,
            group_state=State.EMPTY if description is None else description.state,
            group_type=CLASSIC,
        )


# --- authorization --------------------------------------------------------------------------------


async def _authorize(
    caller: Caller, _version: int, request: ListGroupsRequest, handle: Handle
) -> Any:
    response = await handle(request)
    if caller.may_cluster(Operation.DESCRIBE):
        return response
    visible = tuple(g for g in response.groups if caller.may_group(Operation.DESCRIBE, g.group_id))
    return replace(response, groups=visible)


API = Endpoint(LIST_GROUPS, ListGroupsRequest, ListGroupsResponse, handle, _authorize)
