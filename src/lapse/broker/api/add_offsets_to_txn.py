"""AddOffsetsToTxn (key 25): a transaction is about to commit a group's offsets (KIP-98).

Behaviour: adds the partition of `__consumer_offsets` that looks after the group; that topic is made
if there is none.

v0-1 INVALID_PRODUCER_EPOCH · v2 PRODUCER_FENCED (KIP-588).
"""

from __future__ import annotations

from lapse.base.errors import ErrorCode, LapseError
from lapse.broker.services import Services, Session
from lapse.broker.transaction_coordinator import without_fenced
from lapse.coordination.transaction_state import ProducerIdAndEpoch
from lapse.wire.schema.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse

_FENCED_FROM = 2


async def handle(
    services: Services, _session: Session, version: int, request: AddOffsetsToTxnRequest
) -> AddOffsetsToTxnResponse:
    """Find the partition and add it."""
    try:
        partition = await services.groups.partition_of(request.group_id)
    except LapseError:
        return AddOffsetsToTxnResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
    producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
    error = await services.transactions.add_partitions(
        request.transactional_id, producer, (partition,)
    )
    told = error if version >= _FENCED_FROM else without_fenced(error)
    return AddOffsetsToTxnResponse(error_code=told)
