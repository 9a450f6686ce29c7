"""DescribeCluster (key 60): brokers and controller, without topics (KIP-700).

v0 flexible · v1 the endpoints of controllers may be requested (KIP-919) · v2 fenced brokers
(KIP-1073).
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
from lapse.wire.schema.metadata import OPERATIONS_UNKNOWN

DESCRIBE_CLUSTER = api(60, "DescribeCluster", versions="0-2", flexible="0+")


@request(DESCRIBE_CLUSTER)
class DescribeClusterRequest:
    """`endpoint_type` 1 requests brokers, 2 requests controllers."""

    include_cluster_authorized_operations: bool = field(BOOL)
    endpoint_type: int = field(INT8, "1+", default=1)
    include_fenced_brokers: bool = field(BOOL, "2+", default=False)


@struct
class DescribeClusterBroker:
    """Where a broker listens."""

    broker_id: int = field(INT32)
    host: str = field(STRING)
    port: int = field(INT32)
    rack: str | None = field(STRING, nullable="0+", default=None)
    is_fenced: bool = field(BOOL, "2+", default=False)


@response(DESCRIBE_CLUSTER)
class DescribeClusterResponse:
    """The cluster as this broker knows it; a controller id of -1 is unknown."""

    throttle_time_ms: int = field(INT32, default=0)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)
    endpoint_type: int = field(INT8, "1+", default=1)
    cluster_id: str = field(STRING)
    controller_id: int = field(INT32, default=-1)
    brokers: tuple[DescribeClusterBroker, ...] = field(array(DescribeClusterBroker))
    cluster_authorized_operations: int = field(INT32, default=OPERATIONS_UNKNOWN)
