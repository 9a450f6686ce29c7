"""ConsumerGroupHeartbeat (key 68): a member of a group of KIP-848 joins, lives and leaves.

Behaviour: what the group makes of it is `coordination.consumer_group`'s; answered when what changed
is in the log. Topics that a member's pattern matches are those it may describe. UNSUPPORTED_VERSION
where `group.coordinator.rebalance.protocols` lacks `consumer`.

v0 the group makes member ids · v1 patterns; members bring their ids (KIP-1082).
"""

from __future__ import annotations

from lapse.base.errors import ErrorCode, KafkaError
from lapse.broker.consumer_shard import Asked
from lapse.broker.services import Services, Session
from lapse.coordination.consumer_events import Beat, BeatTaken, Partitions
from lapse.security.acls import Operation, ResourceType
from lapse.wire.schema.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)

_OWN_IDS_FROM = 1


async def handle(
    services: Services, session: Session, version: int, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse:
    """Ask the group."""
    if "consumer" not in services.config.group_coordinator_rebalance_protocols:
        words = "The consumer group protocol is not enabled."
        return _refused(ErrorCode.UNSUPPORTED_VERSION, words)
    authorizer, actor = services.access.authorizer, session.actor
    asked = Asked(
        request.group_id,
        _beat(session, request),
        lambda name: authorizer.authorize(actor, Operation.DESCRIBE, ResourceType.TOPIC, name),
        makes_own_id=version >= _OWN_IDS_FROM,
    )
    try:
        if not request.group_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "GroupId can't be empty.")
        shard = await services.groups.shard_of(request.group_id)
        return _answer(await shard.consumers.heartbeat(asked))
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


def _refused(code: ErrorCode, words: str) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(
        error_code=code, error_message=words, member_epoch=0, heartbeat_interval_ms=0
    )
