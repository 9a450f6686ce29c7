"""What stock clients see of a cluster, as JSON: the same of one directory, whoever serves it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import (
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ConfigResource,
    ConfigSource,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
)

SECONDS = 60.0
ISOLATIONS = {
    "read_uncommitted": IsolationLevel.READ_UNCOMMITTED,
    "read_committed": IsolationLevel.READ_COMMITTED,
}
SET_BY_PEOPLE = {  # where a setting comes from that is not the broker's own
    ConfigSource.DYNAMIC_TOPIC_CONFIG.name,
    ConfigSource.DYNAMIC_BROKER_CONFIG.name,
    ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG.name,
}


def observe(bootstrap: str, groups: Iterable[str], broker: str = "0") -> dict[str, Any]:
    """Everything of `bootstrap` that must be the same after an upgrade."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    topics = admin.list_topics(timeout=SECONDS).topics
    return {
        "topics": {
            name: {
                "settings": _settings(admin, ConfigResource(ResourceType.TOPIC, name)),
                "partitions": {
                    str(partition): _partition(bootstrap, admin, TopicPartition(name, partition))
                    for partition in sorted(topic.partitions)
                },
            }
            for name, topic in sorted(topics.items())
            if not name.startswith("__")  # what they hold is seen as groups and transactions
        },
        "broker": _settings(admin, ConfigResource(ResourceType.BROKER, broker)),
        "groups": {group: _offsets(admin, group) for group in groups},
        "acls": _acls(admin),
        "users": _users(admin),
    }


def _settings(admin: AdminClient, of: ConfigResource) -> dict[str, str]:
    [described] = admin.describe_configs([of]).values()
    entries = described.result(SECONDS).values()
    return {
        entry.name: entry.value
        for entry in sorted(entries, key=lambda entry: entry.name)
        if ConfigSource(entry.source).name in SET_BY_PEOPLE
    }


def _partition(bootstrap: str, admin: AdminClient, where: TopicPartition) -> dict[str, Any]:
    seen: dict[str, Any] = {
        "earliest": _listed(admin, where, OffsetSpec.earliest(), "read_uncommitted")
    }
    for isolation in ISOLATIONS:
        end = _listed(admin, where, OffsetSpec.latest(), isolation)
        seen[isolation] = {"end": end, "records": records(bootstrap, where, isolation)}
    return seen


def _listed(admin: AdminClient, where: TopicPartition, which: OffsetSpec, isolation: str) -> int:
    asked = {TopicPartition(where.topic, where.partition): which}
    until = time.monotonic() + SECONDS
    while True:
        [found] = admin.list_offsets(asked, isolation_level=ISOLATIONS[isolation]).values()
        try:
            return int(found.result(SECONDS).offset)
        except KafkaException as e:
            # A Kafka that begins tells of epochs that its logs have not yet.
            is_early = e.args[0].code() == KafkaError.UNKNOWN_LEADER_EPOCH
            if not is_early or time.monotonic() > until:
                raise
            time.sleep(0.2)


def records(bootstrap: str, where: TopicPartition, isolation: str) -> list[list[Any]]:
    """Every record of a partition: offset, kind of time, time, key, value, headers."""
    reader = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "observer",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,  # at the end, until it is told; no marker is on its way here
            "auto.offset.reset": "earliest",
            "check.crcs": True,
            "isolation.level": isolation,
            "log_level": 0,
        }
    )
    found = []
    try:
        reader.assign([TopicPartition(where.topic, where.partition, 0)])
        while True:
            message = reader.poll(SECONDS)
            assert message is not None, f"{where} could not be read to its end"
            if message.error() is None:
                found.append(_record(message))
            elif message.error().code() == KafkaError._PARTITION_EOF:
                return found
            else:
                raise AssertionError(f"{where}: {message.error()}")
    finally:
        reader.close()


def _record(message: Message) -> list[Any]:
    headers = [[name, _text(value)] for name, value in message.headers() or ()]
    return [
        message.offset(), *message.timestamp(),
        _text(message.key()), _text(message.value()), headers,
    ]  # fmt: skip


def _text(value: bytes | str | None) -> str | None:
    return value.decode("latin-1") if isinstance(value, bytes) else value


def _offsets(admin: AdminClient, group: str) -> dict[str, int]:
    [found] = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
    listed = found.result(SECONDS).topic_partitions
    return {f"{one.topic}-{one.partition}": one.offset for one in sorted(listed, key=str)}


def _acls(admin: AdminClient) -> list[list[str]]:
    anything = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, None, None,
        AclOperation.ANY, AclPermissionType.ANY,
    )  # fmt: skip
    return sorted(
        [
            one.restype.name, one.name, one.resource_pattern_type.name,
            one.principal, one.host, one.operation.name, one.permission_type.name,
        ]
        for one in admin.describe_acls(anything).result(SECONDS)
    )  # fmt: skip


def _users(admin: AdminClient) -> dict[str, list[list[Any]]]:
    described = admin.describe_user_scram_credentials().result(SECONDS)
    return {
        user: sorted([info.mechanism.name, info.iterations] for info in one.scram_credential_infos)
        for user, one in sorted(described.items())
    }
