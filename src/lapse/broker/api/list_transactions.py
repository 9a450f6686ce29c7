"""ListTransactions (key 66): the transactional ids that this broker coordinates (KIP-664).

Needs DESCRIBE transactional id; other ids are left out.

Behaviour: all ids that pass every filter; COORDINATOR_LOAD_IN_PROGRESS while any partition of
`__transaction_state` is being read; INVALID_REGULAR_EXPRESSION for a pattern that is invalid in
RE2.

v0 states and producer ids · v1 a duration (KIP-994) · v2 a pattern (KIP-1152).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lapse.broker.request.authorize import Caller, Handle
from lapse.broker.request.context import Services, Session
from lapse.broker.request.endpoint import Endpoint
from lapse.coordination.transactions.views import TransactionFilter
from lapse.security.acls import Operation
from lapse.wire.schema.list_transactions import (
    LIST_TRANSACTIONS,
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)


async def handle(
    services: Services, _session: Session, _version: int, request: ListTransactionsRequest
) -> ListTransactionsResponse:
    """List through the transaction coordinator."""
    listing = services.transactions.list(
        TransactionFilter(
            tuple(request.state_filters),
            frozenset(request.producer_id_filters),
            request.duration_filter,
            request.transactional_id_pattern,
        )
    )
    return ListTransactionsResponse(
        error_code=listing.error,
        unknown_state_filters=listing.unknown_states,
        transaction_states=tuple(
            TransactionState(
                transactional_id=row.transactional_id,
                producer_id=row.producer_id,
                transaction_state=row.state,
            )
            for row in listing.transactions
        ),
    )


# --- authorization --------------------------------------------------------------------------------


async def _authorize(
    caller: Caller, _version: int, request: ListTransactionsRequest, handle: Handle
) -> Any:
    response = await handle(request)
    visible = tuple(
        state
        for state in response.transaction_states
        if caller.may_transaction(Operation.DESCRIBE, state.transactional_id)
    )
    return replace(response, transaction_states=visible)


API = Endpoint(
    LIST_TRANSACTIONS, ListTransactionsRequest, ListTransactionsResponse, handle, _authorize
)
