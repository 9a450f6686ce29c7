"""Settings and records of a running cluster, from the outside: what `Admin` says of them.

Answers are per resource and per partition; a refusal among them is a `KafkaError` in its place, so
that one does not hide the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from lapse.base.errors import ConfigError, ErrorCode, KafkaError
from lapse.base.ids import TopicPartition
from lapse.base.setting import LONG_MAX
from lapse.wire.schema.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from lapse.wire.schema.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
)
from lapse.wire.schema.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

TOPIC, BROKER = 2, 4
ALL_BROKERS = ""
NO_LOW_WATERMARK = -1


FROM_TOPIC = 1  # source of a setting that a topic has of its own


class Resource(NamedTuple):
    """What has settings: a topic, or a broker by its id (`ALL_BROKERS` for the dynamic ones)."""

    kind: int
    name: str


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One setting.

    Attributes:
        source: 1 the topic's own, 2 the broker's dynamic one, 3 all brokers' dynamic one, 4 the
            properties file, 5 the default.
        kind: its type, by Kafka's number; 0 where an old broker does not send it.
        synonyms: name, value, source of each value that holds or would, in order.
    """

    name: str
    value: str | None
    source: int
    read_only: bool
    is_sensitive: bool
    kind: int
    synonyms: tuple[tuple[str, str | None, int], ...]
    documentation: str | None


@dataclass(frozen=True, slots=True)
class ResourceConfig:
    """A resource's settings by name, or the broker's error."""

    entries: Mapping[str, ConfigEntry]
    error: KafkaError | None = None


class Operation(IntEnum):
    """What to do with a setting (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigChange(NamedTuple):
    """One operation; DELETE has no value."""

    name: str
    value: str | None
    operation: Operation = Operation.SET


@dataclass(frozen=True, slots=True)
class DeleteRecordsResult:
    """The smallest offset that is served from now on, -1 with an error (KIP-107)."""

    low_watermark: int
    error: KafkaError | None = None


def refusal(code: int, message: str | None, subject: str) -> KafkaError:
    """A broker's error as an exception; a code we do not know becomes UNKNOWN_SERVER_ERROR."""
    known = ErrorCode(code) if code in set(ErrorCode) else ErrorCode.UNKNOWN_SERVER_ERROR
    name = known.name if known == code else f"error {code}"
    return KafkaError(known, f"{subject}: {name}" + (f": {message}" if message else ""))


def _refusal_or_none(code: int, message: str | None, subject: str) -> KafkaError | None:
    return refusal(code, message, subject) if code else None


# --- describing ---------------------------------------------------------------------------------


def describe_request(
    resources: Iterable[Resource],
    names: Sequence[str] | None,
    *,
    synonyms: bool,
    documentation: bool,
) -> DescribeConfigsRequest:
    """Ask for some settings, or all."""
    return DescribeConfigsRequest(
        resources=tuple(
            DescribeConfigsResource(
                resource_type=resource.kind,
                resource_name=resource.name,
                configuration_keys=None if names is None else tuple(names),
            )
            for resource in resources
        ),
        include_synonyms=synonyms,
        include_documentation=documentation,
    )


def described(answer: DescribeConfigsResponse) -> dict[Resource, ResourceConfig]:
    """What each resource has."""
    return {
        Resource(one.resource_type, one.resource_name): ResourceConfig(
            {config.name: _entry(config) for config in one.configs},
            _refusal_or_none(one.error_code, one.error_message, one.resource_name),
        )
        for one in answer.results
    }


def _entry(config: DescribeConfigsResourceResult) -> ConfigEntry:
    return ConfigEntry(
        config.name,
        config.value,
        config.config_source,
        config.read_only,
        config.is_sensitive,
        config.config_type,
        tuple((s.name, s.value, s.source) for s in config.synonyms),
        config.documentation,
    )


# --- altering -----------------------------------------------------------------------------------


def alter_request(
    changes: Mapping[Resource, Iterable[ConfigChange]], *, validate_only: bool
) -> IncrementalAlterConfigsRequest:
    """Change some settings of some resources."""
    return IncrementalAlterConfigsRequest(
        resources=tuple(
            AlterConfigsResource(
                resource_type=resource.kind,
                resource_name=resource.name,
                configs=tuple(
                    AlterableConfig(name=one.name, config_operation=one.operation, value=one.value)
                    for one in resource_changes
                ),
            )
            for resource, resource_changes in changes.items()
        ),
        validate_only=validate_only,
    )


def altered(answer: IncrementalAlterConfigsResponse) -> dict[Resource, KafkaError | None]:
    """Why each resource was not changed; None where it was."""
    return {
        Resource(one.resource_type, one.resource_name): _refusal_or_none(
            one.error_code, one.error_message, one.resource_name
        )
        for one in answer.responses
    }


# --- records ------------------------------------------------------------------------------------


def check_offset(partition: TopicPartition, offset: int) -> None:
    """Raise ConfigError for an offset that Kafka's messages cannot hold."""
    if not -LONG_MAX <= offset <= LONG_MAX:
        raise ConfigError(
            f"{partition}: offset {offset}: allowed is -1, the high watermark, or a number from 0 "
            f"to {LONG_MAX}"
        )


def delete_request(offsets: Mapping[TopicPartition, int], timeout_ms: int) -> DeleteRecordsRequest:
    """Delete what is below these offsets; -1 is the high watermark.

    Raises ConfigError for an offset that is none of 64 bits.
    """
    by_topic: dict[str, list[DeleteRecordsPartition]] = {}
    for partition, offset in offsets.items():
        check_offset(partition, offset)
        by_topic.setdefault(partition.topic, []).append(
            DeleteRecordsPartition(partition_index=partition.partition, offset=offset)
        )
    return DeleteRecordsRequest(
        topics=tuple(
            DeleteRecordsTopic(name=name, partitions=tuple(partitions))
            for name, partitions in by_topic.items()
        ),
        timeout_ms=timeout_ms,
    )


def deleted(answer: DeleteRecordsResponse) -> dict[TopicPartition, DeleteRecordsResult]:
    """What became of each partition."""
    results = {}
    for topic in answer.topics:
        for one in topic.partitions:
            where = TopicPartition(topic.name, one.partition_index)
            error = _refusal_or_none(one.error_code, None, str(where))
            low_watermark = one.low_watermark if error is None else NO_LOW_WATERMARK
            results[where] = DeleteRecordsResult(low_watermark, error)
    return results
