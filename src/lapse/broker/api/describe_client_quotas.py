"""DescribeClientQuotas (key 48): the quotas of entities that a filter lets pass (KIP-546).

Needs DESCRIBE_CONFIGS cluster.

v0-1 the same to us.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lapse.base.errors import ErrorCode, KafkaError
from lapse.broker.limits.quotas import CLIENT_ID, IP, USER
from lapse.broker.request.authorize import CLUSTER_REFUSAL, of_cluster
from lapse.broker.request.context import Services, Session
from lapse.broker.request.endpoint import Endpoint
from lapse.metadata.store import Entity
from lapse.security.acls import Operation
from lapse.wire.schema.describe_client_quotas import (
    DESCRIBE_CLIENT_QUOTAS,
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    ValueData,
)

EXACT, DEFAULT, ANY = 0, 1, 2


async def handle(
    services: Services, _session: Session, _version: int, request: DescribeClientQuotasRequest
) -> DescribeClientQuotasResponse:
    """Those that pass, in a fixed order."""
    try:
        _check(request.components)
    except KafkaError as e:
        return DescribeClientQuotasResponse(error_code=e.code, error_message=str(e), entries=None)
    found = [
        _entry(entity, values)
        for entity, values in services.quotas.all()
        if _passes(entity, request.components, strict=request.strict)
    ]
    return DescribeClientQuotasResponse(
        error_code=ErrorCode.NONE, error_message=None, entries=tuple(found)
    )


def _check(components: Sequence[ComponentData]) -> None:
    kinds = [component.entity_type for component in components]
    for component in components:
        if component.entity_type not in {USER, CLIENT_ID, IP}:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION, f"entity type {component.entity_type} is not known"
            )
        if component.match_type not in {EXACT, DEFAULT, ANY}:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"match type {component.match_type}")
        if (component.match_type == EXACT) != (component.match is not None):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"{component.entity_type}: only an exact match has a name",
            )
    if len(set(kinds)) < len(kinds):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "two components of one entity type")
    if IP in kinds and len(kinds) > 1:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "an address goes with no user or client id")


def _passes(entity: Entity, components: Sequence[ComponentData], *, strict: bool) -> bool:
    parts = dict(entity)
    for component in components:
        if component.entity_type not in parts:
            return False
        name = parts.pop(component.entity_type)
        if component.match_type == EXACT and name != component.match:
            return False
        if component.match_type == DEFAULT and name is not None:
            return False
    return not (strict and parts)


def _entry(entity: Entity, values: Mapping[str, float]) -> EntryData:
    return EntryData(
        entity=tuple(EntityData(entity_type=kind, entity_name=name) for kind, name in entity),
        values=tuple(ValueData(key=key, value=values[key]) for key in sorted(values)),
    )


API = Endpoint(
    DESCRIBE_CLIENT_QUOTAS,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    handle,
    of_cluster(
        Operation.DESCRIBE_CONFIGS,
        DescribeClientQuotasResponse(**CLUSTER_REFUSAL, entries=None),
    ),
)
