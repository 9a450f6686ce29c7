"""DescribeTransactions (key 65): transactional ids and how they stand (KIP-664).

Behaviour: TRANSACTIONAL_ID_NOT_FOUND for one that nobody uses, INVALID_REQUEST for an empty one.
"""

from __future__ import annotations

from itertools import groupby

from lapse.broker.services import Services, Session
from lapse.coordination.transaction_views import TransactionDescription
from lapse.wire.schema.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)


async def handle(
    services: Services, _session: Session, _version: int, request: DescribeTransactionsRequest
) -> DescribeTransactionsResponse:
    """One id after the other."""
    found = [await services.transactions.describe(name) for name in request.transactional_ids]
    return DescribeTransactionsResponse(transaction_states=tuple(map(_state, found)))


def _state(found: TransactionDescription) -> TransactionState:
    topics = groupby(found.partitions, key=lambda tp: tp.topic)
    return TransactionState(
        error_code=found.error,
        transactional_id=found.transactional_id,
        transaction_state=found.state,
        transaction_timeout_ms=found.timeout_ms,
        transaction_start_time_ms=found.start_ms,
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        topics=tuple(
            TopicData(topic=name, partitions=tuple(tp.partition for tp in partitions))
            for name, partitions in topics
        ),
    )
