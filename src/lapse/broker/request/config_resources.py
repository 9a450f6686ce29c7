"""The common part of the two APIs that alter settings: each resource is changed by itself.

A resource is a topic, this broker (by its id), or all brokers (the empty name). It is changed as a
whole or not at all, independent of the others in a request. As in Kafka, a resource named
twice, a setting named twice, a null value, another broker's id and a type that has no settings
here are INVALID_REQUEST; so is a broker setting that is read-only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from lapse.base.errors import ErrorCode, KafkaError
from lapse.base.ids import check_topic_name
from lapse.broker.logs.topics import Change
from lapse.broker.request.authorize import Caller, message_of
from lapse.broker.request.context import Services
from lapse.broker.request.repeated import named_twice
from lapse.metadata.store import ALL_BROKERS
from lapse.security.acls import CLUSTER_NAME, REFUSALS, Operation, ResourceType

# Types of resources, by Kafka's numbers.
TOPIC, BROKER = 2, 4


@dataclass(frozen=True, slots=True)
class Alteration:
    """The change of one resource: names of settings, those without a value, and the effect."""

    resource_type: int
    resource_name: str
    names: tuple[str, ...]
    nulls: tuple[str, ...]
    change: Change


class Altered(NamedTuple):
    """The result of an alteration."""

    code: ErrorCode
    message: str | None


async def alter_all(
    services: Services, alterations: Sequence[Alteration], *, validate_only: bool
) -> list[Altered]:
    """Change each resource; the results are in the order of the alterations."""
    times = Counter(
        (alteration.resource_type, alteration.resource_name) for alteration in alterations
    )
    results = []
    for alteration in alterations:
        try:
            if times[alteration.resource_type, alteration.resource_name] > 1:
                raise named_twice("a resource")
            await _alter(services, alteration, validate_only=validate_only)
            results.append(Altered(ErrorCode.NONE, None))
        except KafkaError as e:
            results.append(Altered(e.code, str(e)))
    return results


async def _alter(services: Services, alteration: Alteration, *, validate_only: bool) -> None:
    twice = [name for name, count in Counter(alteration.names).items() if count > 1]
    if twice:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"settings are named more than once: {', '.join(twice)}"
        )
    if alteration.nulls:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"null is no value for {', '.join(alteration.nulls)}"
        )
    if alteration.resource_type == TOPIC:
        check_named_topic(alteration.resource_name)
        await services.topics.alter(
            alteration.resource_name, alteration.change, validate_only=validate_only
        )
    elif alteration.resource_type == BROKER:
        broker = own_broker(services, alteration.resource_name)
        await services.topics.alter_broker(broker, alteration.change, validate_only=validate_only)
    else:
        raise no_settings(alteration.resource_type)


def check_named_topic(name: str) -> None:
    """Raise INVALID_REQUEST for no name, INVALID_TOPIC_EXCEPTION for what is none."""
    if not name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "settings of all topics are not kept: name one")
    check_topic_name(name)


def own_broker(services: Services, name: str) -> str:
    """A broker's resource name, which is ours or `ALL_BROKERS`; raises INVALID_REQUEST."""
    own = str(services.config.node_id)
    if name not in {ALL_BROKERS, own}:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"broker {name!r}: this is broker {own}")
    return name


def of_the_cluster(request: Any) -> bool:
    """Whether no resource of a request is a certain broker, which changes its own settings."""
    return all(
        one.resource_type != BROKER or one.resource_name == ALL_BROKERS for one in request.resources
    )


def no_settings(resource_type: int) -> KafkaError:
    """The refusal of a type of resource that has no settings here."""
    return KafkaError(
        ErrorCode.INVALID_REQUEST,
        f"resource type {resource_type}: settings are of topics ({TOPIC}) and brokers ({BROKER})",
    )


# By the type of a resource in these calls: of which kind it is, None for the cluster.
_KINDS: Mapping[int, ResourceType] = {
    2: ResourceType.TOPIC,
    4: ResourceType.CLUSTER,
    8: ResourceType.CLUSTER,
    16: ResourceType.CLUSTER,
    32: ResourceType.GROUP,
}


def may_settings(operation: Operation) -> Any:
    def may(caller: Caller, resource: Any) -> bool:
        kind = _KINDS.get(resource.resource_type)
        if kind is None:  # the handler knows no such type
            return True
        name = CLUSTER_NAME if kind is ResourceType.CLUSTER else resource.resource_name
        return caller.may(operation, kind, name)

    return may


def refused_settings(cls: Any, **fields: Any) -> Any:
    def refused(resource: Any) -> Any:
        code = REFUSALS[_KINDS[resource.resource_type]]
        return cls(
            error_code=code,
            error_message=message_of(code),
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
            **fields,
        )

    return refused
