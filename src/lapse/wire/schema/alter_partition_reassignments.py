"""AlterPartitionReassignments (key 45): replicas move to other brokers (KIP-455).

v0 flexible · v1 a change of the replication factor may be forbidden (KIP-860).
"""

from __future__ import annotations

from lapse.wire.declaration import (
    BOOL,
    INT16,
    INT32,
    STRING,
    api,
    array,
    field,
    request,
    response,
    struct,
)

ALTER_PARTITION_REASSIGNMENTS = api(
    45, "AlterPartitionReassignments", versions="0-1", flexible="0+"
)


@struct
class ReassignablePartition:
    """Where its replicas shall be; null calls off a move under way."""

    partition_index: int = field(INT32)
    replicas: tuple[int, ...] | None = field(array(INT32), nullable="0+", default=None)


@struct
class ReassignableTopic:
    """Moves in one topic."""

    name: str = field(STRING)
    partitions: tuple[ReassignablePartition, ...] = field(array(ReassignablePartition))


@request(ALTER_PARTITION_REASSIGNMENTS)
class AlterPartitionReassignmentsRequest:
    """Answered when the moves have begun."""

    timeout_ms: int = field(INT32, default=60_000)
    allow_replication_factor_change: bool = field(BOOL, "1+", default=True)
    topics: tuple[ReassignableTopic, ...] = field(array(ReassignableTopic))


@struct
class ReassignablePartitionResponse:
    """What became of one partition."""

    partition_index: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")


@struct
class ReassignableTopicResponse:
    """Answers for one topic."""

    name: str = field(STRING)
    partitions: tuple[ReassignablePartitionResponse, ...] = field(
        array(ReassignablePartitionResponse)
    )


@response(ALTER_PARTITION_REASSIGNMENTS)
class AlterPartitionReassignmentsResponse:
    """Answers per partition."""

    throttle_time_ms: int = field(INT32, default=0)
    allow_replication_factor_change: bool = field(BOOL, "1+", default=True, ignorable=True)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    responses: tuple[ReassignableTopicResponse, ...] = field(array(ReassignableTopicResponse))
