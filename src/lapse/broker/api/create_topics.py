"""CreateTopics (key 19): create topics, or only check whether they could be created.

Needs CREATE cluster or topic; DESCRIBE_CONFIGS topic, to get its settings in the response.

Behaviour: topics are validated and created one by one; the answer comes when a topic is durable and
the controller's logs of it are open. INVALID_CONFIG names the setting and what is allowed.
INVALID_REPLICATION_FACTOR where there are fewer brokers; assignments by hand name equally many of
them for each partition, from 0 on without gaps, else INVALID_REPLICA_ASSIGNMENT; with them both
counts are -1, else INVALID_REQUEST.
Names that differ only in '.' and '_' collide in metrics and are refused, as in Kafka. A topic named
twice in one request is INVALID_REQUEST; so is `__cluster_metadata`, whose folder would be taken for
Kafka's metadata log. `validate_only` validates and creates nothing; as in Kafka it counts for the
client's quota of partitions all the same.

v2-3 the same · v4 -1 partitions: the broker's `num.partitions` · v5 the answer lists the settings
in force · v6 topics beyond the client's quota of partitions are THROTTLING_QUOTA_EXCEEDED, older
clients are throttled (KIP-599) · v7 topic id.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lapse.base.config import BrokerConfig
from lapse.base.errors import ConfigError, ErrorCode, KafkaError
from lapse.base.ids import check_topic_name
from lapse.broker.logs.topics import NewTopic, Topics
from lapse.broker.request.authorize import (
    TOPIC_REFUSED,
    Caller,
    Handle,
    Items,
    each,
    may_create,
    message_of,
)
from lapse.broker.request.context import Services, Session
from lapse.broker.request.endpoint import Endpoint, Mutations, always
from lapse.broker.request.repeated import named_twice
from lapse.broker.request.throttle import charge_mutations, within_quota
from lapse.metadata.image import METADATA_LOG, Topic
from lapse.metadata.settings import BrokerSettings, describe_topic
from lapse.security.acls import Operation
from lapse.wire.declaration import ZERO_UUID
from lapse.wire.schema.create_topics import (
    CREATE_TOPICS,
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

PARTITIONS_MAX = 10_000  # Kafka's limit on one request
DEFAULT = -1
STRICT_FROM = 6


async def handle(
    services: Services, session: Session, version: int, request: CreateTopicsRequest
) -> CreateTopicsResponse:
    """Create every topic that passes the checks."""
    times = Counter(topic.name for topic in request.topics)
    answers = []
    for name, requested in {topic.name: topic for topic in request.topics}.items():
        try:
            if times[name] > 1:
                raise named_twice(f"topic {name}")
            new = validate(requested, services.topics, services.config)
            charge_mutations(services, session, new.partitions, strict=version >= STRICT_FROM)
            topic = None if request.validate_only else await services.topics.create(new)
            answers.append(_created(new, topic, services.topics.settings))
        except KafkaError as e:
            answers.append(_refused(name, e))
    return CreateTopicsResponse(topics=tuple(answers))


def _charge(
    services: Services, session: Session, version: int, request: CreateTopicsRequest
) -> tuple[CreateTopicsRequest | None, tuple[CreatableTopicResult, ...]]:
    times = Counter(topic.name for topic in request.topics)

    def partitions(topic: CreatableTopic) -> int:
        if times[topic.name] > 1:
            raise named_twice(f"topic {topic.name}")
        return validate(topic, services.topics, services.config).partitions

    strict = version >= STRICT_FROM
    fine, refused = within_quota(services, session, request.topics, partitions, strict=strict)
    results = tuple(_refused(topic.name, e) for topic, e in refused)
    return (replace(request, topics=fine) if fine or not refused else None), results


def _refused(name: str, error: KafkaError) -> CreatableTopicResult:
    return CreatableTopicResult(name=name, error_code=error.code, error_message=str(error))


def validate(requested: CreatableTopic, topics: Topics, config: BrokerConfig) -> NewTopic:
    """The topic to create; raises the KafkaError that says why it cannot be created."""
    image = topics.image
    check_topic_name(requested.name)
    if requested.name == METADATA_LOG:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"topic {requested.name}: the name is reserved for Kafka's metadata log",
        )
    if requested.name in image.topics:
        raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {requested.name!r} already exists")
    topics.flat_names.require_none_like(requested.name, image)
    partitions, assignments = requested.num_partitions, tuple[tuple[int, ...], ...]()
    factor: int | None = None
    if requested.assignments:
        assignments = _checked_assignments(requested, topics.members.able)
        partitions = len(assignments)
    else:
        asked = requested.replication_factor
        factor = config.default_replication_factor if asked == DEFAULT else asked
        topics.members.require(factor, f"topic {requested.name}")
    if partitions == DEFAULT:
        partitions = config.num_partitions
    if partitions < 1:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"topic {requested.name}: {partitions} partitions; at least 1",
        )
    if partitions > PARTITIONS_MAX:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"topic {requested.name}: {partitions} partitions; at most {PARTITIONS_MAX}",
        )
    overrides = _overrides(requested, topics.settings)
    return NewTopic(requested.name, partitions, overrides, factor, assignments)


def _checked_assignments(
    requested: CreatableTopic, able: Sequence[int]
) -> tuple[tuple[int, ...], ...]:
    """Manual assignments by partition: no gaps in their numbers, equally many brokers of ours."""
    if (requested.num_partitions, requested.replication_factor) != (DEFAULT, DEFAULT):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"topic {requested.name}: partitions are assigned by hand, so their number and the "
            "replication factor are -1",
        )
    chosen = {one.partition_index: tuple(one.broker_ids) for one in requested.assignments}
    numbers = sorted(one.partition_index for one in requested.assignments)
    subject = f"topic {requested.name}"
    if numbers != list(range(len(numbers))):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{subject}: partitions {numbers} are assigned by hand; allowed is each number from "
            "0 on once",
        )
    check_brokers(subject, chosen.values(), able)
    return tuple(chosen[number] for number in numbers)


def check_brokers(subject: str, chosen: Iterable[tuple[int, ...]], able: Sequence[int]) -> None:
    """Raise INVALID_REPLICA_ASSIGNMENT unless each names some of the brokers, all equally many."""
    sizes = set()
    for brokers in chosen:
        sizes.add(len(brokers))
        if not brokers or len(set(brokers)) < len(brokers) or not set(brokers) <= set(able):
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{subject}: assigned to brokers {list(brokers)}; allowed is each of "
                f"{list(able)} once",
            )
    if len(sizes) > 1:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{subject}: partitions with {sorted(sizes)} replicas; allowed is equally many",
        )


def _overrides(requested: CreatableTopic, settings: BrokerSettings) -> Mapping[str, str]:
    overrides = {c.name: c.value for c in requested.configs if c.value is not None}
    try:
        settings.config_of(overrides)
    except ConfigError as e:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"topic {requested.name}: {e}") from e
    return overrides


def _created(new: NewTopic, topic: Topic | None, settings: BrokerSettings) -> CreatableTopicResult:
    in_force = settings.config_of(new.overrides)
    return CreatableTopicResult(
        name=new.name,
        topic_id=ZERO_UUID if topic is None else topic.topic_id,
        error_code=ErrorCode.NONE,
        error_message=None,
        num_partitions=new.partitions,
        replication_factor=_factor_of(new, topic),
        configs=tuple(
            CreatableTopicConfigs(
                name=one.name,
                value=one.value,
                read_only=one.read_only,
                config_source=one.source,
                is_sensitive=one.is_sensitive,
            )
            for one in describe_topic(new.overrides, settings, in_force)
        ),
    )


def _factor_of(new: NewTopic, topic: Topic | None) -> int:
    if topic is not None and topic.states:
        return len(topic.states[0].replicas)
    return len(new.assignments[0]) if new.assignments else new.replication_factor or 1


# --- authorization --------------------------------------------------------------------------------


async def _authorize(
    caller: Caller, version: int, request: CreateTopicsRequest, handle: Handle
) -> Any:
    answer = await _create(caller, version, request, handle)
    return replace(answer, topics=tuple(_with_settings(caller, topic) for topic in answer.topics))


def _with_settings(caller: Caller, topic: CreatableTopicResult) -> Any:
    if topic.error_code or caller.may_topic(Operation.DESCRIBE_CONFIGS, topic.name):
        return topic
    return replace(
        topic,
        topic_config_error_code=TOPIC_REFUSED,
        num_partitions=-1,
        replication_factor=-1,
        configs=(),
    )


_create = each(
    Items(
        "topics",
        "topics",
        lambda caller, topic: may_create(caller, topic.name),
        lambda topic: CreatableTopicResult(
            name=topic.name, error_code=TOPIC_REFUSED, error_message=message_of(TOPIC_REFUSED)
        ),
    )
)


API = Endpoint(
    CREATE_TOPICS,
    CreateTopicsRequest,
    CreateTopicsResponse,
    handle,
    _authorize,
    by_controller=always,
    mutations=Mutations("topics", _charge),
)
