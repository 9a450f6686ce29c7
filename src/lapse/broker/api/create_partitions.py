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
from collections.abc import Sequence
from dataclasses import replace

from lapse.base.errors import ErrorCode, KafkaError
from lapse.broker.api.create_topics import PARTITIONS_MAX, check_brokers
from lapse.broker.logs.placing import require_more
from lapse.broker.request.authorize import TOPIC_REFUSED, Items, each, message_of, of_topic
from lapse.broker.request.context import Services, Session
from lapse.broker.request.endpoint import Endpoint, Mutations, always
from lapse.broker.request.repeated import named_twice
from lapse.broker.request.throttle import charge_mutations, within_quota
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
    for name, requested in {topic.name: topic for topic in request.topics}.items():
        try:
            if times[name] > 1:
                raise named_twice(f"topic {name}")
            added = validate(
                requested, services.topics.image.topics.get(name), services.topics.members.able
            )
            charge_mutations(services, session, added, strict=version >= STRICT_FROM)
            if not request.validate_only:
                chosen = [tuple(one.broker_ids) for one in requested.assignments or ()]
                await services.topics.add_partitions(name, requested.count, chosen)
            answers.append(CreatePartitionsTopicResult(name=name, error_code=ErrorCode.NONE))
        except KafkaError as e:
            answers.append(_refused(name, e))
    return CreatePartitionsResponse(results=tuple(answers))


def _charge(
    services: Services, session: Session, version: int, request: CreatePartitionsRequest
) -> tuple[CreatePartitionsRequest | None, tuple[CreatePartitionsTopicResult, ...]]:
    times = Counter(topic.name for topic in request.topics)
    topics, able = services.topics.image.topics, services.topics.members.able

    def partitions(topic: CreatePartitionsTopic) -> int:
        if times[topic.name] > 1:
            raise named_twice(f"topic {topic.name}")
        return validate(topic, topics.get(topic.name), able)

    strict = version >= STRICT_FROM
    fine, refused = within_quota(services, session, request.topics, partitions, strict=strict)
    results = tuple(_refused(topic.name, e) for topic, e in refused)
    return (replace(request, topics=fine) if fine or not refused else None), results


def _refused(name: str, error: KafkaError) -> CreatePartitionsTopicResult:
    return CreatePartitionsTopicResult(name=name, error_code=error.code, error_message=str(error))


def validate(requested: CreatePartitionsTopic, topic: Topic | None, able: Sequence[int]) -> int:
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
    require_more(topic, requested.count, requested.assignments)
    added = requested.count - topic.partitions
    if added > PARTITIONS_MAX:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"topic {topic.name}: {added} partitions more; at most {PARTITIONS_MAX} at once",
        )
    if requested.assignments is None:
        return added
    of_others = [topic.states[0].replicas] if topic.states else []
    chosen = (tuple(assignment.broker_ids) for assignment in requested.assignments)
    check_brokers(f"topic {topic.name}", chosen, able)
    if of_others and any(len(one.broker_ids) != len(of_others[0]) for one in requested.assignments):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"topic {topic.name}: its other partitions have {len(of_others[0])} replicas",
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
    by_controller=always,
    mutations=Mutations("results", _charge),
)
