"""Metadata (key 3): brokers, controller, and who leads which partition.

Needs DESCRIBE topic; what CreateTopics needs where asking creates.

Behaviour: this broker is the whole cluster: it leads everything and is its own controller. It names
the address that is advertised for the client's listener, or, where that is no host, the one that
the client reached. By a listener that is not advertised there is no broker, and no partition has a
leader. A partition whose log is out of order is LEADER_NOT_AVAILABLE. An unknown topic is created
if both `auto.create.topics.enable` and the request allow it, else UNKNOWN_TOPIC_OR_PARTITION. It is
made as CreateTopics makes it, refusals included, and told of in the same answer; Kafka's first one
is UNKNOWN_TOPIC_OR_PARTITION, and the client asks again. A coordinator's own topic is made as the
coordinator makes it. What is not even a name is INVALID_TOPIC_EXCEPTION. Authorized operations are
told by `authorization`.

v0 an empty list means all topics · v1+ null does · v4 auto-creation may be declined · v6
LISTENER_NOT_FOUND, LEADER_NOT_AVAILABLE before · v10 topic ids · v12 topics by id; an unknown one
is UNKNOWN_TOPIC_ID. Before it one without a name is INVALID_REQUEST. Java's Admin, asking by id,
sends an empty name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lapse.base.errors import ErrorCode, KafkaError
from lapse.base.ids import TopicPartition, check_topic_name
from lapse.broker.api.create_topics import DEFAULT, judge
from lapse.broker.request.authorize import (
    TOPIC_REFUSED,
    Caller,
    Handle,
    may_create,
    with_operations,
)
from lapse.broker.request.context import Services, Session
from lapse.broker.request.endpoint import Endpoint
from lapse.broker.request.throttle import charge_mutations
from lapse.coordination.records import offsets, transactions
from lapse.log.epochs import NO_EPOCH
from lapse.metadata.image import INTERNAL_TOPICS, METADATA_LOG, Image, Topic
from lapse.security.acls import Operation
from lapse.wire.declaration import ZERO_UUID
from lapse.wire.schema.create_topics import CreatableTopic
from lapse.wire.schema.metadata import (
    METADATA,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

BY_ID_FROM = 12
_LISTENER_KNOWN_FROM = 6
_NAMELESS = MetadataResponseTopic(error_code=ErrorCode.INVALID_REQUEST, name="", partitions=())


async def handle(
    services: Services, session: Session, version: int, request: MetadataRequest
) -> MetadataResponse:
    """The cluster, and the topics asked for."""
    image = services.topics.image
    if request.topics is None or (version == 0 and not request.topics):
        topics = tuple(_known(services, topic) for topic in image.topics.values())
    else:
        created = await _create_missing(services, session, request, image)
        image = services.topics.image
        topics = tuple(
            _NAMELESS
            if is_by_id(topic) and version < BY_ID_FROM
            else _asked(services, image, topic, created)
            for topic in request.topics
        )
    told = services.address_for(session)
    node_id = services.config.node_id
    if told is None:
        topics = tuple(_unreachable(topic, version) for topic in topics)
    return MetadataResponse(
        brokers=()
        if told is None
        else (MetadataResponseBroker(node_id=node_id, host=told.host, port=told.port),),
        cluster_id=image.cluster_id,
        controller_id=node_id,
        topics=topics,
    )


async def _create_missing(
    services: Services, session: Session, request: MetadataRequest, image: Image
) -> Mapping[str, ErrorCode]:
    """Create the unknown topics where that is wanted; why some could not be.

    One beyond the client's quota of partitions stays unknown for now, and the client waits.
    """
    # Somebody was faster; it may not be now.
    unsaid = {ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.THROTTLING_QUOTA_EXCEEDED}
    if not (services.config.auto_create_topics_enable and request.allow_auto_topic_creation):
        return {}
    errors: dict[str, ErrorCode] = {}
    for name in {topic.name for topic in request.topics or () if topic.name}:
        if name not in image.topics:
            try:
                await _create(services, session, name)
            except KafkaError as e:
                if e.code not in unsaid:
                    errors[name] = e.code
    return errors


async def _create(services: Services, session: Session, name: str) -> None:
    if name == offsets.TOPIC:
        await services.groups.require_topic()
    elif name == transactions.TOPIC:
        await services.transactions.require_topic()
    elif name not in {*INTERNAL_TOPICS, METADATA_LOG}:
        asked = CreatableTopic(
            name=name,
            num_partitions=DEFAULT,
            replication_factor=DEFAULT,
            assignments=(),
            configs=(),
        )
        new = judge(asked, services.topics, services.config)
        charge_mutations(services, session, new.partitions, strict=True)
        await services.topics.create(new)


def is_by_id(asked: MetadataRequestTopic) -> bool:
    """Whether a topic is asked for by its id, for all who judge the request."""
    return asked.name is None or (not asked.name and asked.topic_id != ZERO_UUID)


def _asked(
    services: Services,
    image: Image,
    asked: MetadataRequestTopic,
    errors: Mapping[str, ErrorCode],
) -> MetadataResponseTopic:
    name = None if is_by_id(asked) else asked.name
    topic = image.ids.get(asked.topic_id) if name is None else image.topics.get(name)
    if topic is not None:
        return _known(services, topic)
    return MetadataResponseTopic(
        error_code=_why_unknown(name, errors), name=name, topic_id=asked.topic_id, partitions=()
    )


def _why_unknown(name: str | None, errors: Mapping[str, ErrorCode]) -> ErrorCode:
    if name is None:
        return ErrorCode.UNKNOWN_TOPIC_ID
    if name in errors:
        return errors[name]
    try:
        check_topic_name(name)
    except KafkaError as e:
        return e.code
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _known(services: Services, topic: Topic) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error_code=ErrorCode.NONE,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=_partitions(services, topic),
    )


def _partitions(services: Services, topic: Topic) -> tuple[MetadataResponsePartition, ...]:
    node_id, us = services.config.node_id, (services.config.node_id,)
    epoch_of, name = services.partitions.leader_epoch, topic.name
    told = []
    for number in range(topic.partitions):
        epoch = epoch_of(TopicPartition(name, number))
        online = epoch != NO_EPOCH
        told.append(
            MetadataResponsePartition(
                error_code=ErrorCode.NONE if online else ErrorCode.LEADER_NOT_AVAILABLE,
                partition_index=number,
                leader_id=node_id if online else -1,
                leader_epoch=epoch,
                replica_nodes=us,
                isr_nodes=us,
                offline_replicas=() if online else us,
            )
        )
    return tuple(told)


def _unreachable(topic: MetadataResponseTopic, version: int) -> MetadataResponseTopic:
    """As told to who came by a listener that is not advertised."""
    known = version >= _LISTENER_KNOWN_FROM
    error = ErrorCode.LISTENER_NOT_FOUND if known else ErrorCode.LEADER_NOT_AVAILABLE
    return replace(
        topic,
        partitions=tuple(replace(p, error_code=error, leader_id=-1) for p in topic.partitions),
    )


# --- who may --------------------------------------------------------------------------------------


async def _authorize(caller: Caller, version: int, request: MetadataRequest, handle: Handle) -> Any:
    asks_for_all = request.topics is None or (version == 0 and not request.topics)
    others: tuple[Any, ...] = ()
    if asks_for_all:
        answer = await handle(request)
        topics = tuple(t for t in answer.topics if caller.may_topic(Operation.DESCRIBE, t.name))
    else:
        fine, others = caller.sorted_out(
            request.topics or (), lambda t: _may_know(caller, request, t)
        )
        answer = await handle(replace(request, topics=fine) if others else request)
        # In version 0 no topic at all is every topic.
        topics = answer.topics if fine else ()
    if request.include_topic_authorized_operations:
        topics = tuple(with_operations(caller, topic) for topic in topics)
    told = {}
    if request.include_cluster_authorized_operations:
        told["cluster_authorized_operations"] = caller.cluster_operations()
    return replace(answer, topics=(*topics, *map(_unknown, others)), **told)


def _may_know(caller: Caller, request: MetadataRequest, asked: MetadataRequestTopic) -> bool:
    """Whether its metadata may be told; and if asking is creating, whether it may be created."""
    image = caller.services.topics.image
    if is_by_id(asked) or asked.name is None:
        topic = image.ids.get(asked.topic_id)
        return topic is None or caller.may_topic(Operation.DESCRIBE, topic.name)
    if not caller.may_topic(Operation.DESCRIBE, asked.name):
        return False
    creates = (
        asked.name not in image.topics
        and request.allow_auto_topic_creation
        and caller.services.config.auto_create_topics_enable
    )
    return not creates or may_create(caller, asked.name)


def _unknown(asked: MetadataRequestTopic) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error_code=TOPIC_REFUSED,
        name=None if is_by_id(asked) else asked.name,
        topic_id=asked.topic_id if is_by_id(asked) else ZERO_UUID,
        partitions=(),
    )


API = Endpoint(
    METADATA, MetadataRequest, MetadataResponse, handle, _authorize, tells_operations=True
)
