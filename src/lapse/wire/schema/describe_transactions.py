"""DescribeTransactions (key 65): transactional ids and how they stand (KIP-664). v0 flexible."""

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

DESCRIBE_TRANSACTIONS = api(65, "DescribeTransactions", versions="0-0", flexible="0+")


@request(DESCRIBE_TRANSACTIONS)
class DescribeTransactionsRequest:
    """Asked of each id's coordinator."""

    transactional_ids: tuple[str, ...] = field(array(STRING))


@struct
class TopicData:
    """Partitions of one topic in the transaction."""

    topic: str = field(STRING)
    partitions: tuple[int, ...] = field(array(INT32))


@struct
class TransactionState:
    """One id; the start is -1 and `topics` empty while no transaction is open."""

    error_code: int = field(INT16)
    transactional_id: str = field(STRING)
    transaction_state: str = field(STRING)
    transaction_timeout_ms: int = field(INT32)
    transaction_start_time_ms: int = field(INT64)
    producer_id: int = field(INT64)
    producer_epoch: int = field(INT16)
    topics: tuple[TopicData, ...] = field(array(TopicData))


@response(DESCRIBE_TRANSACTIONS)
class DescribeTransactionsResponse:
    """Answers per transactional id."""

    throttle_time_ms: int = field(INT32, default=0)
    transaction_states: tuple[TransactionState, ...] = field(array(TransactionState))
