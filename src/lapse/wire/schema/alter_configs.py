"""AlterConfigs (key 33): all settings of a resource at once (KIP-133).

v1 throttled after the answer is sent (KIP-219) · v2 flexible. `incremental_alter_configs` took its
place.
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

ALTER_CONFIGS = api(33, "AlterConfigs", versions="0-2", flexible="2+")


@struct
class AlterableConfig:
    """One setting."""

    name: str = field(STRING)
    value: str | None = field(STRING, nullable="0+")


@struct
class AlterConfigsResource:
    """All the settings it shall have: what is not named goes back to the default."""

    resource_type: int = field(INT8)
    resource_name: str = field(STRING)
    configs: tuple[AlterableConfig, ...] = field(array(AlterableConfig))


@request(ALTER_CONFIGS)
class AlterConfigsRequest:
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


@response(ALTER_CONFIGS)
class AlterConfigsResponse:
    """Answers per resource."""

    throttle_time_ms: int = field(INT32, default=0)
    responses: tuple[AlterConfigsResourceResponse, ...] = field(array(AlterConfigsResourceResponse))
