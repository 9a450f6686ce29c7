"""DescribeTransactions (key 65): transactional ids and their state (KIP-664).

Needs DESCRIBE transactional id; topics that may not be described are left out.

Behaviour: TRANSACTIONAL_ID_NOT_FOUND for an unknown one, INVALID_REQUEST for an empty one.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import Any

from lapse.broker.request.authorize import TRANSACTION_REFUSED, Caller, Handle, Items, each
from lapse.broker.request.context import Services, Session
from lapse.broker.request.endpoint import Endpoint
from lapse.broker.request.repeated import changed, for_each
from lapse.coordination.transactions.views import TransactionDescription
from lapse.security.acls import Operation
from lapse.wire.schema.describe_transactions import (
    DESCRIBE_TRANSACTIONS,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)


async def handle(
    services: Services, _session: Session, _version: int, request: DescribeTransactionsRequest
) -> DescribeTransactionsResponse:
    """Describe one id after the other."""
    found = await for_each(request.transactional_ids, services.transactions.describe)
    return DescribeTransactionsResponse(transaction_states=changed(found, _state))


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


# --- authorization --------------------------------------------------------------------------------


async def _authorize(caller: Caller, version: int, request: Any, handle: Handle) -> Any:
    """Leave out topics that the caller may not describe."""
    answer = await _describe_ids(caller, version, request, handle)

    def shown(state: TransactionState) -> TransactionState:
        topics = tuple(t for t in state.topics if caller.may_topic(Operation.DESCRIBE, t.topic))
        return replace(state, topics=topics)

    return replace(answer, transaction_states=changed(answer.transaction_states, shown))


def _undescribed_transaction(transactional_id: str) -> TransactionState:
    return TransactionState(
        error_code=TRANSACTION_REFUSED,
        transactional_id=transactional_id,
        transaction_state="",
        transaction_timeout_ms=0,
        transaction_start_time_ms=-1,
        producer_id=-1,
        producer_epoch=-1,
        topics=(),
    )


_describe_ids = each(
    Items(
        "transactional_ids",
        "transaction_states",
        lambda caller, name: caller.may_transaction(Operation.DESCRIBE, name),
        _undescribed_transaction,
    )
)


API = Endpoint(
    DESCRIBE_TRANSACTIONS,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    handle,
    _authorize,
)
