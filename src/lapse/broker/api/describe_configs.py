"""DescribeConfigs (key 32): the settings of topics and brokers, and where each comes from.

Needs DESCRIBE_CONFIGS of the topic, cluster or group.

Behaviour: a topic has every topic setting, with the value in force; this broker (by its id) every
broker setting, topics' defaults under all their names included; all brokers (the empty name) only
what was set for them while they ran. A value's synonyms come in order of precedence:
the topic's own, this broker's dynamic one, all brokers' dynamic one, the properties file's, the
default (KIP-226); a broker setting's begin with its own name. Sensitive values are never returned.
Names may pick some settings; unknown ones are ignored, as in Kafka. A resource requested
more than once is returned once.

UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC_EXCEPTION; INVALID_REQUEST for another broker's id and
for resources that have no settings here (loggers, groups, client metrics).

v1-2 the same · v3 types, and documentation if requested · v4 the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from lapse.base.errors import ErrorCode, KafkaError
from lapse.broker.request.authorize import Items, each
from lapse.broker.request.config_resources import (
    BROKER,
    TOPIC,
    check_named_topic,
    may_settings,
    no_settings,
    own_broker,
    refused_settings,
)
from lapse.broker.request.context import Services, Session
from lapse.broker.request.endpoint import Endpoint
from lapse.metadata.settings import (
    Described,
    describe_all_brokers,
    describe_broker,
    describe_topic,
)
from lapse.metadata.store import ALL_BROKERS
from lapse.security.acls import Operation
from lapse.wire.schema.describe_configs import (
    DESCRIBE_CONFIGS,
    DescribeConfigsRequest,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)


async def handle(
    services: Services, _session: Session, _version: int, request: DescribeConfigsRequest
) -> DescribeConfigsResponse:
    """Return the settings of each resource."""
    requested: dict[tuple[int, str], frozenset[str] | None] = {}
    for one in request.resources:
        key, names = (one.resource_type, one.resource_name), one.configuration_keys
        before = requested.get(key, frozenset())
        requested[key] = before.union(names) if names and before is not None else None
    return DescribeConfigsResponse(
        results=tuple(
            _answer(services, request, kind, name, selected)
            for (kind, name), selected in requested.items()
        )
    )


def _answer(
    services: Services,
    request: DescribeConfigsRequest,
    kind: int,
    name: str,
    selected: frozenset[str] | None,
) -> DescribeConfigsResult:
    error, message = ErrorCode.NONE, None
    found: Sequence[Described] = ()
    try:
        found = _describe(services, kind, name)
    except KafkaError as e:
        error, message = e.code, str(e)
    return DescribeConfigsResult(
        error_code=error,
        error_message=message,
        resource_type=kind,
        resource_name=name,
        configs=tuple(
            _result(one, request) for one in found if selected is None or one.name in selected
        ),
    )


def _describe(services: Services, kind: int, name: str) -> Sequence[Described]:
    topics = services.topics
    if kind == TOPIC:
        check_named_topic(name)
        topic = topics.image.topics.get(name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
        return describe_topic(topic.overrides, topics.settings, topic.config)
    if kind == BROKER:
        of_all = own_broker(services, name) == ALL_BROKERS
        return (describe_all_brokers if of_all else describe_broker)(topics.settings)
    raise no_settings(kind)


def _result(one: Described, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    return DescribeConfigsResourceResult(
        name=one.name,
        value=one.value,
        read_only=one.read_only,
        config_source=one.source,
        is_sensitive=one.is_sensitive,
        synonyms=tuple(
            DescribeConfigsSynonym(name=s.name, value=s.value, source=s.source)
            for s in one.synonyms
            if request.include_synonyms
        ),
        config_type=one.kind,
        documentation=one.doc if request.include_documentation else None,
    )


API = Endpoint(
    DESCRIBE_CONFIGS,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    handle,
    each(
        Items(
            "resources",
            "results",
            may_settings(Operation.DESCRIBE_CONFIGS),
            refused_settings(DescribeConfigsResult, configs=()),
        )
    ),
)
