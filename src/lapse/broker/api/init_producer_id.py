"""InitProducerId (key 22): an identity for an idempotent or a transactional producer (KIP-98).

Needs WRITE transactional id; without one IDEMPOTENT_WRITE cluster, or WRITE some topic.

Behaviour: without a transactional id every request gets a new producer id with epoch 0, also one
that names the id it had (KIP-360), as in Kafka; COORDINATOR_LOAD_IN_PROGRESS, which clients try
again after, where the metadata store cannot be written. With one, whoever had the id is shut out,
and a transaction that it left open is aborted: CONCURRENT_TRANSACTIONS until that is done.
INVALID_TRANSACTION_TIMEOUT above `transaction.max.timeout.ms`; INVALID_REQUEST for an empty id.

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
    services: Services, _session: Session, version: int, request: InitProducerIdRequest
) -> InitProducerIdResponse:
    """Ask the coordinator, which has the producer ids too."""
    named = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
    answer = await services.transactions.init_producer_id(
        request.transactional_id,
        request.transaction_timeout_ms,
        None if named == ProducerIdAndEpoch(NO_ID, NO_EPOCH) else named,
    )
    error = answer.error if version >= _FENCED_FROM else without_fenced(answer.error)
    if error is not ErrorCode.NONE:
        return InitProducerIdResponse(error_code=error, producer_id=NO_ID, producer_epoch=NO_EPOCH)
    return InitProducerIdResponse(
        error_code=error, producer_id=answer.producer_id, producer_epoch=answer.producer_epoch
    )


# --- who may --------------------------------------------------------------------------------------


async def _authorize(
    caller: Caller, version: int, request: InitProducerIdRequest, handle: Handle
) -> Any:
    del version
    owner = request.transactional_id
    if owner is not None:
        may, code = caller.may_transaction(Operation.WRITE, owner), TRANSACTION_REFUSED
    else:
        any_topic = caller.authorizer.authorize_by_resource_type
        may = caller.may_cluster(Operation.IDEMPOTENT_WRITE) or any_topic(
            caller.actor, Operation.WRITE, ResourceType.TOPIC
        )
        code = CLUSTER_REFUSED
    if may:
        return await handle(request)
    return InitProducerIdResponse(error_code=code, producer_epoch=-1)


API = Endpoint(INIT_PRODUCER_ID, InitProducerIdRequest, InitProducerIdResponse, handle, _authorize)
