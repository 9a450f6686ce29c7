"""Produce (key 0): record batches to append, per partition.

v0 messages of format v0 · v1 throttle time · v2 messages of format v1, log append time in the
answer (KIP-32) · v3 record format v2 and transactions (KIP-98) · v5 log start offset in the answer
· v7 zstd (KIP-110) · v8 record errors (KIP-467) · v9 flexible · v10 new leader in the answer
(KIP-951) · v11, v12 as v10 (KIP-890): where the feature `transaction.version` is on, v12 joins a
partition to a transaction by writing to it · v13 topic ids (KIP-516).
"""

from __future__ import annotations

import uuid

from lapse.wire.declaration import (
    INT16,
    INT32,
    INT64,
    RECORDS,
    STRING,
    UUID,
    ZERO_UUID,
    api,
    array,
    field,
    nested,
    request,
    response,
    struct,
)

PRODUCE = api(0, "Produce", versions="0-13", flexible="9+")


@struct
class PartitionProduceData:
    """Batches for one partition; decoded, they are a view of the frame."""

    index: int = field(INT32)
    records: bytes | memoryview | None = field(RECORDS, nullable="0+")


@struct
class TopicProduceData:
    """Batches for one topic, by name, from v13 on by id."""

    name: str = field(STRING, "0-12", default="", ignorable=True)
    topic_id: uuid.UUID = field(UUID, "13+", default=ZERO_UUID, ignorable=True)
    partition_data: tuple[PartitionProduceData, ...] = field(array(PartitionProduceData))


@request(PRODUCE)
class ProduceRequest:
    """`acks` is 0 (no answer at all), 1 (leader) or -1 (all in sync)."""

    transactional_id: str | None = field(STRING, "3+", nullable="3+", default=None)
    acks: int = field(INT16)
    timeout_ms: int = field(INT32)
    topic_data: tuple[TopicProduceData, ...] = field(array(TopicProduceData))


@struct
class BatchIndexAndErrorMessage:
    """A record that made its batch fail, by its index in the batch."""

    batch_index: int = field(INT32, "8+")
    batch_index_error_message: str | None = field(STRING, "8+", nullable="8+", default=None)


@struct
class LeaderIdAndEpoch:
    """The current leader, sent with NOT_LEADER_OR_FOLLOWER; -1 where unknown."""

    leader_id: int = field(INT32, "10+", default=-1)
    leader_epoch: int = field(INT32, "10+", default=-1)


@struct
class PartitionProduceResponse:
    """What became of one partition's batches.

    `log_append_time_ms` is -1 on CreateTime topics.
    """

    index: int = field(INT32)
    error_code: int = field(INT16)
    base_offset: int = field(INT64)
    log_append_time_ms: int = field(INT64, "2+", default=-1, ignorable=True)
    log_start_offset: int = field(INT64, "5+", default=-1, ignorable=True)
    record_errors: tuple[BatchIndexAndErrorMessage, ...] = field(
        array(BatchIndexAndErrorMessage), "8+", default=(), ignorable=True
    )
    error_message: str | None = field(STRING, "8+", nullable="8+", default=None, ignorable=True)
    current_leader: LeaderIdAndEpoch = field(
        nested(LeaderIdAndEpoch), "10+", tag=0, default=LeaderIdAndEpoch()
    )


@struct
class TopicProduceResponse:
    """What became of one topic's batches; the topic as the request names it."""

    name: str = field(STRING, "0-12", default="", ignorable=True)
    topic_id: uuid.UUID = field(UUID, "13+", default=ZERO_UUID, ignorable=True)
    partition_responses: tuple[PartitionProduceResponse, ...] = field(
        array(PartitionProduceResponse)
    )


@struct
class NodeEndpoint:
    """Address of a broker named in `current_leader`."""

    node_id: int = field(INT32, "10+")
    host: str = field(STRING, "10+")
    port: int = field(INT32, "10+")
    rack: str | None = field(STRING, "10+", nullable="10+", default=None)


@response(PRODUCE)
class ProduceResponse:
    """Answers per partition; none is sent at all for `acks` 0."""

    responses: tuple[TopicProduceResponse, ...] = field(array(TopicProduceResponse))
    throttle_time_ms: int = field(INT32, "1+", default=0, ignorable=True)
    node_endpoints: tuple[NodeEndpoint, ...] = field(array(NodeEndpoint), "10+", tag=0, default=())
