"""ElectLeaders (key 43): leaders are elected now (KIP-183).

v1 unclean elections, an error for the whole (KIP-460) · v2 flexible.
"""

from __future__ import annotations

from lapse.wire.declaration import (
    INT8,
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

ELECT_LEADERS = api(43, "ElectLeaders", versions="0-2", flexible="2+")


@struct
class TopicPartitions:
    """Partitions of one topic."""

    topic: str = field(STRING)
    partitions: tuple[int, ...] = field(array(INT32))


@request(ELECT_LEADERS)
class ElectLeadersRequest:
    """`election_type` 0 is preferred, 1 unclean; `topic_partitions` null means all."""

    election_type: int = field(INT8, "1+", default=0)
    topic_partitions: tuple[TopicPartitions, ...] | None = field(
        array(TopicPartitions), nullable="0+"
    )
    timeout_ms: int = field(INT32, default=60_000)


@struct
class PartitionResult:
    """What became of one partition."""

    partition_id: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")


@struct
class ReplicaElectionResult:
    """Answers for one topic."""

    topic: str = field(STRING)
    partition_result: tuple[PartitionResult, ...] = field(array(PartitionResult))


@response(ELECT_LEADERS)
class ElectLeadersResponse:
    """Answers per partition."""

    throttle_time_ms: int = field(INT32, default=0)
    error_code: int = field(INT16, "1+", default=0)
    replica_election_results: tuple[ReplicaElectionResult, ...] = field(
        array(ReplicaElectionResult)
    )
