"""EndTxn (key 26): commits or aborts (KIP-98).

Behaviour: answered when the decision is in the transaction's log; the markers are written after
that. Asking again is harmless.

v0-1 INVALID_PRODUCER_EPOCH · v2 PRODUCER_FENCED (KIP-588) · v3-4 as v2.
"""

from __future__ import annotations

from lapse.broker.services import Services, Session
from lapse.broker.transaction_coordinator import without_fenced
from lapse.coordination.transaction_state import ProducerIdAndEpoch
from lapse.wire.schema.end_txn import EndTxnRequest, EndTxnResponse

_FENCED_FROM = 2


async def handle(
    services: Services, _session: Session, version: int, request: EndTxnRequest
) -> EndTxnResponse:
    """Ask the coordinator."""
    producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
    error = await services.transactions.end(
        request.transactional_id, producer, commit=request.committed
    )
    told = error if version >= _FENCED_FROM else without_fenced(error)
    return EndTxnResponse(error_code=told)
