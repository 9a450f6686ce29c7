"""DescribeConfigs (key 32): settings of topics and brokers, and where each comes from (KIP-133).

v1 the oldest still spoken: sources and synonyms (KIP-226) · v2 throttled after the answer is sent
(KIP-219) · v3 types and documentation (KIP-569) · v4 flexible.
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

DESCRIBE_CONFIGS = api(32, "DescribeConfigs", versions="1-4", flexible="4+")


@struct
class DescribeConfigsResource:
    """Null keys are all; `resource_type` 2 is a topic, 4 a broker, 8 its loggers, 32 a group."""

    resource_type: int = field(INT8)
    resource_name: str = field(STRING)
    configuration_keys: tuple[str, ...] | None = field(array(STRING), nullable="0+")


@request(DESCRIBE_CONFIGS)
class DescribeConfigsRequest:
    """What is wanted."""

    resources: tuple[DescribeConfigsResource, ...] = field(array(DescribeConfigsResource))
    include_synonyms: bool = field(BOOL, "1+", default=False)
    include_documentation: bool = field(BOOL, "3+", default=False)


@struct
class DescribeConfigsSynonym:
    """Another setting whose value would hold, or does."""

    name: str = field(STRING, "1+")
    value: str | None = field(STRING, "1+", nullable="0+")
    source: int = field(INT8, "1+")


@struct
class DescribeConfigsResourceResult:
    """One setting; a sensitive one has a null value.

    `config_source` 1 is the topic's own, 2 the broker's dynamic one, 3 all brokers' dynamic one, 4
    the properties file, 5 the default, 6 a logger's, 8 a group's. `config_type` 1 is boolean, 2
    string, 3 int, 4 short, 5 long, 6 double, 7 list, 8 class, 9 password. Synonyms stand in the
    order in which they would win.
    """

    name: str = field(STRING)
    value: str | None = field(STRING, nullable="0+")
    read_only: bool = field(BOOL)
    config_source: int = field(INT8, "1+", default=-1)
    is_sensitive: bool = field(BOOL)
    synonyms: tuple[DescribeConfigsSynonym, ...] = field(array(DescribeConfigsSynonym), "1+")
    config_type: int = field(INT8, "3+", default=0, ignorable=True)
    documentation: str | None = field(STRING, "3+", nullable="0+", default="", ignorable=True)


@struct
class DescribeConfigsResult:
    """One resource's settings."""

    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    resource_type: int = field(INT8)
    resource_name: str = field(STRING)
    configs: tuple[DescribeConfigsResourceResult, ...] = field(array(DescribeConfigsResourceResult))


@response(DESCRIBE_CONFIGS)
class DescribeConfigsResponse:
    """Answers per resource."""

    throttle_time_ms: int = field(INT32, default=0)
    results: tuple[DescribeConfigsResult, ...] = field(array(DescribeConfigsResult))
