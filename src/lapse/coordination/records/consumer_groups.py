"""Entries of KIP-848's groups in `__consumer_offsets`: types 3 to 8 and 16.

A group's state is spread over many small entries, so that a heartbeat rewrites only what it
changed: the group's epoch, each member as it subscribed, the target assignment with the epoch it
was made for, and what each member holds now. Tables of them: `offsets.TYPES`.
"""

from __future__ import annotations

import uuid
from enum import IntEnum

from lapse.coordination.records.entries import EntryType
from lapse.wire.declaration import (
    BYTES,
    INT8,
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


class MemberState(IntEnum):
    """How far a member is with its assignment."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127


# --- keys: classes are shared, since the type is not in them -----------------------------------


@header(versions="0-0", flexible="1+")
class GroupKey:
    """One thing a group."""

    group_id: str = field(STRING)


@header(versions="0-0", flexible="1+")
class MemberKey:
    """One thing a member."""

    group_id: str = field(STRING)
    member_id: str = field(STRING)


@header(versions="0-0", flexible="1+")
class RegularExpressionKey:
    """A regular expression that members of a group subscribed with."""

    group_id: str = field(STRING)
    regular_expression: str = field(STRING)


# --- values -----------------------------------------------------------------------------------


@header(versions="0-0", flexible="0+")
class ConsumerGroupMetadataValue:
    """The group's epoch; the hash is of the topics it reads (KIP-1101)."""

    epoch: int = field(INT32)
    metadata_hash: int = field(INT64, tag=0, default=0)


@struct
class PartitionMetadata:
    """Racks of one partition's replicas."""

    partition: int = field(INT32)
    racks: tuple[str, ...] = field(array(STRING))


@struct
class TopicMetadata:
    """A topic as the group last saw it."""

    topic_id: uuid.UUID = field(UUID)
    topic_name: str = field(STRING)
    num_partitions: int = field(INT32)
    partition_metadata: tuple[PartitionMetadata, ...] = field(array(PartitionMetadata))


@header(versions="0-0", flexible="0+")
class ConsumerGroupPartitionMetadataValue:
    """Topics a group reads; Kafka 4.1 and later only remove it."""

    topics: tuple[TopicMetadata, ...] = field(array(TopicMetadata))


@struct
class ClassicProtocol:
    """A protocol that a member using the classic calls supports."""

    name: str = field(STRING)
    metadata: bytes = field(BYTES)


@struct
class ClassicMemberMetadata:
    """What a member said that joined a new group with the old calls."""

    session_timeout_ms: int = field(INT32, default=0)
    supported_protocols: tuple[ClassicProtocol, ...] = field(array(ClassicProtocol), default=())


@header(versions="0-0", flexible="0+")
class ConsumerGroupMemberMetadataValue:
    """A member as it subscribed."""

    instance_id: str | None = field(STRING, nullable="0+")
    rack_id: str | None = field(STRING, nullable="0+")
    client_id: str = field(STRING)
    client_host: str = field(STRING)
    subscribed_topic_names: tuple[str, ...] = field(array(STRING))
    subscribed_topic_regex: str | None = field(STRING, nullable="0+")
    rebalance_timeout_ms: int = field(INT32)
    server_assignor: str | None = field(STRING, nullable="0+")
    # Null for members that use the new calls: Kafka's default is an empty struct, so it is written.
    classic_member_metadata: ClassicMemberMetadata | None = field(
        nested(ClassicMemberMetadata), nullable="0+", tag=0, default=ClassicMemberMetadata()
    )


@header(versions="0-0", flexible="0+")
class ConsumerGroupTargetAssignmentMetadataValue:
    """The epoch a target assignment was made for."""

    assignment_epoch: int = field(INT32)
    assignment_timestamp: int = field(INT64, tag=0, default=0)


@struct
class TargetPartitions:
    """Partitions of a topic that a member is to have."""

    topic_id: uuid.UUID = field(UUID)
    partitions: tuple[int, ...] = field(array(INT32))


@header(versions="0-0", flexible="0+")
class ConsumerGroupTargetAssignmentMemberValue:
    """What a member is to have."""

    topic_partitions: tuple[TargetPartitions, ...] = field(array(TargetPartitions))


@struct
class AssignedPartitions:
    """Partitions of a topic that a member holds, and since which epochs."""

    topic_id: uuid.UUID = field(UUID)
    partitions: tuple[int, ...] = field(array(INT32))
    assignment_epochs: tuple[int, ...] | None = field(
        array(INT32), nullable="0+", tag=0, default=()
    )


@header(versions="0-0", flexible="0+")
class ConsumerGroupCurrentMemberAssignmentValue:
    """What a member holds now."""

    member_epoch: int = field(INT32)
    previous_member_epoch: int = field(INT32)
    state: int = field(INT8)
    assigned_partitions: tuple[AssignedPartitions, ...] = field(array(AssignedPartitions))
    partitions_pending_revocation: tuple[AssignedPartitions, ...] = field(array(AssignedPartitions))


@header(versions="0-0", flexible="0+")
class ConsumerGroupRegularExpressionValue:
    """The topics that a regular expression matched, at a version of the metadata."""

    topics: tuple[str, ...] = field(array(STRING))
    version: int = field(INT64)
    timestamp: int = field(INT64)


METADATA = EntryType(3, "CONSUMER_GROUP_METADATA", GroupKey, ConsumerGroupMetadataValue)
PARTITION_METADATA = EntryType(
    4, "CONSUMER_GROUP_PARTITION_METADATA", GroupKey, ConsumerGroupPartitionMetadataValue
)
MEMBER_METADATA = EntryType(
    5, "CONSUMER_GROUP_MEMBER_METADATA", MemberKey, ConsumerGroupMemberMetadataValue
)
TARGET_METADATA = EntryType(
    6,
    "CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA",
    GroupKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)
TARGET_MEMBER = EntryType(
    7,
    "CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER",
    MemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
)
CURRENT_MEMBER = EntryType(
    8,
    "CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT",
    MemberKey,
    ConsumerGroupCurrentMemberAssignmentValue,
)
REGULAR_EXPRESSION = EntryType(
    16,
    "CONSUMER_GROUP_REGULAR_EXPRESSION",
    RegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
)

TYPES = (
    METADATA,
    PARTITION_METADATA,
    MEMBER_METADATA,
    TARGET_METADATA,
    TARGET_MEMBER,
    CURRENT_MEMBER,
    REGULAR_EXPRESSION,
)
