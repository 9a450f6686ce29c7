"""InitProducerId (key 22): an identity for an idempotent or a transactional producer (KIP-98).

Needs WRITE transactional id; without one IDEMPOTENT_WRITE cluster, or WRITE some topic.

Behaviour: without a transactional id every request gets a new producer id with epoch 0, also a
request that names its earlier id (KIP-360), as in Kafka; COORDINATOR_LOAD_IN_PROGRESS, which
clients retry, where the metadata store cannot be written. With one, the previous producer of the id
is fenced, and a transaction that it left open is aborted: CONCURRENT_TRANSACTIONS until that is
done. INVALID_TRANSACTION_TIMEOUT above `transaction.max.timeout.ms`; INVALID_REQUEST for an empty
id.

v0-2 the same · v3 the producer may name its id and epoch · v4 PRODUCER_FENCED (KIP-588), before it
INVALID_PRODUCER_EPOCH.
"""

from __future__ import annotations

from typing import Any

from lapse.base.errors import ErrorCode
from lapse.broker.coordinators.transactions import without_fenced
from lapse.broker.request.authorize import CLUSTER_REFUSED, TRANSACTION_REFUSED, Caller, Handle
from lapse.broker.request.context import Services, Session
from lapse.broker.request.endpoint import Endpoint
from lapse.coordination.transactions.state import NO_EPOCH, NO_ID, ProducerIdAndEpoch
from lapse.security.acls import Operation, ResourceType
from lapse.wire.schema.init_producer_id import (
    INIT_PRODUCER_ID,
    InitProducerIdRequest,
    InitProducerIdResponse,
)

_FENCED_FROM = 4


async def handle(
    services: Services, session: Session, version: int, request: InitProducerIdRequest
) -> InitProducerIdResponse:
    """Call the transaction coordinator, which also allocates producer ids."""
    named = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
    result = await services.transactions.init_producer_id(
        request.transactional_id,
        request.transaction_timeout_ms,
        None if named == ProducerIdAndEpoch(NO_ID, NO_EPOCH) else named,
        session.number,
    )
    error = result.error if version >= _FENCED_FROM else without_fenced(result.error)
    if error is not ErrorCode.NONE:
        return InitProducerIdResponse(error_code=error, producer_id=NO_ID, producer_epoch=NO_EPOCH)
    return InitProducerIdResponse(
        error_code=error, producer_id=result.producer_id, producer_epoch=result.producer_epoch
    )


# --- authorization --------------------------------------------------------------------------------


async def _authorize(
    caller: Caller, _version: int, request: InitProducerIdRequest, handle: Handle
) -> Any:
    transactional_id = request.transactional_id
    if transactional_id is not None:
        allowed, code = (
            caller.may_transaction(Operation.WRITE, transactional_id),
            TRANSACTION_REFUSED,
        )
    else:
        any_topic = caller.authorizer.authorize_by_resource_type
        allowed = caller.may_cluster(Operation.IDEMPOTENT_WRITE) or any_topic(
            caller.actor, Operation.WRITE, ResourceType.TOPIC
        )
        code = CLUSTER_REFUSED
    if allowed:
        return await handle(request)
    return InitProducerIdResponse(error_code=code, producer_epoch=-1)


API = Endpoint(INIT_PRODUCER_ID, InitProducerIdRequest, InitProducerIdResponse, handle, _authorize)
