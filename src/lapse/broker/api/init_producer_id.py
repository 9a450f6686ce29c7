"""InitProducerId (key 22): an identity for an idempotent producer (KIP-98).

Behaviour: without a transactional id every request gets a new producer id with epoch 0, also one
that names the id it had (KIP-360), as in Kafka; KAFKA_STORAGE_ERROR, which clients try again after,
where the metadata store cannot be written. Transactions come with a later version: a
transactional id is TRANSACTIONAL_ID_AUTHORIZATION_FAILED, the refusal all clients take for final.

v0-2 the same · v3 the producer may name its id and epoch · v4 as v3.
"""

from __future__ import annotations

import logging

from lapse.base.errors import ErrorCode, StorageError
from lapse.broker.services import Services, Session
from lapse.records.layout import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from lapse.wire.schema.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

logger = logging.getLogger(__name__)


async def handle(
    services: Services, _session: Session, _version: int, request: InitProducerIdRequest
) -> InitProducerIdResponse:
    """A producer id nobody has had."""
    if request.transactional_id is not None:
        return _refused(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    try:
        producer_id = await services.producer_ids.next()
    except StorageError as e:
        logger.warning("no producer id can be given: %s", e)
        return _refused(ErrorCode.KAFKA_STORAGE_ERROR)
    return InitProducerIdResponse(
        error_code=ErrorCode.NONE, producer_id=producer_id, producer_epoch=0
    )


def _refused(error: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(
        error_code=error, producer_id=NO_PRODUCER_ID, producer_epoch=NO_PRODUCER_EPOCH
    )
