"""AlterClientQuotas (key 49): set and remove quotas, each entity on its own (KIP-546).

v0-1 the same to us.
"""

from __future__ import annotations

from lapse.base.errors import ErrorCode, KafkaError, LapseError
from lapse.broker.quotas import entity_of
from lapse.broker.services import Services, Session
from lapse.wire.schema.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntryData,
    EntryResult,
)


async def handle(
    services: Services, _session: Session, _version: int, request: AlterClientQuotasRequest
) -> AlterClientQuotasResponse:
    """Change each."""
    results = [
        await _alter(services, entry, validate_only=request.validate_only)
        for entry in request.entries
    ]
    return AlterClientQuotasResponse(entries=tuple(results))


async def _alter(services: Services, entry: EntryData, *, validate_only: bool) -> EntryResult:
    entity = entity_of((part.entity_type, part.entity_name) for part in entry.entity)
    ops = {op.key: None if op.remove else op.value for op in entry.ops}
    error, message = ErrorCode.NONE, None
    try:
        await services.quotas.alter(entity, ops, validate_only=validate_only)
    except KafkaError as e:
        error, message = e.code, str(e)
    except LapseError as e:
        error, message = ErrorCode.KAFKA_STORAGE_ERROR, str(e)
    return EntryResult(error_code=error, error_message=message, entity=entry.entity)
