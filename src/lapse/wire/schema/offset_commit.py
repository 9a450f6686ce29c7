"""OffsetCommit (key 8): how far a group has come.

v2 the oldest still spoken, with a retention time · v3 throttle time · v4 throttled after the answer
is sent (KIP-219) · v5 no retention time (KIP-211) · v6 leader epoch (KIP-320) · v7 static members
(KIP-345) · v8 flexible · v9 groups of the new protocol (KIP-848). v10 has topic ids.
"""

from __future__ import annotations

from lapse.wire.declaration import (
    INT16,
    INT32,
    INT64,
    STRING,
    api,
    array,
    field,
    request,
    response,
    struct,
)

OFFSET_COMMIT = api(8, "OffsetCommit", versions="2-9", flexible="8+")


@struct
class OffsetCommitRequestPartition:
    """The next offset to read, and what the client wants to keep with it."""

    partition_index: int = field(INT32)
    committed_offset: int = field(INT64)
    committed_leader_epoch: int = field(INT32, "6+", default=-1, ignorable=True)
    committed_metadata: str | None = field(STRING, nullable="0+")


@struct
class OffsetCommitRequestTopic:
    """Commits in one topic."""

    name: str = field(STRING, "0-9")
    partitions: tuple[OffsetCommitRequestPartition, ...] = field(
        array(OffsetCommitRequestPartition)
    )


@request(OFFSET_COMMIT)
class OffsetCommitRequest:
    """Generation -1 and an empty member id: a commit from outside the group.

    With the new protocol the generation is the member's epoch.
    """

    group_id: str = field(STRING)
    generation_id_or_member_epoch: int = field(INT32, "1+", default=-1)
    member_id: str = field(STRING, "1+")
    group_instance_id: str | None = field(STRING, "7+", nullable="7+", default=None)
    retention_time_ms: int = field(INT64, "2-4", default=-1, ignorable=True)
    topics: tuple[OffsetCommitRequestTopic, ...] = field(array(OffsetCommitRequestTopic))


@struct
class OffsetCommitResponsePartition:
    """What became of one commit."""

    partition_index: int = field(INT32)
    error_code: int = field(INT16)


@struct
class OffsetCommitResponseTopic:
    """What became of one topic's commits."""

    name: str = field(STRING, "0-9")
    partitions: tuple[OffsetCommitResponsePartition, ...] = field(
        array(OffsetCommitResponsePartition)
    )


@response(OFFSET_COMMIT)
class OffsetCommitResponse:
    """Answers per partition; there is no error for the whole."""

    throttle_time_ms: int = field(INT32, "3+", default=0, ignorable=True)
    topics: tuple[OffsetCommitResponseTopic, ...] = field(array(OffsetCommitResponseTopic))
