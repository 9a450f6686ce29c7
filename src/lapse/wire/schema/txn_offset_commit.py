"""TxnOffsetCommit (key 28): offsets that count once the transaction commits (KIP-98).

v1 throttled after the answer is sent (KIP-219) · v2 leader epoch (KIP-320) · v3 flexible; the
group's member fences (KIP-447) · v4 TRANSACTION_ABORTABLE (KIP-890). v5 joins the transaction
implicitly and belongs to the feature `transaction.version`.
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

TXN_OFFSET_COMMIT = api(28, "TxnOffsetCommit", versions="0-4", flexible="3+")


@struct
class TxnOffsetCommitRequestPartition:
    """The next offset to read, and what the client wants to keep with it."""

    partition_index: int = field(INT32)
    committed_offset: int = field(INT64)
    committed_leader_epoch: int = field(INT32, "2+", default=-1, ignorable=True)
    committed_metadata: str | None = field(STRING, nullable="0+")


@struct
class TxnOffsetCommitRequestTopic:
    """Commits in one topic."""

    name: str = field(STRING)
    partitions: tuple[TxnOffsetCommitRequestPartition, ...] = field(
        array(TxnOffsetCommitRequestPartition)
    )


@request(TXN_OFFSET_COMMIT)
class TxnOffsetCommitRequest:
    """Sent to the group's coordinator; generation -1 leaves the member unchecked."""

    transactional_id: str = field(STRING)
    group_id: str = field(STRING)
    producer_id: int = field(INT64)
    producer_epoch: int = field(INT16)
    generation_id: int = field(INT32, "3+", default=-1)
    member_id: str = field(STRING, "3+", default="")
    group_instance_id: str | None = field(STRING, "3+", nullable="3+", default=None)
    topics: tuple[TxnOffsetCommitRequestTopic, ...] = field(array(TxnOffsetCommitRequestTopic))


@struct
class TxnOffsetCommitResponsePartition:
    """What became of one commit."""

    partition_index: int = field(INT32)
    error_code: int = field(INT16)


@struct
class TxnOffsetCommitResponseTopic:
    """What became of one topic's commits."""

    name: str = field(STRING)
    partitions: tuple[TxnOffsetCommitResponsePartition, ...] = field(
        array(TxnOffsetCommitResponsePartition)
    )


@response(TXN_OFFSET_COMMIT)
class TxnOffsetCommitResponse:
    """Answers per partition."""

    throttle_time_ms: int = field(INT32, default=0)
    topics: tuple[TxnOffsetCommitResponseTopic, ...] = field(array(TxnOffsetCommitResponseTopic))
