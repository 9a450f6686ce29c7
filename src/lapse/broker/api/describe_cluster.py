"""DescribeCluster (key 60): brokers and controller, without topics (KIP-700).

Needs nothing; DESCRIBE cluster, to get the authorized operations.

Behaviour: this broker is the whole cluster and its own controller; it returns the address that
Metadata does, or no broker. `authorization` adds the authorized operations. Endpoints of
controllers (type 2) are MISMATCHED_ENDPOINT_TYPE: there are no separate controllers; any other type
is UNSUPPORTED_ENDPOINT_TYPE.

v0 brokers only · v1 endpoint type in request and response · v2 fenced brokers (none).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lapse.base.errors import ErrorCode
from lapse.broker.request.authorize import Caller, Handle
from lapse.broker.request.context import Services, Session
from lapse.broker.request.endpoint import Endpoint
from lapse.wire.schema.describe_cluster import (
    DESCRIBE_CLUSTER,
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

BROKERS, CONTROLLERS = 1, 2
_REFUSALS = {
    CONTROLLERS: (ErrorCode.MISMATCHED_ENDPOINT_TYPE, "this is a broker, not a controller"),
}


async def handle(
    services: Services, session: Session, _version: int, request: DescribeClusterRequest
) -> DescribeClusterResponse:
    """Describe the brokers that are there."""
    cluster_id = services.topics.image.cluster_id
    if request.endpoint_type != BROKERS:
        unknown = (
            ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            "endpoints are brokers (1) or controllers (2)",
        )
        code, message = _REFUSALS.get(request.endpoint_type, unknown)
        return DescribeClusterResponse(
            error_code=code, error_message=message, cluster_id="", brokers=()
        )
    controller_id, racks = services.topics.members.controller_id, services.topics.members.racks
    brokers = tuple(
        DescribeClusterBroker(
            broker_id=broker, host=address.host, port=address.port, rack=racks.get(broker)
        )
        for broker, address in sorted(services.addresses_for(session).items())
    )
    return DescribeClusterResponse(
        error_code=ErrorCode.NONE,
        endpoint_type=BROKERS,
        cluster_id=cluster_id,
        controller_id=-1 if controller_id is None else controller_id,
        brokers=brokers,
    )


# --- authorization --------------------------------------------------------------------------------


async def _authorize(
    caller: Caller,
    _version: int,
    request: DescribeClusterRequest,
    handle: Handle,
) -> Any:
    """Every caller is answered; its authorized operations need DESCRIBE cluster."""
    answer = await handle(request)
    if answer.error_code or not request.include_cluster_authorized_operations:
        return answer
    return replace(answer, cluster_authorized_operations=caller.cluster_operations())


API = Endpoint(
    DESCRIBE_CLUSTER,
    DescribeClusterRequest,
    DescribeClusterResponse,
    handle,
    _authorize,
    returns_operations=True,
)
