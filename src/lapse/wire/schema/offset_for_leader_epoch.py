"""OffsetForLeaderEpoch (key 23): where a leader epoch ended (KIP-101, KIP-279).

v2 the oldest still spoken: the caller's leader epoch fences (KIP-320) · v3 replica id · v4
flexible.
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

OFFSET_FOR_LEADER_EPOCH = api(23, "OffsetForLeaderEpoch", versions="2-4", flexible="4+")


@struct
class OffsetForLeaderPartition:
    """`current_leader_epoch` fences the caller, `leader_epoch` is the one in question."""

    partition: int = field(INT32)
    current_leader_epoch: int = field(INT32, "2+", default=-1)
    leader_epoch: int = field(INT32)


@struct
class OffsetForLeaderTopic:
    """Questions about one topic."""

    topic: str = field(STRING)
    partitions: tuple[OffsetForLeaderPartition, ...] = field(array(OffsetForLeaderPartition))


@request(OFFSET_FOR_LEADER_EPOCH)
class OffsetForLeaderEpochRequest:
    """Replica id -1 is a consumer, which sees nothing above the high watermark.

    -2 is one that may: it stands for followers in versions without the field.
    """

    replica_id: int = field(INT32, "3+", default=-2, ignorable=True)
    topics: tuple[OffsetForLeaderTopic, ...] = field(array(OffsetForLeaderTopic))


@struct
class EpochEndOffset:
    """The largest epoch not above the requested one, and the offset after its end.

    Both are -1 where it is not known.
    """

    error_code: int = field(INT16)
    partition: int = field(INT32)
    leader_epoch: int = field(INT32, "1+", default=-1)
    end_offset: int = field(INT64, default=-1)


@struct
class OffsetForLeaderTopicResult:
    """Answers for one topic."""

    topic: str = field(STRING)
    partitions: tuple[EpochEndOffset, ...] = field(array(EpochEndOffset))


@response(OFFSET_FOR_LEADER_EPOCH)
class OffsetForLeaderEpochResponse:
    """Answers per partition."""

    throttle_time_ms: int = field(INT32, "2+", default=0, ignorable=True)
    topics: tuple[OffsetForLeaderTopicResult, ...] = field(array(OffsetForLeaderTopicResult))
