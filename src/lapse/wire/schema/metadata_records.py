"""Records of Kafka's metadata log (KRaft): topics and partitions, settings, users, quotas.

Not messages of an API; they are declared with the same tools because they are encoded the same
way. Of each only what Lapse has a use for, and every version that Kafka 4.3 knows: fields of later
versions are left out where they come last. `metadata.kraft` reads them.
"""

from __future__ import annotations

import uuid

from lapse.wire.declaration import (
    BOOL,
    BYTES,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    UUID,
    array,
    field,
    header,
    nested,
    struct,
)


@header(versions="0-0", flexible="0+")
class TopicRecord:
    """A topic appears (type 2)."""

    name: str = field(STRING)
    topic_id: uuid.UUID = field(UUID)


@header(versions="0-2", flexible="0+")
class PartitionRecord:
    """A partition appears, or is as a snapshot found it (type 3)."""

    partition_id: int = field(INT32)
    topic_id: uuid.UUID = field(UUID)
    replicas: tuple[int, ...] = field(array(INT32))
    isr: tuple[int, ...] = field(array(INT32))
    removing_replicas: tuple[int, ...] = field(array(INT32))
    adding_replicas: tuple[int, ...] = field(array(INT32))
    leader: int = field(INT32)
    leader_epoch: int = field(INT32)
    partition_epoch: int = field(INT32)
    directories: tuple[uuid.UUID, ...] = field(array(UUID), "1+", default=())


@header(versions="0-0", flexible="0+")
class ConfigRecord:
    """A setting of a topic (resource type 2) or a broker (4) changes; null removes it (type 4)."""

    resource_type: int = field(INT8)
    resource_name: str = field(STRING)
    name: str = field(STRING)
    value: str | None = field(STRING, nullable="0+")


@header(versions="0-2", flexible="0+")
class PartitionChangeRecord:
    """What changes of a partition (type 5); null and -2 mean what they were.

    Any leader but -2 begins another leader epoch.
    """

    partition_id: int = field(INT32)
    topic_id: uuid.UUID = field(UUID)
    leader: int = field(INT32, tag=1, default=-2)
    replicas: tuple[int, ...] | None = field(array(INT32), tag=2, nullable="0+", default=None)
    adding_replicas: tuple[int, ...] | None = field(
        array(INT32), tag=4, nullable="0+", default=None
    )


@header(versions="0-0", flexible="0+")
class RemoveTopicRecord:
    """A topic goes (type 9)."""

    topic_id: uuid.UUID = field(UUID)


@header(versions="0-0", flexible="0+")
class UserScramCredentialRecord:
    """A user has a credential of this mechanism from now on (type 11)."""

    name: str = field(STRING)
    mechanism: int = field(INT8)
    salt: bytes = field(BYTES)
    stored_key: bytes = field(BYTES)
    server_key: bytes = field(BYTES)
    iterations: int = field(INT32)


@struct
class EntityData:
    """A part of whom a quota is of; a null name is all that have none of their own."""

    entity_type: str = field(STRING)
    entity_name: str | None = field(STRING, nullable="0+")


@header(versions="0-0", flexible="0+")
class ClientQuotaRecord:
    """A client quota is set, or removed (type 14)."""

    entity: tuple[EntityData, ...] = field(array(EntityData))
    key: str = field(STRING)
    value: float = field(FLOAT64)
    remove: bool = field(BOOL)


@header(versions="0-0", flexible="0+")
class ProducerIdsRecord:
    """Ids below this one have been given to brokers (type 15)."""

    broker_id: int = field(INT32)
    broker_epoch: int = field(INT64)
    next_producer_id: int = field(INT64)


@header(versions="0-0", flexible="0+")
class AccessControlEntryRecord:
    """An ACL appears, under an id of its own (type 18)."""

    id: uuid.UUID = field(UUID)
    resource_type: int = field(INT8)
    resource_name: str = field(STRING)
    pattern_type: int = field(INT8)
    principal: str = field(STRING)
    host: str = field(STRING)
    operation: int = field(INT8)
    permission_type: int = field(INT8)


@header(versions="0-0", flexible="0+")
class RemoveAccessControlEntryRecord:
    """The ACL with this id goes (type 19)."""

    id: uuid.UUID = field(UUID)


@header(versions="0-0", flexible="0+")
class ZkMigrationStateRecord:
    """How far a migration from ZooKeeper is (type 21); 0 is none, 3 a finished one."""

    zk_migration_state: int = field(INT8)


@header(versions="0-0", flexible="0+")
class RemoveUserScramCredentialRecord:
    """A user has no credential of this mechanism any more (type 22)."""

    name: str = field(STRING)
    mechanism: int = field(INT8)


# --- control records of the log itself ------------------------------------------------------------


@struct
class VoterEndpoint:
    """Where a voter is reached."""

    name: str = field(STRING)
    host: str = field(STRING)
    port: int = field(INT16)


@struct
class KRaftVersionFeature:
    """Which versions of the quorum's protocol a voter can speak."""

    min_supported_version: int = field(INT16)
    max_supported_version: int = field(INT16)


@struct
class Voter:
    """One of the quorum."""

    voter_id: int = field(INT32)
    voter_directory_id: uuid.UUID = field(UUID)
    endpoints: tuple[VoterEndpoint, ...] = field(array(VoterEndpoint))
    kraft_version_feature: KRaftVersionFeature = field(nested(KRaftVersionFeature))


@header(versions="0-0", flexible="0+")
class VotersRecord:
    """Who the quorum is from now on (KIP-853)."""

    version: int = field(INT16)
    voters: tuple[Voter, ...] = field(array(Voter))
