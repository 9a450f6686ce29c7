"""What the metadata log of a Kafka node comes to: all of it that a broker of Lapse has, too.

What Kafka calls its MetadataImage and its many deltas; here each record has one function that says
what it changes. Who takes all of it over refuses a record that no Kafka up to 4.3 writes: what it
says is not known. Who only looks at topics' settings passes over all other records.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from lapse.base.decoding import from_json
from lapse.base.errors import CorruptData
from lapse.metadata.kraft import Entry, read_entries
from lapse.metadata.store import Entity, entity_of
from lapse.security.acls import AclBinding, Operation, PatternType, Permission, ResourceType
from lapse.security.scram import ScramCredential, ScramMechanism
from lapse.wire.schema.metadata_records import (
    AccessControlEntryRecord,
    ClientQuotaRecord,
    ConfigRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RemoveAccessControlEntryRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    TopicRecord,
    UserScramCredentialRecord,
    VotersRecord,
    ZkMigrationStateRecord,
)

TOPIC_RESOURCE, BROKER_RESOURCE = 2, 4
_OF_TOPICS = frozenset({2, 4, 9})
_VOTERS = "KRAFT_VOTERS"
_DELEGATION_TOKEN = 10
_SAME_LEADER = -2
# Of brokers and controllers, features, and nothing at all: a broker of Lapse says its own.
_OF_OTHERS = frozenset({0, 1, 7, 8, 12, 17, 20, 26, 27, 28})


@dataclass(frozen=True, slots=True)
class KafkaPartition:
    """Where a partition is, and the epoch of its last leader (-1 leads in none)."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    leader_epoch: int


@dataclass(slots=True)
class KafkaTopic:
    """A topic and its partitions, by number."""

    name: str
    topic_id: uuid.UUID
    partitions: dict[int, KafkaPartition] = field(default_factory=dict)


@dataclass(slots=True)
class KafkaImage:
    """Everything, as of the log's end.

    Attributes:
        settings: by the resource's type and name, as in DescribeConfigs.
        producer_id_next: ids from here on were never given to anybody.
        has_delegation_tokens: there were some, and may still be.
        zookeeper_migration: how far it is; 0 never begun, 3 done.
        voters: who the quorum is, where the log says it (KIP-853).
    """

    topics: dict[uuid.UUID, KafkaTopic] = field(default_factory=dict)
    settings: dict[tuple[int, str], dict[str, str]] = field(default_factory=dict)
    acls: dict[uuid.UUID, AclBinding] = field(default_factory=dict)
    credentials: dict[tuple[str, ScramMechanism], ScramCredential] = field(default_factory=dict)
    client_quotas: dict[Entity, dict[str, float]] = field(default_factory=dict)
    producer_id_next: int = 0
    has_delegation_tokens: bool = False
    zookeeper_migration: int = 0
    voters: frozenset[int] = frozenset()

    def settings_of(self, topic: str) -> dict[str, str]:
        """A topic's own."""
        return self.settings.get((TOPIC_RESOURCE, topic), {})


@dataclass(frozen=True, slots=True)
class KafkaTopics:
    """What Kafka's metadata says of topics.

    Attributes:
        overrides: settings by topic; every existing topic is a key.
        defaults: cluster-wide dynamic broker settings. What stands in a broker's own
            `server.properties` is not in the metadata.
    """

    overrides: Mapping[str, Mapping[str, str]]
    defaults: Mapping[str, str]


def read_kafka_topics(log_dir: Path) -> KafkaTopics | None:
    """Topics of the Kafka that owns `log_dir`; None if it keeps no metadata there.

    Raises CorruptData on what does not read, and StorageError where it may not be read.
    """
    entries = read_entries(log_dir)
    if entries is None:
        return None
    image = image_of(entries, _OF_TOPICS)
    return KafkaTopics(
        {topic.name: image.settings_of(topic.name) for topic in image.topics.values()},
        image.settings.get((BROKER_RESOURCE, ""), {}),
    )


def image_of(entries: Iterable[Entry], kinds: Container[int] | None = None) -> KafkaImage:
    """Read all, or the records of some kinds.

    Raises CorruptData, also for a topic that is not known and, without `kinds`, such a kind.
    """
    image = KafkaImage()
    for entry in entries:
        if kinds is not None and entry.kind not in kinds:
            continue
        if entry.control == _VOTERS:
            record = entry.decoded(VotersRecord)
            image.voters = frozenset(voter.voter_id for voter in record.voters)
        elif entry.kind in _RECORDS:
            of_type, apply = _RECORDS[entry.kind]
            try:
                apply(image, entry.decoded(of_type))
            except KeyError as e:
                raise entry.refused(f"a record of type {entry.kind} is of nothing: {e}") from e
        elif entry.kind == _DELEGATION_TOKEN:
            image.has_delegation_tokens = True
        elif not entry.control and entry.kind not in _OF_OTHERS:
            raise entry.refused(f"no Kafka up to 4.3 has records of type {entry.kind}")
    return image


def voters_in(quorum_state: bytes) -> frozenset[int]:
    """Who the quorum is by its `quorum-state`; empty where that does not say it (KIP-853)."""
    try:
        found = from_json(quorum_state, _QuorumState)
    except msgspec.DecodeError as e:
        raise CorruptData("quorum-state", 0, str(e)) from e
    return frozenset(voter.voter_id for voter in found.current_voters or ())


class _Voter(msgspec.Struct, rename="camel"):
    voter_id: int


class _QuorumState(msgspec.Struct, rename="camel"):
    current_voters: tuple[_Voter, ...] | None = None


# --- what each record changes ---------------------------------------------------------------------


def _topic(image: KafkaImage, record: TopicRecord) -> None:
    image.topics[record.topic_id] = KafkaTopic(record.name, record.topic_id)


def _remove_topic(image: KafkaImage, record: RemoveTopicRecord) -> None:
    gone = image.topics.pop(record.topic_id)
    image.settings.pop((TOPIC_RESOURCE, gone.name), None)


def _partition(image: KafkaImage, record: PartitionRecord) -> None:
    image.topics[record.topic_id].partitions[record.partition_id] = KafkaPartition(
        record.replicas, record.adding_replicas, record.leader_epoch
    )


def _partition_change(image: KafkaImage, record: PartitionChangeRecord) -> None:
    partitions = image.topics[record.topic_id].partitions
    before = partitions[record.partition_id]
    partitions[record.partition_id] = KafkaPartition(
        before.replicas if record.replicas is None else record.replicas,
        before.adding if record.adding_replicas is None else record.adding_replicas,
        before.leader_epoch + int(record.leader != _SAME_LEADER),
    )


def _config(image: KafkaImage, record: ConfigRecord) -> None:
    settings = image.settings.setdefault((record.resource_type, record.resource_name), {})
    if record.value is None:
        settings.pop(record.name, None)
    else:
        settings[record.name] = record.value


def _credential(image: KafkaImage, record: UserScramCredentialRecord) -> None:
    image.credentials[record.name, ScramMechanism(record.mechanism)] = ScramCredential(
        record.salt, record.stored_key, record.server_key, record.iterations
    )


def _remove_credential(image: KafkaImage, record: RemoveUserScramCredentialRecord) -> None:
    image.credentials.pop((record.name, ScramMechanism(record.mechanism)), None)


def _client_quota(image: KafkaImage, record: ClientQuotaRecord) -> None:
    entity = entity_of((part.entity_type, part.entity_name) for part in record.entity)
    values = image.client_quotas.setdefault(entity, {})
    if record.remove:
        values.pop(record.key, None)
    else:
        values[record.key] = record.value


def _producer_ids(image: KafkaImage, record: ProducerIdsRecord) -> None:
    image.producer_id_next = max(image.producer_id_next, record.next_producer_id)


def _acl(image: KafkaImage, record: AccessControlEntryRecord) -> None:
    image.acls[record.id] = AclBinding(
        ResourceType(record.resource_type),
        PatternType(record.pattern_type),
        record.resource_name,
        record.principal,
        record.host,
        Operation(record.operation),
        Permission(record.permission_type),
    )


def _remove_acl(image: KafkaImage, record: RemoveAccessControlEntryRecord) -> None:
    image.acls.pop(record.id)


def _zookeeper_migration(image: KafkaImage, record: ZkMigrationStateRecord) -> None:
    image.zookeeper_migration = record.zk_migration_state


_RECORDS: dict[int, tuple[type[Any], Callable[[KafkaImage, Any], None]]] = {
    2: (TopicRecord, _topic),
    3: (PartitionRecord, _partition),
    4: (ConfigRecord, _config),
    5: (PartitionChangeRecord, _partition_change),
    9: (RemoveTopicRecord, _remove_topic),
    11: (UserScramCredentialRecord, _credential),
    14: (ClientQuotaRecord, _client_quota),
    15: (ProducerIdsRecord, _producer_ids),
    18: (AccessControlEntryRecord, _acl),
    19: (RemoveAccessControlEntryRecord, _remove_acl),
    21: (ZkMigrationStateRecord, _zookeeper_migration),
    22: (RemoveUserScramCredentialRecord, _remove_credential),
}
