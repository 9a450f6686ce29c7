"""ListPartitionReassignments (key 46): moves under way (KIP-455). v0 flexible."""

from __future__ import annotations

from lapse.wire.declaration import (
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

LIST_PARTITION_REASSIGNMENTS = api(46, "ListPartitionReassignments", versions="0-0", flexible="0+")


@struct
class ListPartitionReassignmentsTopics:
    """The requested partitions of a topic."""

    name: str = field(STRING)
    partition_indexes: tuple[int, ...] = field(array(INT32))


@request(LIST_PARTITION_REASSIGNMENTS)
class ListPartitionReassignmentsRequest:
    """`topics` null means all."""

    timeout_ms: int = field(INT32, default=60_000)
    topics: tuple[ListPartitionReassignmentsTopics, ...] | None = field(
        array(ListPartitionReassignmentsTopics), nullable="0+", default=None
    )


@struct
class OngoingPartitionReassignment:
    """All its replicas, and which of them come and go."""

    partition_index: int = field(INT32)
    replicas: tuple[int, ...] = field(array(INT32))
    adding_replicas: tuple[int, ...] = field(array(INT32))
    removing_replicas: tuple[int, ...] = field(array(INT32))


@struct
class OngoingTopicReassignment:
    """Moves in one topic."""

    name: str = field(STRING)
    partitions: tuple[OngoingPartitionReassignment, ...] = field(
        array(OngoingPartitionReassignment)
    )


@response(LIST_PARTITION_REASSIGNMENTS)
class ListPartitionReassignmentsResponse:
    """Only partitions that are moving."""

    throttle_time_ms: int = field(INT32, default=0)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    topics: tuple[OngoingTopicReassignment, ...] = field(array(OngoingTopicReassignment))
