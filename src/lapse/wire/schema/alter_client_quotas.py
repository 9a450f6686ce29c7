"""AlterClientQuotas (key 49): quotas are set and removed (KIP-546).

v1 flexible.
"""

from __future__ import annotations

from lapse.wire.declaration import (
    BOOL,
    FLOAT64,
    INT16,
    INT32,
    STRING,
    api,
    array,
    field,
    request,
    response,
    struct,
)

ALTER_CLIENT_QUOTAS = api(49, "AlterClientQuotas", versions="0-1", flexible="1+")


@struct
class EntityData:
    """One part of an entity; a null name is the default."""

    entity_type: str = field(STRING)
    entity_name: str | None = field(STRING, nullable="0+")


@struct
class OpData:
    """One quota; with `remove` the value means nothing."""

    key: str = field(STRING)
    value: float = field(FLOAT64)
    remove: bool = field(BOOL)


@struct
class EntryData:
    """Changes of one entity."""

    entity: tuple[EntityData, ...] = field(array(EntityData))
    ops: tuple[OpData, ...] = field(array(OpData))


@request(ALTER_CLIENT_QUOTAS)
class AlterClientQuotasRequest:
    """With `validate_only` nothing is changed."""

    entries: tuple[EntryData, ...] = field(array(EntryData))
    validate_only: bool = field(BOOL)


@struct
class EntryResult:
    """What became of one entity. Kafka's name is EntryData too."""

    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    entity: tuple[EntityData, ...] = field(array(EntityData))


@response(ALTER_CLIENT_QUOTAS)
class AlterClientQuotasResponse:
    """Answers per entity."""

    throttle_time_ms: int = field(INT32, default=0)
    entries: tuple[EntryResult, ...] = field(array(EntryResult))
