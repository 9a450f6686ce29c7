"""DescribeProducers (key 61): the producers a log remembers (KIP-664). v0 flexible."""

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

DESCRIBE_PRODUCERS = api(61, "DescribeProducers", versions="0-0", flexible="0+")


@struct
class TopicRequest:
    """The requested partitions of a topic."""

    name: str = field(STRING)
    partition_indexes: tuple[int, ...] = field(array(INT32))


@request(DESCRIBE_PRODUCERS)
class DescribeProducersRequest:
    """Asked of each partition's leader."""

    topics: tuple[TopicRequest, ...] = field(array(TopicRequest))


@struct
class ProducerState:
    """A producer; an open transaction's first offset, or -1.

    `last_sequence` and `last_timestamp` are of its last batch. The epoch is wider than anywhere
    else.
    """

    producer_id: int = field(INT64)
    producer_epoch: int = field(INT32)
    last_sequence: int = field(INT32, default=-1)
    last_timestamp: int = field(INT64, default=-1)
    coordinator_epoch: int = field(INT32)
    current_txn_start_offset: int = field(INT64, default=-1)


@struct
class PartitionResponse:
    """One log's producers."""

    partition_index: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)
    active_producers: tuple[ProducerState, ...] = field(array(ProducerState))


@struct
class TopicResponse:
    """Answers for one topic."""

    name: str = field(STRING)
    partitions: tuple[PartitionResponse, ...] = field(array(PartitionResponse))


@response(DESCRIBE_PRODUCERS)
class DescribeProducersResponse:
    """Answers per partition."""

    throttle_time_ms: int = field(INT32, default=0)
    topics: tuple[TopicResponse, ...] = field(array(TopicResponse))
