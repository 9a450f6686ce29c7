"""AlterClientQuotas (key 49): set and remove quotas, entity by entity (KIP-546).

Needs ALTER_CONFIGS cluster.

Behaviour: users and client ids have quotas of bytes, of request time and of partitions (KIP-599);
addresses have quotas of connections (KIP-612). A change is in force and durable when the broker
responds. INVALID_REQUEST for an invalid entity, for a quota that the entity cannot have, for an
address that is neither an IP address nor a host, and for an entity or a quota that is named twice.

v0-1 the same for this broker.
"""

from __future__ import annotations

from lapse.base.errors import ErrorCode, KafkaError, LapseError
from lapse.broker.limits.client_quotas import Ops
from lapse.broker.request.authorize import CLUSTER_REFUSAL, of_cluster
from lapse.broker.request.context import Services, Session
from lapse.broker.request.endpoint import Endpoint, always
from lapse.metadata.store import Entity, entity_of
from lapse.security.acls import Operation
from lapse.wire.schema.alter_client_quotas import (
    ALTER_CLIENT_QUOTAS,
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntityData,
    EntryData,
    EntryResult,
)


async def handle(
    services: Services, _session: Session, _version: int, request: AlterClientQuotasRequest
) -> AlterClientQuotasResponse:
    """Change the quotas of each entity."""
    seen: set[Entity] = set()
    results = []
    for entry in request.entries:
        entity = entity_of((part.entity_type, part.entity_name) for part in entry.entity)
        ops = None if entity in seen else _ops(entry)
        seen.add(entity)
        results.append(await _alter(services, entry, entity, ops, request.validate_only))
    return AlterClientQuotasResponse(entries=tuple(results))


def _ops(entry: EntryData) -> Ops | None:
    """The changes requested for an entity; None if a quota is named twice."""
    ops = {op.key: None if op.remove else op.value for op in entry.ops}
    return ops if len(ops) == len(entry.ops) else None


async def _alter(
    services: Services, entry: EntryData, entity: Entity, ops: Ops | None, validate_only: bool
) -> EntryResult:
    error, message = ErrorCode.NONE, None
    try:
        if ops is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "an entity or a quota is named twice")
        await services.quotas.alter(entity, ops, validate_only=validate_only)
    except KafkaError as e:
        error, message = e.code, str(e)
    except LapseError as e:
        error, message = ErrorCode.KAFKA_STORAGE_ERROR, str(e)
    return EntryResult(error_code=error, error_message=message, entity=entry.entity)


# --- authorization --------------------------------------------------------------------------------


def _no_quotas(
    request: AlterClientQuotasRequest,
) -> AlterClientQuotasResponse:
    return AlterClientQuotasResponse(
        entries=tuple(
            EntryResult(
                **CLUSTER_REFUSAL,
                entity=tuple(
                    EntityData(entity_type=part.entity_type, entity_name=part.entity_name)
                    for part in entry.entity
                ),
            )
            for entry in request.entries
        )
    )


API = Endpoint(
    ALTER_CLIENT_QUOTAS,
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    handle,
    of_cluster(Operation.ALTER_CONFIGS, _no_quotas),
    by_controller=always,
)
