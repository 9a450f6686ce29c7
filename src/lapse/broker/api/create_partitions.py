"""CreatePartitions (key 37): topics grow (KIP-195).

Needs ALTER topic.

Behaviour: topics are validated and grown one by one; the answer comes when the new number is
durable and the new logs are open. `count` is of all partitions: one that is not greater than what
the topic has is INVALID_PARTITIONS, more than 10,000 new ones are POLICY_VIOLATION. Assignments by
hand must name this broker once for each new partition, else INVALID_REPLICA_ASSIGNMENT. A topic
named twice in one request is INVALID_REQUEST. `validate_only` validates and creates nothing; as in
Kafka it counts for the client's quota of partitions all the same.

Differs from Kafka: the internal topics are INVALID_TOPIC_EXCEPTION, since a group or transactional
id finds its coordinator by the number of their partitions.

v0-2 the same · v3 topics beyond the client's quota of partitions are THROTTLING_QUOTA_EXCEEDED,
older clients are throttled (KIP-599).
"""

from __future__ import annotations

from collections import Counter

from lapse.base.errors import ErrorCode, KafkaError
from lapse.broker.api.create_topics import PARTITIONS_MAX
from lapse.broker.logs.topics import require_more
from lapse.broker.request.authorize import TOPIC_REFUSED, Items, each, message_of, of_topic
from lapse.broker.request.context import Services, Session
from lapse.broker.request.endpoint import Endpoint
from lapse.broker.request.throttle import charge_mutations
from lapse.metadata.image import INTERNAL_TOPICS, Topic
from lapse.security.acls import Operation
from lapse.wire.schema.create_partitions import (
    CREATE_PARTITIONS,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)

STRICT_FROM = 3


async def handle(
    services: Services, session: Session, version: int, request: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    """Add partitions to every topic that passes the checks."""
    times = Counter(topic.name for topic in request.topics)
    answers = []
    for name in times:
        requested = next(topic for topic in request.topics if topic.name == name)
        try:
            if times[name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"topic {name} is named more than once")
            added = validate(
                requested, services.topics.image.topics.get(name), services.config.node_id
            )
            charge_mutations(services, session, added, strict=version >= STRICT_FROM)
            if not request.validate_only:
                await services.topics.add_partitions(name, requested.count)
            answers.append(CreatePartitionsTopicResult(name=name, error_code=ErrorCode.NONE))
        except KafkaError as e:
            answers.append(
                CreatePartitionsTopicResult(name=name, error_code=e.code, error_message=str(e))
            )
    return CreatePartitionsResponse(results=tuple(answers))


def validate(requested: CreatePartitionsTopic, topic: Topic | None, node_id: int) -> int:
    """The number of new partitions; raises the KafkaError that says why a topic cannot grow."""
    if topic is None:
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {requested.name!r}"
        )
    if topic.name in INTERNAL_TOPICS:
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"topic {topic.name} is internal: coordinators are found by its partition count",
        )
    require_more(topic, requested.count)
    added = requested.count - topic.partitions
    if added > PARTITIONS_MAX:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"topic {topic.name}: {added} partitions more; at most {PARTITIONS_MAX} at once",
        )
    if requested.assignments is None:
        return added
    if len(requested.assignments) != added:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"topic {topic.name}: {len(requested.assignments)} assignments, {added} new partitions",
        )
    for assignment in requested.assignments:
        if assignment.broker_ids != (node_id,):
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"topic {topic.name}: assigned to brokers {list(assignment.broker_ids)}; there is "
                f"one, {node_id}",
            )
    return added


API = Endpoint(
    CREATE_PARTITIONS,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    handle,
    each(
        Items(
            "topics",
            "results",
            of_topic(Operation.ALTER),
            lambda topic: CreatePartitionsTopicResult(
                name=topic.name, error_code=TOPIC_REFUSED, error_message=message_of(TOPIC_REFUSED)
            ),
        )
    ),
)
