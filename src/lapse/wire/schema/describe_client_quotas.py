"""DescribeClientQuotas (key 48): quotas that a filter lets pass (KIP-546).

v1 flexible.
"""

from __future__ import annotations

from lapse.wire.declaration import (
    BOOL,
    FLOAT64,
    INT8,
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

DESCRIBE_CLIENT_QUOTAS = api(48, "DescribeClientQuotas", versions="0-1", flexible="1+")


@struct
class ComponentData:
    """One type of entity: `user`, `client-id` or `ip`.

    `match_type` 0 is the name in `match`, 1 the default entity, 2 every named one.
    """

    entity_type: str = field(STRING)
    match_type: int = field(INT8)
    match: str | None = field(STRING, nullable="0+")


@request(DESCRIBE_CLIENT_QUOTAS)
class DescribeClientQuotasRequest:
    """`strict`: entities of types that are not named do not pass."""

    components: tuple[ComponentData, ...] = field(array(ComponentData))
    strict: bool = field(BOOL)


@struct
class EntityData:
    """One part of an entity; a null name is the default."""

    entity_type: str = field(STRING)
    entity_name: str | None = field(STRING, nullable="0+")


@struct
class ValueData:
    """One quota: a number a second, or a percentage."""

    key: str = field(STRING)
    value: float = field(FLOAT64)


@struct
class EntryData:
    """An entity and its quotas."""

    entity: tuple[EntityData, ...] = field(array(EntityData))
    values: tuple[ValueData, ...] = field(array(ValueData))


@response(DESCRIBE_CLIENT_QUOTAS)
class DescribeClientQuotasResponse:
    """`entries` is null with an error."""

    throttle_time_ms: int = field(INT32, default=0)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    entries: tuple[EntryData, ...] | None = field(array(EntryData), nullable="0+")
