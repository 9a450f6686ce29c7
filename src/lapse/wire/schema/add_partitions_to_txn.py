"""AddPartitionsToTxn (key 24): partitions that a transaction is about to write (KIP-98).

v1 throttled after the answer is sent (KIP-219) · v2 PRODUCER_FENCED (KIP-588) · v3 flexible. v4 is
for brokers and puts several transactions in one request; v5 belongs to the feature
`transaction.version` (KIP-890). Our own: by tag 10000 a broker only asks whether they are in it.
"""

from __future__ import annotations

from lapse.wire.declaration import (
    BOOL,
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

ADD_PARTITIONS_TO_TXN = api(24, "AddPartitionsToTxn", versions="0-3", flexible="3+")


@struct
class AddPartitionsToTxnTopic:
    """Partitions of one topic."""

    name: str = field(STRING)
    partitions: tuple[int, ...] = field(array(INT32))


@request(ADD_PARTITIONS_TO_TXN)
class AddPartitionsToTxnRequest:
    """The names say which versions have the fields: v4 moved them into a list."""

    v3_and_below_transactional_id: str = field(STRING, "0-3")
    v3_and_below_producer_id: int = field(INT64, "0-3")
    v3_and_below_producer_epoch: int = field(INT16, "0-3")
    v3_and_below_topics: tuple[AddPartitionsToTxnTopic, ...] = field(
        array(AddPartitionsToTxnTopic), "0-3"
    )
    verify_only: bool = field(BOOL, "3+", tag=OWN_TAG, default=False, ignorable=True)


@struct
class AddPartitionsToTxnPartitionResult:
    """What became of one partition."""

    partition_index: int = field(INT32)
    partition_error_code: int = field(INT16)


@struct
class AddPartitionsToTxnTopicResult:
    """Answers for one topic."""

    name: str = field(STRING)
    results_by_partition: tuple[AddPartitionsToTxnPartitionResult, ...] = field(
        array(AddPartitionsToTxnPartitionResult)
    )


@response(ADD_PARTITIONS_TO_TXN)
class AddPartitionsToTxnResponse:
    """Answers per partition.

    If one fails, none is added, and the others say OPERATION_NOT_ATTEMPTED.
    """

    throttle_time_ms: int = field(INT32, default=0)
    results_by_topic_v3_and_below: tuple[AddPartitionsToTxnTopicResult, ...] = field(
        array(AddPartitionsToTxnTopicResult), "0-3"
    )
