"""OffsetDelete (key 47): a group forgets offsets (KIP-496). Never flexible."""

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

OFFSET_DELETE = api(47, "OffsetDelete", versions="0-0", flexible="none")


@struct
class OffsetDeleteRequestPartition:
    """One partition."""

    partition_index: int = field(INT32)


@struct
class OffsetDeleteRequestTopic:
    """Partitions of one topic."""

    name: str = field(STRING)
    partitions: tuple[OffsetDeleteRequestPartition, ...] = field(
        array(OffsetDeleteRequestPartition)
    )


@request(OFFSET_DELETE)
class OffsetDeleteRequest:
    """What to forget."""

    group_id: str = field(STRING)
    topics: tuple[OffsetDeleteRequestTopic, ...] = field(array(OffsetDeleteRequestTopic))


@struct
class OffsetDeleteResponsePartition:
    """GROUP_SUBSCRIBED_TO_TOPIC while the group reads the topic."""

    partition_index: int = field(INT32)
    error_code: int = field(INT16)


@struct
class OffsetDeleteResponseTopic:
    """Answers for one topic."""

    name: str = field(STRING)
    partitions: tuple[OffsetDeleteResponsePartition, ...] = field(
        array(OffsetDeleteResponsePartition)
    )


@response(OFFSET_DELETE)
class OffsetDeleteResponse:
    """Answers per partition, unless there is an error for the whole."""

    error_code: int = field(INT16)
    throttle_time_ms: int = field(INT32, default=0, ignorable=True)
    topics: tuple[OffsetDeleteResponseTopic, ...] = field(array(OffsetDeleteResponseTopic))
