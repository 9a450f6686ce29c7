"""ConsumerGroupDescribe (key 69): KIP-848 groups with their members.

Needs DESCRIBE group and its topics.

Behaviour: GROUP_ID_NOT_FOUND for a group that does not exist and for a group of another kind;
clients then try DescribeGroups.

v0 flexible · v1 the protocol that a member uses, classic or consumer (KIP-1099).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from lapse.base.errors import ErrorCode, KafkaError
from lapse.broker.request.authorize import (
    GROUP_REFUSED,
    TOPIC_REFUSED,
    Caller,
    Handle,
    described,
    message_of,
)
from lapse.broker.request.context import Services, Session
from lapse.broker.request.endpoint import Endpoint
from lapse.broker.request.repeated import changed, for_each
from lapse.coordination.consumer import events
from lapse.security.acls import Operation
from lapse.wire.schema.consumer_group_describe import (
    CONSUMER_GROUP_DESCRIBE,
    Assignment,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
    Member,
    TopicPartitions,
)

_CLASSIC, _CONSUMER = 0, 1  # member types


async def handle(
    services: Services, _session: Session, _version: int, request: ConsumerGroupDescribeRequest
) -> ConsumerGroupDescribeResponse:
    """Describe each group."""
    groups = await for_each(request.group_ids, partial(_describe, services))
    return ConsumerGroupDescribeResponse(groups=tuple(groups))


async def _describe(services: Services, group_id: str) -> DescribedGroup:
    try:
        shard = await services.groups.shard_of(group_id)
    except KafkaError as e:
        return _bare(group_id, e.code, str(e))
    group = shard.consumers.groups.get(group_id)
    if group is None:
        is_other = group_id in shard.groups or group_id in shard.offsets.groups()
        why = "is not a consumer group" if is_other else "not found"
        return _bare(group_id, ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} {why}.")
    cluster = services.topics.image
    description = group.describe(cluster)
    return DescribedGroup(
        error_code=ErrorCode.NONE,
        group_id=group_id,
        group_state=description.state,
        group_epoch=description.epoch,
        assignment_epoch=description.target_epoch,
        assignor_name=description.assignor,
        members=tuple(_member(member, cluster) for member in description.members),
    )


def _member(member: events.DescribedMember, cluster: events.Cluster) -> Member:
    return Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=member.topics,
        subscribed_topic_regex=member.pattern or None,
        assignment=_assignment(member.assigned, cluster),
        target_assignment=_assignment(member.target, cluster),
        member_type=_CLASSIC if member.is_classic else _CONSUMER,
    )


def _assignment(partitions: events.Partitions, cluster: events.Cluster) -> Assignment:
    return Assignment(
        topic_partitions=tuple(
            TopicPartitions(
                topic_id=topic_id,
                topic_name=cluster.ids[topic_id].name,
                partitions=tuple(sorted(numbers)),
            )
            for topic_id, numbers in sorted(partitions.items())
        )
    )


def _bare(group_id: str, error: ErrorCode, message: str) -> DescribedGroup:
    return DescribedGroup(
        error_code=error,
        error_message=message,
        group_id=group_id,
        group_state="",
        group_epoch=0,
        assignment_epoch=0,
        assignor_name="",
        members=(),
    )


# --- authorization --------------------------------------------------------------------------------


async def _authorize(caller: Caller, version: int, request: Any, handle: Handle) -> Any:
    """Refuse a whole group if the caller may not describe one of its topics, as in Kafka."""
    answer = await _describe_consumers(caller, version, request, handle)
    return replace(answer, groups=changed(answer.groups, partial(_as_may_be_known, caller)))


def _as_may_be_known(caller: Caller, group: DescribedGroup) -> DescribedGroup:
    if all(caller.may_topic(Operation.DESCRIBE, name) for name in _topics_of(group)):
        return group
    message = message_of(TOPIC_REFUSED)
    return replace(group, error_code=TOPIC_REFUSED, error_message=message, members=())


_describe_consumers = described(
    "group_ids", lambda group_id: _bare(group_id, GROUP_REFUSED, message_of(GROUP_REFUSED))
)


def _topics_of(group: DescribedGroup) -> set[str]:
    return {
        topic.topic_name
        for member in group.members
        for assignment in (member.assignment, member.target_assignment)
        for topic in assignment.topic_partitions
    }


API = Endpoint(
    CONSUMER_GROUP_DESCRIBE,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    handle,
    _authorize,
    returns_operations=True,
)
