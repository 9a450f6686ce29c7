"""ListOffsets (key 2): the offset for a timestamp.

v0 offsets of segments, before KIP-79 · v1 one offset a partition · v2 isolation level (KIP-98) · v4
leader epoch (KIP-320) · v6 flexible · v7 max timestamp (KIP-734) · v8 local log start (KIP-405) ·
v9 last tiered offset (KIP-1005) · v10 timeout (KIP-1075).

Our own: from v6 on a client says by tag 10000 which of a record's times it means, and an answer
that goes by it says so too. Kafka's brokers skip tags that they do not know, and answer as ever.
"""

from __future__ import annotations

from lapse.wire.declaration import (
    INT8,
    INT16,
    INT32,
    INT64,
    OWN_TAG,
    STRING,
    api,
    array,
    field,
    request,
    response,
    struct,
)

LIST_OFFSETS = api(2, "ListOffsets", versions="0-10", flexible="6+")

# Timestamps that stand for a place in the log.
LATEST_TIMESTAMP = -1
EARLIEST_TIMESTAMP = -2
MAX_TIMESTAMP = -3  # v7+
EARLIEST_LOCAL_TIMESTAMP = -4  # v8+
LATEST_TIERED_TIMESTAMP = -5  # v9+

# What a timestamp is compared with (`by`).
BY_TIMESTAMP = 0  # what readers are shown: Kafka's lookup
BY_AGE = 1  # the same, and the append time of records without one
BY_APPEND = 2  # the append time of all, to the second


@struct
class ListOffsetsPartition:
    """One lookup; the timestamp may be one of the negative constants above.

    `max_num_offsets` is how many offsets an answer of v0 may have.
    """

    partition_index: int = field(INT32)
    current_leader_epoch: int = field(INT32, "4+", default=-1, ignorable=True)
    timestamp: int = field(INT64)
    max_num_offsets: int = field(INT32, "0", default=1)


@struct
class ListOffsetsTopic:
    """Lookups in one topic."""

    name: str = field(STRING)
    partitions: tuple[ListOffsetsPartition, ...] = field(array(ListOffsetsPartition))


@request(LIST_OFFSETS)
class ListOffsetsRequest:
    """`replica_id` is -1 for consumers; `by` is ours, one of the constants above."""

    replica_id: int = field(INT32)
    isolation_level: int = field(INT8, "2+", default=0)
    topics: tuple[ListOffsetsTopic, ...] = field(array(ListOffsetsTopic))
    timeout_ms: int = field(INT32, "10+", default=0, ignorable=True)
    by: int = field(INT8, "6+", tag=OWN_TAG, default=BY_TIMESTAMP)


@struct
class ListOffsetsPartitionResponse:
    """The first offset at or after the timestamp; -1 and -1 where there is none.

    In v0 `old_style_offsets`, descending: the end of the log and where its segments begin.
    """

    partition_index: int = field(INT32)
    error_code: int = field(INT16)
    old_style_offsets: tuple[int, ...] = field(array(INT64), "0", default=())
    timestamp: int = field(INT64, "1+", default=-1)
    offset: int = field(INT64, "1+", default=-1)
    leader_epoch: int = field(INT32, "4+", default=-1)


@struct
class ListOffsetsTopicResponse:
    """Answers for one topic."""

    name: str = field(STRING)
    partitions: tuple[ListOffsetsPartitionResponse, ...] = field(
        array(ListOffsetsPartitionResponse)
    )


@response(LIST_OFFSETS)
class ListOffsetsResponse:
    """Answers per partition; `by` is ours, what they go by."""

    throttle_time_ms: int = field(INT32, "2+", default=0, ignorable=True)
    topics: tuple[ListOffsetsTopicResponse, ...] = field(array(ListOffsetsTopicResponse))
    by: int = field(INT8, "6+", tag=OWN_TAG, default=BY_TIMESTAMP)
