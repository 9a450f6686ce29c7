"""IncrementalAlterConfigs (key 44): change single settings of a resource (KIP-339).

Needs ALTER_CONFIGS of the topic, cluster or group.

Behaviour: SET gives a value, DELETE goes back to the default, APPEND and SUBTRACT add items to a
list and remove them; adding a present item or removing an absent one is no error. They are for
lists alone, else INVALID_CONFIG. A list that the resource does not have itself begins as the one in
force, the broker's; Kafka begins with its default, and an APPEND could then drop items that were in
force. Otherwise as `alter_configs`. An unknown operation is INVALID_REQUEST.

v0-1 the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from functools import partial

from lapse.base.config import broker_setting, topic_setting
from lapse.base.errors import ErrorCode, KafkaError
from lapse.base.setting import Kind
from lapse.broker.logs.topics import Change, Topics
from lapse.broker.request.authorize import Items, each
from lapse.broker.request.config_resources import (
    TOPIC,
    Alteration,
    alter_all,
    may_settings,
    of_the_cluster,
    refused_settings,
)
from lapse.broker.request.context import Services, Session
from lapse.broker.request.endpoint import Endpoint
from lapse.metadata.store import ALL_BROKERS
from lapse.security.acls import Operation
from lapse.wire.schema.incremental_alter_configs import (
    INCREMENTAL_ALTER_CONFIGS,
    AlterableConfig,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)


class ConfigOperation(IntEnum):
    """The operations of KIP-339."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


async def handle(
    services: Services, _session: Session, _version: int, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    """Change the settings of each resource."""
    alterations = [
        Alteration(
            resource.resource_type,
            resource.resource_name,
            names=tuple(config.name for config in resource.configs),
            nulls=tuple(
                config.name
                for config in resource.configs
                if config.value is None and config.config_operation != ConfigOperation.DELETE
            ),
            change=_change(resource, services.topics),
        )
        for resource in request.resources
    ]
    results = await alter_all(services, alterations, validate_only=request.validate_only)
    return IncrementalAlterConfigsResponse(
        responses=tuple(
            AlterConfigsResourceResponse(
                error_code=result.code,
                error_message=result.message,
                resource_type=alteration.resource_type,
                resource_name=alteration.resource_name,
            )
            for alteration, result in zip(alterations, results, strict=True)
        )
    )


def _change(resource: AlterConfigsResource, topics: Topics) -> Change:
    """Apply the operations to the resource's settings, which may have changed since the call."""

    def below(name: str) -> str:
        if resource.resource_type == TOPIC:
            return topics.settings.below_topics(name)
        return topics.settings.below(name, all_brokers=resource.resource_name == ALL_BROKERS)

    kind_of = topic_setting if resource.resource_type == TOPIC else broker_setting

    def change(before: Mapping[str, str]) -> Mapping[str, str]:
        after = dict(before)
        for config in resource.configs:
            if config.config_operation in {ConfigOperation.APPEND, ConfigOperation.SUBTRACT}:
                _require_list(kind_of(config.name).kind, config)
            apply(after, config, partial(below, config.name))
        return after

    return change


def apply(settings: dict[str, str], config: AlterableConfig, below: Callable[[], str]) -> None:
    """Do one operation; `below` gives the list in force where the resource has none.

    Raises INVALID_REQUEST.
    """
    name, value = config.name, config.value or ""
    match config.config_operation:
        case ConfigOperation.SET:
            settings[name] = value
        case ConfigOperation.DELETE:
            settings.pop(name, None)
        case ConfigOperation.APPEND:
            there = _items(settings[name] if name in settings else below())
            settings[name] = ",".join(dict.fromkeys((*there, *_items(value))))
        case ConfigOperation.SUBTRACT:
            there = _items(settings[name] if name in settings else below())
            settings[name] = ",".join(item for item in there if item not in _items(value))
        case unknown:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{name}: there is no operation {unknown}")


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _require_list(kind: Kind, config: AlterableConfig) -> None:
    if kind is not Kind.LIST:
        operation = ConfigOperation(config.config_operation).name
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"{config.name}: {operation} is for lists, and this setting is not a list",
        )


API = Endpoint(
    INCREMENTAL_ALTER_CONFIGS,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    handle,
    each(
        Items(
            "resources",
            "responses",
            may_settings(Operation.ALTER_CONFIGS),
            refused_settings(AlterConfigsResourceResponse),
        )
    ),
    by_controller=of_the_cluster,
)
