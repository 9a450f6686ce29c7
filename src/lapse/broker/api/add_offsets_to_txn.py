"""AddOffsetsToTxn (key 25): a transaction is about to commit a group's offsets (KIP-98).

Needs WRITE transactional id; READ group.

Behaviour: adds the partition of `__consumer_offsets` that stores the group's offsets to the
transaction; the broker creates that topic if it does not exist.

v0-1 INVALID_PRODUCER_EPOCH · v2 PRODUCER_FENCED (KIP-588).
"""

from __future__ import annotations

from typing import Any

from lapse.base.errors import ErrorCode, LapseError
from lapse.broker.coordinators.late_requests import LateRequestError
from lapse.broker.coordinators.transactions import without_fenced
from lapse.broker.request.authorize import (
    GROUP_REFUSED,
    TRANSACTION_REFUSED,
    Caller,
    Handle,
    reads_group,
)
from lapse.broker.request.context import CloseConnection, Services, Session
from lapse.broker.request.endpoint import Endpoint
from lapse.coordination.transactions.state import ProducerIdAndEpoch
from lapse.security.acls import Operation
from lapse.wire.schema.add_offsets_to_txn import (
    ADD_OFFSETS_TO_TXN,
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)

_FENCED_FROM = 2


async def handle(
    services: Services, session: Session, version: int, request: AddOffsetsToTxnRequest
) -> AddOffsetsToTxnResponse:
    """Find the group's partition and add it to the transaction."""
    try:
        partition = await services.groups.partition_of(request.group_id)
    except LapseError:
        return AddOffsetsToTxnResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
    producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
    try:
        error = await services.transactions.add_partitions(
            request.transactional_id, producer, (partition,), session.number
        )
    except LateRequestError as e:
        raise CloseConnection(str(e)) from e
    code = error if version >= _FENCED_FROM else without_fenced(error)
    return AddOffsetsToTxnResponse(error_code=code)


# --- authorization --------------------------------------------------------------------------------


async def _authorize(
    caller: Caller, _version: int, request: AddOffsetsToTxnRequest, handle: Handle
) -> Any:
    if not caller.may_transaction(Operation.WRITE, request.transactional_id):
        return AddOffsetsToTxnResponse(error_code=TRANSACTION_REFUSED)
    if not reads_group(caller, request):
        return AddOffsetsToTxnResponse(error_code=GROUP_REFUSED)
    return await handle(request)


API = Endpoint(
    ADD_OFFSETS_TO_TXN, AddOffsetsToTxnRequest, AddOffsetsToTxnResponse, handle, _authorize
)
