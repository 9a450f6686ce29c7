"""Metadata (key 3): brokers, controller, and the leader of each partition.

Needs DESCRIBE topic; what CreateTopics needs where the request creates a topic.

Behaviour: the response names the addresses that the brokers advertise for the client's listener or,
where this broker's has no host, the address that the client reached. For a listener that is not
advertised it has no broker, and no partition has a leader. A partition that nobody leads, or whose
leader's log is not open, is LEADER_NOT_AVAILABLE. An unknown topic is created if both
`auto.create.topics.enable` and the request allow it, else it is UNKNOWN_TOPIC_OR_PARTITION. It is
created as CreateTopics creates it, by the controller, with the same refusals, and the same response
describes it; Kafka first responds UNKNOWN_TOPIC_OR_PARTITION, and the client retries. A
coordinator's own topic is created as the coordinator creates it. An invalid topic name is
INVALID_TOPIC_EXCEPTION. A topic that is named more than once is described once, as in Kafka.
`authorization` fills in the authorized operations.

v0 an empty list means all topics · v1+ null does · v4 auto-creation may be declined · v6
LISTENER_NOT_FOUND, LEADER_NOT_AVAILABLE before · v10 topic ids · v12 topics by id; an unknown id is
UNKNOWN_TOPIC_ID. Before v12 a topic without a name is INVALID_REQUEST. Java's Admin sends an empty
name with a topic id.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from lapse.base.errors import ErrorCode, KafkaError
from lapse.base.ids import check_topic_name
from lapse.broker.api.create_topics import DEFAULT, validate
from lapse.broker.replicas.shown import shown
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
    """Describe the cluster and the requested topics."""
    image = services.topics.image
    if request.topics is None or (version == 0 and not request.topics):
        topics = tuple(_known(services, topic) for topic in image.topics.values())
    else:
        created = await _create_missing(services, session, request, image)
        image = services.topics.image
        topics = tuple(
            _NAMELESS
            if is_by_id(topic) and version < BY_ID_FROM
            else _look_up(services, image, topic, created)
            for topic in request.topics
        )
    addresses = services.addresses_for(session)
    if not addresses:
        topics = tuple(_unreachable(topic, version) for topic in topics)
    controller_id, racks = services.topics.members.controller_id, services.topics.members.racks
    return MetadataResponse(
        brokers=tuple(
            MetadataResponseBroker(
                node_id=broker, host=address.host, port=address.port, rack=racks.get(broker)
            )
            for broker, address in sorted(addresses.items())
        ),
        cluster_id=image.cluster_id,
        controller_id=-1 if controller_id is None else controller_id,
        topics=topics,
    )


async def _create_missing(
    services: Services, session: Session, request: MetadataRequest, image: Image
) -> Mapping[str, ErrorCode]:
    """Create the unknown topics where allowed; return the error of each topic that failed.

    A topic beyond the client's quota of partitions stays unknown for now, and the client waits.
    """
    # Another request created the topic first; or the quota does not allow it now.
    unreported = {ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.THROTTLING_QUOTA_EXCEEDED}
    if not (services.config.auto_create_topics_enable and request.allow_auto_topic_creation):
        return {}
    errors: dict[str, ErrorCode] = {}
    for name in {topic.name for topic in request.topics or () if topic.name}:
        if name not in image.topics:
            try:
                await _create(services, session, name)
            except KafkaError as e:
                if e.code not in unreported:
                    errors[name] = e.code
    return errors


async def _create(services: Services, session: Session, name: str) -> None:
    if name == offsets.TOPIC:
        await services.groups.require_topic()
    elif name == transactions.TOPIC:
        await services.transactions.require_topic()
    elif name not in {*INTERNAL_TOPICS, METADATA_LOG}:
        creatable = CreatableTopic(
            name=name,
            num_partitions=DEFAULT,
            replication_factor=DEFAULT,
            assignments=(),
            configs=(),
        )
        new = validate(creatable, services.topics, services.config)
        charge_mutations(services, session, new.partitions, strict=True)
        await services.topics.require(new)


def is_by_id(requested: MetadataRequestTopic) -> bool:
    """Whether the request names a topic by its id; the handler and authorization share this."""
    return requested.name is None or (not requested.name and requested.topic_id != ZERO_UUID)


def _look_up(
    services: Services,
    image: Image,
    requested: MetadataRequestTopic,
    errors: Mapping[str, ErrorCode],
) -> MetadataResponseTopic:
    name = None if is_by_id(requested) else requested.name
    topic = image.ids.get(requested.topic_id) if name is None else image.topics.get(name)
    if topic is not None:
        return _known(services, topic)
    error = errors.get(name or "") or why_unknown(name)
    return MetadataResponseTopic(
        error_code=error, name=name, topic_id=requested.topic_id, partitions=()
    )


def why_unknown(name: str | None) -> ErrorCode:
    """The error for a topic that does not exist; one requested by its id has no name."""
    if name is None:
        return ErrorCode.UNKNOWN_TOPIC_ID
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
    partitions = []
    for number in range(topic.partitions):
        one = shown(topic, number, services.partitions, services.topics.members)
        partitions.append(
            MetadataResponsePartition(
                error_code=one.error,
                partition_index=number,
                leader_id=one.leader,
                leader_epoch=one.leader_epoch,
                replica_nodes=one.replicas,
                isr_nodes=one.isr,
                offline_replicas=one.offline,
            )
        )
    return tuple(partitions)


def _unreachable(topic: MetadataResponseTopic, version: int) -> MetadataResponseTopic:
    """A topic as shown to a client of a listener that is not advertised."""
    known = version >= _LISTENER_KNOWN_FROM
    error = ErrorCode.LISTENER_NOT_FOUND if known else ErrorCode.LEADER_NOT_AVAILABLE
    return replace(
        topic,
        partitions=tuple(replace(p, error_code=error, leader_id=-1) for p in topic.partitions),
    )


# --- authorization --------------------------------------------------------------------------------


async def _authorize(caller: Caller, version: int, request: MetadataRequest, handle: Handle) -> Any:
    wants_all = request.topics is None or (version == 0 and not request.topics)
    refused: tuple[Any, ...] = ()
    if wants_all:
        response = await handle(request)
        topics = tuple(t for t in response.topics if caller.may_topic(Operation.DESCRIBE, t.name))
    else:
        request = replace(request, topics=_once(request.topics or ()))
        allowed, refused = caller.split_by_permission(
            request.topics or (), lambda t: _may_know(caller, request, t)
        )
        response = await handle(replace(request, topics=allowed) if refused else request)
        # In version 0 an empty list means every topic.
        topics = response.topics if allowed else ()
    if request.include_topic_authorized_operations:
        topics = tuple(with_operations(caller, topic) for topic in topics)
    cluster_fields = {}
    if request.include_cluster_authorized_operations:
        cluster_fields["cluster_authorized_operations"] = caller.cluster_operations()
    return replace(response, topics=(*topics, *map(_unknown, refused)), **cluster_fields)


def _once(topics: Sequence[MetadataRequestTopic]) -> tuple[MetadataRequestTopic, ...]:
    """Each topic the first time: an answer may be a thousand times as long as its name."""
    found: dict[tuple[str | None, uuid.UUID], MetadataRequestTopic] = {}
    for topic in topics:
        by_id = is_by_id(topic)
        found.setdefault((None, topic.topic_id) if by_id else (topic.name, ZERO_UUID), topic)
    return tuple(found.values())


def _may_know(caller: Caller, request: MetadataRequest, requested: MetadataRequestTopic) -> bool:
    """Whether the caller may see a topic's metadata, and create the topic if the request would."""
    image = caller.services.topics.image
    if is_by_id(requested) or requested.name is None:
        topic = image.ids.get(requested.topic_id)
        return topic is None or caller.may_topic(Operation.DESCRIBE, topic.name)
    if not caller.may_topic(Operation.DESCRIBE, requested.name):
        return False
    creates = (
        requested.name not in image.topics
        and request.allow_auto_topic_creation
        and caller.services.config.auto_create_topics_enable
    )
    return not creates or may_create(caller, requested.name)


def _unknown(requested: MetadataRequestTopic) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error_code=TOPIC_REFUSED,
        name=None if is_by_id(requested) else requested.name,
        topic_id=requested.topic_id if is_by_id(requested) else ZERO_UUID,
        partitions=(),
    )


API = Endpoint(
    METADATA, MetadataRequest, MetadataResponse, handle, _authorize, returns_operations=True
)
