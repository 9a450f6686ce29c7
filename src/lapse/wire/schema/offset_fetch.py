"""OffsetFetch (key 9): a client requests a group's committed offsets.

v1 from `__consumer_offsets` · v2 null topics means all; an error for the whole · v3 throttle time ·
v4 throttled after the answer is sent (KIP-219) · v5 leader epoch (KIP-320) · v6 flexible · v7 only
stable offsets (KIP-447) · v8 several groups at once (KIP-709) · v9 groups of the new protocol
(KIP-848). v10 has topic ids.
"""

from __future__ import annotations

from lapse.wire.declaration import (
    BOOL,
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

OFFSET_FETCH = api(9, "OffsetFetch", versions="1-9", flexible="6+")


@struct
class OffsetFetchRequestTopic:
    """The requested partitions of a topic, up to v7."""

    name: str = field(STRING, "0-7")
    partition_indexes: tuple[int, ...] = field(array(INT32), "0-7")


@struct
class OffsetFetchRequestTopics:
    """The requested partitions of a topic, from v8."""

    name: str = field(STRING, "8-9")
    partition_indexes: tuple[int, ...] = field(array(INT32), "8+")


@struct
class OffsetFetchRequestGroup:
    """A requested group; `topics` null means all. The member is checked if named."""

    group_id: str = field(STRING, "8+")
    member_id: str | None = field(STRING, "9+", nullable="9+", default=None, ignorable=True)
    member_epoch: int = field(INT32, "9+", default=-1, ignorable=True)
    topics: tuple[OffsetFetchRequestTopics, ...] | None = field(
        array(OffsetFetchRequestTopics), "8+", nullable="8+"
    )


@request(OFFSET_FETCH)
class OffsetFetchRequest:
    """Up to v7 one group, from v8 `groups`.

    With `require_stable` an offset that an open transaction is about to move is
    UNSTABLE_OFFSET_COMMIT.
    """

    group_id: str = field(STRING, "0-7", default="")
    topics: tuple[OffsetFetchRequestTopic, ...] | None = field(
        array(OffsetFetchRequestTopic), "0-7", nullable="2-7", default=()
    )
    groups: tuple[OffsetFetchRequestGroup, ...] = field(
        array(OffsetFetchRequestGroup), "8+", default=()
    )
    require_stable: bool = field(BOOL, "7+", default=False)


@struct
class OffsetFetchResponsePartition:
    """What is committed, up to v7; offset -1 where nothing is."""

    partition_index: int = field(INT32, "0-7")
    committed_offset: int = field(INT64, "0-7")
    committed_leader_epoch: int = field(INT32, "5-7", default=-1, ignorable=True)
    metadata: str | None = field(STRING, "0-7", nullable="0-7")
    error_code: int = field(INT16, "0-7")


@struct
class OffsetFetchResponseTopic:
    """One topic's offsets, up to v7."""

    name: str = field(STRING, "0-7")
    partitions: tuple[OffsetFetchResponsePartition, ...] = field(
        array(OffsetFetchResponsePartition), "0-7"
    )


@struct
class OffsetFetchResponsePartitions:
    """What is committed, from v8; offset -1 where nothing is."""

    partition_index: int = field(INT32, "8+")
    committed_offset: int = field(INT64, "8+")
    committed_leader_epoch: int = field(INT32, "8+", default=-1)
    metadata: str | None = field(STRING, "8+", nullable="8+")
    error_code: int = field(INT16, "8+")


@struct
class OffsetFetchResponseTopics:
    """One topic's offsets, from v8."""

    name: str = field(STRING, "8-9")
    partitions: tuple[OffsetFetchResponsePartitions, ...] = field(
        array(OffsetFetchResponsePartitions), "8+"
    )


@struct
class OffsetFetchResponseGroup:
    """One group's offsets."""

    group_id: str = field(STRING, "8+")
    topics: tuple[OffsetFetchResponseTopics, ...] = field(array(OffsetFetchResponseTopics), "8+")
    error_code: int = field(INT16, "8+", default=0)


@response(OFFSET_FETCH)
class OffsetFetchResponse:
    """Up to v7 one group's offsets, from v8 `groups`."""

    throttle_time_ms: int = field(INT32, "3+", default=0, ignorable=True)
    topics: tuple[OffsetFetchResponseTopic, ...] = field(
        array(OffsetFetchResponseTopic), "0-7", default=()
    )
    error_code: int = field(INT16, "2-7", default=0, ignorable=True)
    groups: tuple[OffsetFetchResponseGroup, ...] = field(
        array(OffsetFetchResponseGroup), "8+", default=()
    )
