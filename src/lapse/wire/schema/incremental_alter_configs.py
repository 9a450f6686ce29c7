"""IncrementalAlterConfigs (key 44): single settings of a resource (KIP-339).

v1 flexible.
"""

from __future__ import annotations

from lapse.wire.declaration import (
    BOOL,
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

INCREMENTAL_ALTER_CONFIGS = api(44, "IncrementalAlterConfigs", versions="0-1", flexible="1+")


@struct
class AlterableConfig:
    """`config_operation` 0 sets, 1 removes, 2 appends to a list, 3 takes from it."""

    name: str = field(STRING)
    config_operation: int = field(INT8)
    value: str | None = field(STRING, nullable="0+")


@struct
class AlterConfigsResource:
    """Changes of one resource; types are those of `describe_configs`."""

    resource_type: int = field(INT8)
    resource_name: str = field(STRING)
    configs: tuple[AlterableConfig, ...] = field(array(AlterableConfig))


@request(INCREMENTAL_ALTER_CONFIGS)
class IncrementalAlterConfigsRequest:
    """With `validate_only` nothing is changed."""

    resources: tuple[AlterConfigsResource, ...] = field(array(AlterConfigsResource))
    validate_only: bool = field(BOOL)


@struct
class AlterConfigsResourceResponse:
    """What became of one resource."""

    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    resource_type: int = field(INT8)
    resource_name: str = field(STRING)


@response(INCREMENTAL_ALTER_CONFIGS)
class IncrementalAlterConfigsResponse:
    """Answers per resource."""

    throttle_time_ms: int = field(INT32, default=0)
    responses: tuple[AlterConfigsResourceResponse, ...] = field(array(AlterConfigsResourceResponse))
