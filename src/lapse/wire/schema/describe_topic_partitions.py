"""DescribeTopicPartitions (key 75): Metadata of topics in pages, sorted by name (KIP-966).

v0 flexible.
"""

from __future__ import annotations

import uuid

from lapse.wire.declaration import (
    BOOL,
    INT16,
    INT32,
    STRING,
    UUID,
    api,
    array,
    field,
    nested,
    request,
    response,
    struct,
)
from lapse.wire.schema.metadata import OPERATIONS_UNKNOWN

DESCRIBE_TOPIC_PARTITIONS = api(75, "DescribeTopicPartitions", versions="0-0", flexible="0+")


@struct
class TopicRequest:
    """A requested topic."""

    name: str = field(STRING)


@struct
class Cursor:
    """The first partition of a page."""

    topic_name: str = field(STRING)
    partition_index: int = field(INT32)


@request(DESCRIBE_TOPIC_PARTITIONS)
class DescribeTopicPartitionsRequest:
    """Null cursor: from the first one on."""

    topics: tuple[TopicRequest, ...] = field(array(TopicRequest))
    response_partition_limit: int = field(INT32, default=2000)
    cursor: Cursor | None = field(nested(Cursor), nullable="0+", default=None)


@struct
class DescribeTopicPartitionsResponsePartition:
    """Who leads a partition and who follows; leader -1 while there is none.

    The two lists of eligible leaders are null where there are none of that kind.
    """

    error_code: int = field(INT16)
    partition_index: int = field(INT32)
    leader_id: int = field(INT32)
    leader_epoch: int = field(INT32, default=-1)
    replica_nodes: tuple[int, ...] = field(array(INT32))
    isr_nodes: tuple[int, ...] = field(array(INT32))
    eligible_leader_replicas: tuple[int, ...] | None = field(
        array(INT32), nullable="0+", default=None
    )
    last_known_elr: tuple[int, ...] | None = field(array(INT32), nullable="0+", default=None)
    offline_replicas: tuple[int, ...] = field(array(INT32))


@struct
class DescribeTopicPartitionsResponseTopic:
    """One topic, or the part of it on this page."""

    error_code: int = field(INT16)
    name: str | None = field(STRING, nullable="0+")
    topic_id: uuid.UUID = field(UUID)
    is_internal: bool = field(BOOL, default=False)
    partitions: tuple[DescribeTopicPartitionsResponsePartition, ...] = field(
        array(DescribeTopicPartitionsResponsePartition)
    )
    topic_authorized_operations: int = field(INT32, default=OPERATIONS_UNKNOWN)


@response(DESCRIBE_TOPIC_PARTITIONS)
class DescribeTopicPartitionsResponse:
    """A page; `next_cursor` is null on the last."""

    throttle_time_ms: int = field(INT32, default=0, ignorable=True)
    topics: tuple[DescribeTopicPartitionsResponseTopic, ...] = field(
        array(DescribeTopicPartitionsResponseTopic)
    )
    next_cursor: Cursor | None = field(nested(Cursor), nullable="0+", default=None)
