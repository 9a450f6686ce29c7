"""LifecycleControl (key 10002): what a lifecycle service on another machine asks of this broker.

Needs CLUSTER_ACTION cluster, the right of brokers: who has it says which segments are replaced.

Behaviour: the messages of the control socket, one at a time and under a lease (`broker/control`).
INVALID_REQUEST where `lapse.lifecycle.remote.enable` is false, as it is unless somebody sets it, or
`log.cleaner.enable` is.

v0 ours; not in ApiVersions.
"""

from __future__ import annotations

from lapse.base.errors import ErrorCode, LapseError
from lapse.broker.request.authorize import CLUSTER_REFUSAL, of_cluster
from lapse.broker.request.context import Services, Session
from lapse.broker.request.endpoint import Endpoint
from lapse.security.acls import Operation
from lapse.wire.schema.lifecycle_control import (
    LIFECYCLE_CONTROL,
    LifecycleControlRequest,
    LifecycleControlResponse,
)


async def handle(
    services: Services, session: Session, _version: int, request: LifecycleControlRequest
) -> LifecycleControlResponse:
    """Pass it on to the owner of the logs."""
    config = services.config
    for name, is_allowed in (
        ("lapse.lifecycle.remote.enable", config.lifecycle_remote_enable),
        ("log.cleaner.enable", config.log_cleaner_enable),
    ):
        if not is_allowed:
            words = f"{name}=false: allowed is true, for a service on another machine"
            return LifecycleControlResponse(
                error_code=ErrorCode.INVALID_REQUEST, error_message=words
            )
    try:
        answer = await services.remote_services.answer(
            request.lease, request.message, session.address
        )
    except (LapseError, OSError) as e:
        code = ErrorCode.KAFKA_STORAGE_ERROR
        return LifecycleControlResponse(error_code=code, error_message=str(e))
    return LifecycleControlResponse(error_code=ErrorCode.NONE, error_message=None, message=answer)


API = Endpoint(
    LIFECYCLE_CONTROL,
    LifecycleControlRequest,
    LifecycleControlResponse,
    handle,
    of_cluster(Operation.CLUSTER_ACTION, LifecycleControlResponse(**CLUSTER_REFUSAL)),
)
