"""ConsumerGroupHeartbeat (key 68): a member joins a KIP-848 group, stays in it or leaves it.

Needs READ group; DESCRIBE topics.

Behaviour: `coordination.consumer.group` decides what the heartbeat changes; the broker responds
when the changes are in the log. A member's pattern matches only topics that the member may
describe. UNSUPPORTED_VERSION if `group.coordinator.rebalance.protocols` lacks `consumer`.

v0 the group coordinator makes member ids · v1 patterns; members send their own ids (KIP-1082).
"""

from __future__ import annotations

from typing import Any

from lapse.base.errors import ErrorCode, KafkaError
from lapse.broker.coordinators.consumer_groups import MemberHeartbeat
from lapse.broker.request.authorize import GROUP_REFUSED, TOPIC_REFUSED, Caller, Handle, message_of
from lapse.broker.request.context import Services, Session
from lapse.broker.request.endpoint import Endpoint
from lapse.coordination.consumer.events import Beat, BeatTaken, Partitions
from lapse.security.acls import Operation, ResourceType
from lapse.wire.schema.consumer_group_heartbeat import (
    CONSUMER_GROUP_HEARTBEAT,
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)

_MEMBER_IDS_FROM = 1


async def handle(
    services: Services, session: Session, version: int, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse:
    """Pass the heartbeat to the group."""
    if "consumer" not in services.config.group_coordinator_rebalance_protocols:
        message = "The consumer group protocol is not enabled."
        return _refused(ErrorCode.UNSUPPORTED_VERSION, message)
    authorizer, actor = services.access.authorizer, session.actor
    heartbeat = MemberHeartbeat(
        request.group_id,
        _beat(session, request),
        lambda name: authorizer.authorize(actor, Operation.DESCRIBE, ResourceType.TOPIC, name),
        makes_own_id=version >= _MEMBER_IDS_FROM,
    )
    try:
        if not request.group_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "GroupId can't be empty.")
        shard = await services.groups.shard_of(request.group_id)
        return _answer(await shard.consumers.heartbeat(heartbeat))
    except KafkaError as e:
        return _refused(e.code, str(e))


def _beat(session: Session, request: ConsumerGroupHeartbeatRequest) -> Beat:
    return Beat(
        member_id=request.member_id,
        epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        topics=request.subscribed_topic_names,
        pattern=request.subscribed_topic_regex,
        assignor=request.server_assignor,
        owned=_owned(request),
        client_id=session.client_id,
        client_host=session.client_host,
    )


def _owned(request: ConsumerGroupHeartbeatRequest) -> Partitions | None:
    if request.topic_partitions is None:
        return None
    return {item.topic_id: frozenset(item.partitions) for item in request.topic_partitions}


def _answer(taken: BeatTaken) -> ConsumerGroupHeartbeatResponse:
    assignment = None
    if taken.assignment is not None:
        assignment = Assignment(
            topic_partitions=tuple(
                TopicPartitions(topic_id=topic_id, partitions=tuple(sorted(numbers)))
                for topic_id, numbers in sorted(taken.assignment.items())
            )
        )
    return ConsumerGroupHeartbeatResponse(
        error_code=ErrorCode.NONE,
        member_id=taken.member_id,
        member_epoch=taken.epoch,
        heartbeat_interval_ms=taken.heartbeat_interval_ms,
        assignment=assignment,
    )


def _refused(code: ErrorCode, message: str) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(
        error_code=code, error_message=message, member_epoch=0, heartbeat_interval_ms=0
    )


# --- authorization --------------------------------------------------------------------------------


async def _authorize(
    caller: Caller,
    _version: int,
    request: ConsumerGroupHeartbeatRequest,
    handle: Handle,
) -> Any:
    if not caller.may_group(Operation.READ, request.group_id):
        return _refused(GROUP_REFUSED, message_of(GROUP_REFUSED))
    if all(caller.may_topic(Operation.DESCRIBE, n) for n in request.subscribed_topic_names or ()):
        return await handle(request)
    return _refused(TOPIC_REFUSED, message_of(TOPIC_REFUSED))


API = Endpoint(
    CONSUMER_GROUP_HEARTBEAT,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    handle,
    _authorize,
)
