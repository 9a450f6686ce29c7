"""`__consumer_offsets`: committed offsets and groups, as Kafka 4.3 writes them.

Types 0 (before Kafka 0.9) and 1 are committed offsets, 2 groups of the classic protocol, 3 to 8
and 16 those of KIP-848 (`consumer_groups`). Share groups (KIP-932) and streams groups (KIP-1071)
are known by name and key; their values are carried along as bytes.

Values of a committed offset: v1 had an expiry of its own · v3 leader epoch (KIP-320) · v4 flexible,
topic id. Of a group: v1 rebalance timeout · v2 time of its last change · v3 static members
(KIP-345) · v4 flexible.
"""

from __future__ import annotations

import uuid

from lapse.coordination.records import consumer_groups
from lapse.coordination.records.consumer_groups import GroupKey, MemberKey
from lapse.coordination.records.entries import EntryType, Types
from lapse.wire.declaration import (
    BYTES,
    INT32,
    INT64,
    STRING,
    UUID,
    ZERO_UUID,
    array,
    field,
    header,
    struct,
)

TOPIC = "__consumer_offsets"


@header(versions="0-0", flexible="1+")
class OffsetCommitKey:
    """What an offset was committed for."""

    group: str = field(STRING)
    topic: str = field(STRING)
    partition: int = field(INT32)


@header(versions="0-4", flexible="4+")
class OffsetCommitValue:
    """An offset that a group committed; `expire_timestamp` -1 leaves that to the retention."""

    offset: int = field(INT64)
    leader_epoch: int = field(INT32, "3+", default=-1, ignorable=True)
    metadata: str = field(STRING)
    commit_timestamp: int = field(INT64)
    expire_timestamp: int = field(INT64, "1", default=-1, ignorable=True)
    topic_id: uuid.UUID = field(UUID, "4+", tag=0, default=ZERO_UUID, ignorable=True)


@header(versions="0-0", flexible="1+")
class GroupMetadataKey:
    """The name of a classic group."""

    group: str = field(STRING)


@struct
class MemberMetadata:
    """A member of a classic group; what it subscribed to and was given is its protocol's."""

    member_id: str = field(STRING)
    group_instance_id: str | None = field(STRING, "3+", nullable="3+", default=None, ignorable=True)
    client_id: str = field(STRING)
    client_host: str = field(STRING)
    rebalance_timeout: int = field(INT32, "1+", default=0, ignorable=True)
    session_timeout: int = field(INT32)
    subscription: bytes = field(BYTES)
    assignment: bytes = field(BYTES)


@header(versions="0-4", flexible="4+")
class GroupMetadataValue:
    """A classic group at the end of a rebalance; no members: an empty group."""

    protocol_type: str = field(STRING)
    generation: int = field(INT32)
    protocol: str | None = field(STRING, nullable="0+")
    leader: str | None = field(STRING, nullable="0+")
    current_state_timestamp: int = field(INT64, "2+", default=-1, ignorable=True)
    members: tuple[MemberMetadata, ...] = field(array(MemberMetadata))


# --- the table --------------------------------------------------------------------------------

OFFSET_COMMIT = EntryType(1, "OFFSET_COMMIT", OffsetCommitKey, OffsetCommitValue, 4)
GROUP_METADATA = EntryType(2, "GROUP_METADATA", GroupMetadataKey, GroupMetadataValue, 3)

_CARRIED = (
    EntryType(10, "SHARE_GROUP_MEMBER_METADATA", MemberKey, None),
    EntryType(11, "SHARE_GROUP_METADATA", GroupKey, None),
    EntryType(12, "SHARE_GROUP_TARGET_ASSIGNMENT_METADATA", GroupKey, None),
    EntryType(13, "SHARE_GROUP_TARGET_ASSIGNMENT_MEMBER", MemberKey, None),
    EntryType(14, "SHARE_GROUP_CURRENT_MEMBER_ASSIGNMENT", MemberKey, None),
    EntryType(15, "SHARE_GROUP_STATE_PARTITION_METADATA", GroupKey, None),
    EntryType(17, "STREAMS_GROUP_METADATA", GroupKey, None),
    EntryType(19, "STREAMS_GROUP_MEMBER_METADATA", MemberKey, None),
    EntryType(20, "STREAMS_GROUP_TARGET_ASSIGNMENT_METADATA", GroupKey, None),
    EntryType(21, "STREAMS_GROUP_TARGET_ASSIGNMENT_MEMBER", MemberKey, None),
    EntryType(22, "STREAMS_GROUP_CURRENT_MEMBER_ASSIGNMENT", MemberKey, None),
    EntryType(23, "STREAMS_GROUP_TOPOLOGY", GroupKey, None),
)

TYPES: Types = {
    kind.id: kind for kind in (OFFSET_COMMIT, GROUP_METADATA, *consumer_groups.TYPES, *_CARRIED)
} | {0: OFFSET_COMMIT}
