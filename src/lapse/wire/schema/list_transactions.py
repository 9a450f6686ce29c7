"""ListTransactions (key 66): the transactional ids that this broker coordinates (KIP-664).

v0 flexible · v1 only those that run longer than a time in ms (KIP-994) · v2 only those whose id
matches a regular expression (KIP-1152).
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

LIST_TRANSACTIONS = api(66, "ListTransactions", versions="0-2", flexible="0+")


@request(LIST_TRANSACTIONS)
class ListTransactionsRequest:
    """An empty filter, a negative duration and a null pattern let all pass."""

    state_filters: tuple[str, ...] = field(array(STRING))
    producer_id_filters: tuple[int, ...] = field(array(INT64))
    duration_filter: int = field(INT64, "1+", default=-1)
    transactional_id_pattern: str | None = field(STRING, "2+", nullable="2+", default=None)


@struct
class TransactionState:
    """One transactional id."""

    transactional_id: str = field(STRING)
    producer_id: int = field(INT64)
    transaction_state: str = field(STRING)


@response(LIST_TRANSACTIONS)
class ListTransactionsResponse:
    """States that are no states come back in `unknown_state_filters`."""

    throttle_time_ms: int = field(INT32, default=0)
    error_code: int = field(INT16)
    unknown_state_filters: tuple[str, ...] = field(array(STRING))
    transaction_states: tuple[TransactionState, ...] = field(array(TransactionState))
