"""EndTxn (key 26): commits or aborts a transaction (KIP-98).

Needs WRITE transactional id.

Behaviour: the broker responds when the decision is in the transaction log; the markers are written
after that. Sending the request again is harmless.

Differs from Kafka: a request that comes by a connection older than the one by which its producer
speaks is not heeded, and that connection is closed: the network kept it, and it may be of an
earlier transaction. Kafka ends the one that is open then, half written, unless the client takes a
new epoch for each.

v0-1 INVALID_PRODUCER_EPOCH · v2 PRODUCER_FENCED (KIP-588) · v3-4 as v2.
"""

from __future__ import annotations

from lapse.broker.coordinators.late_requests import LateRequestError
from lapse.broker.coordinators.transactions import without_fenced
from lapse.broker.request.authorize import TRANSACTION_REFUSED, whole
from lapse.broker.request.context import CloseConnection, Services, Session
from lapse.broker.request.endpoint import Endpoint
from lapse.coordination.transactions.state import ProducerIdAndEpoch
from lapse.security.acls import Operation
from lapse.wire.schema.end_txn import END_TXN, EndTxnRequest, EndTxnResponse

_FENCED_FROM = 2


async def handle(
    services: Services, session: Session, version: int, request: EndTxnRequest
) -> EndTxnResponse:
    """Pass the decision to the transaction coordinator."""
    producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
    try:
        error = await services.transactions.end(
            request.transactional_id, producer, session.number, commit=request.committed
        )
    except LateRequestError as e:
        raise CloseConnection(str(e)) from e
    code = error if version >= _FENCED_FROM else without_fenced(error)
    return EndTxnResponse(error_code=code)


API = Endpoint(
    END_TXN,
    EndTxnRequest,
    EndTxnResponse,
    handle,
    whole(
        lambda caller, request: caller.may_transaction(Operation.WRITE, request.transactional_id),
        lambda _: EndTxnResponse(error_code=TRANSACTION_REFUSED),
    ),
)
