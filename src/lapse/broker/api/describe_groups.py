"""DescribeGroups (key 15): a group's state, protocol and members.

Needs DESCRIBE group.

Behaviour: a group that does not exist is `Dead`, as in Kafka, and so is a KIP-848 group, which
ConsumerGroupDescribe describes; a group that only has offsets is `Empty`.

v0-2 the same to us · v3 authorized operations (by `authorization`) · v4 instance ids · v6 a group
that does not exist is GROUP_ID_NOT_FOUND as well (KIP-1043).
"""

from __future__ import annotations

from functools import partial

from lapse.base.errors import ErrorCode, KafkaError
from lapse.broker.coordinators.group_partition import Shard
from lapse.broker.request.authorize import GROUP_REFUSED, described
from lapse.broker.request.context import Services, Session
from lapse.broker.request.endpoint import Endpoint
from lapse.broker.request.repeated import for_each
from lapse.coordination.classic.state import State
from lapse.wire.schema.describe_groups import (
    DESCRIBE_GROUPS,
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)

_NOT_FOUND_FROM = 6


async def handle(
    services: Services, _session: Session, version: int, request: DescribeGroupsRequest
) -> DescribeGroupsResponse:
    """Describe each group."""
    groups = await for_each(request.groups, partial(_describe, services, version))
    return DescribeGroupsResponse(groups=tuple(groups))


async def _describe(services: Services, version: int, group_id: str) -> DescribedGroup:
    try:
        shard = await services.groups.shard_of(group_id)
    except KafkaError as e:
        return _bare(group_id, "", e.code)
    return _known(shard, group_id) or _unknown(group_id, version)


def _known(shard: Shard, group_id: str) -> DescribedGroup | None:
    group = shard.groups.get(group_id)
    if group_id in shard.consumers.groups:
        return None  # a KIP-848 group: ConsumerGroupDescribe describes it
    if group is None:
        return _bare(group_id, State.EMPTY) if group_id in shard.offsets.groups() else None
    description = group.describe()
    return DescribedGroup(
        error_code=ErrorCode.NONE,
        group_id=group_id,
        group_state=description.state,
        protocol_type=description.protocol_type,
        protocol_data=description.protocol,
        members=tuple(
            DescribedGroupMember(
                member_id=m.member_id,
                group_instance_id=m.instance_id,
                client_id=m.client_id,
                client_host=m.client_host,
                member_metadata=m.metadata,
                member_assignment=m.assignment,
            )
            for m in description.members
        ),
    )


def _unknown(group_id: str, version: int) -> DescribedGroup:
    if version < _NOT_FOUND_FROM:
        return _bare(group_id, State.DEAD)
    why = f"Group {group_id} not found."
    return _bare(group_id, State.DEAD, ErrorCode.GROUP_ID_NOT_FOUND, why)


def _bare(
    group_id: str, state: str, error: ErrorCode = ErrorCode.NONE, message: str | None = None
) -> DescribedGroup:
    return DescribedGroup(
        error_code=error, error_message=message, group_id=group_id, group_state=state,
        protocol_type="", protocol_data="", members=(),
    )  # fmt: skip


API = Endpoint(
    DESCRIBE_GROUPS,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    handle,
    described("groups", lambda group_id: _bare(group_id, "", GROUP_REFUSED)),
    returns_operations=True,
)
