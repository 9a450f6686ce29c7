"""ListGroups (key 16): all groups of this broker.

v0-3 the same to us · v4 states, and a filter by them (KIP-518) · v5 types, and a filter by them
(KIP-848).
"""

from __future__ import annotations

from collections.abc import Iterator

from lapse.base.errors import ErrorCode, KafkaError
from lapse.broker.group_shard import Shard
from lapse.broker.services import Services, Session
from lapse.coordination.classic_state import State
from lapse.coordination.consumer_protocol import PROTOCOL_TYPE
from lapse.coordination.groups import CLASSIC, CONSUMER
from lapse.wire.schema.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse


async def handle(
    services: Services, _session: Session, _version: int, request: ListGroupsRequest
) -> ListGroupsResponse:
    """All that pass the filters."""
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
        told = None if group is None else group.describe()
        yield ListedGroup(
            group_id=group_id,
            protocol_type="" if told is None else told.protocol_type,
            group_state=State.EMPTY if told is None else told.state,
            group_type=CLASSIC,
        )
