"""FindCoordinator (key 10): which broker coordinates a group or a transactional id.

Needs DESCRIBE group or transactional id.

Behaviour: the broker that leads the partition in which the coordinator stores it. The first request
creates the topic. COORDINATOR_NOT_AVAILABLE if it cannot be created, or nobody leads that partition
just now; clients then try again.

v0 groups only · v1 key type, error message · v2-3 one key · v4-6 several.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lapse.base.errors import ErrorCode, LapseError
from lapse.broker.request.authorize import (
    GROUP_REFUSED,
    TRANSACTION_REFUSED,
    Caller,
    Handle,
    message_of,
)
from lapse.broker.request.context import Services, Session
from lapse.broker.request.endpoint import Endpoint
from lapse.broker.request.repeated import for_each
from lapse.security.acls import Operation
from lapse.wire.schema.find_coordinator import (
    FIND_COORDINATOR,
    GROUP_KEY,
    TRANSACTION_KEY,
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

_NOWHERE: dict[str, Any] = {"node_id": -1, "host": "", "port": -1}
_BATCHED_FROM = 4


async def handle(
    services: Services, session: Session, version: int, request: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    """Look up each key."""
    if version >= _BATCHED_FROM:
        keys = request.coordinator_keys
        found = await for_each(
            keys, lambda key: _coordinator(services, session, key, request.key_type)
        )
        return FindCoordinatorResponse(coordinators=tuple(found))
    coordinator = await _coordinator(services, session, request.key, request.key_type)
    return FindCoordinatorResponse(
        error_code=coordinator.error_code,
        error_message=coordinator.error_message,
        node_id=coordinator.node_id,
        host=coordinator.host,
        port=coordinator.port,
    )


async def _coordinator(
    services: Services, session: Session, key: str, key_type: int
) -> Coordinator:
    if key_type not in {GROUP_KEY, TRANSACTION_KEY}:
        return _no_coordinator(key, ErrorCode.INVALID_REQUEST, f"key type {key_type}: 0 or 1")
    try:
        if key_type == TRANSACTION_KEY:
            partition = await services.transactions.partition_of(key)
        else:
            partition = await services.groups.partition_of(key)
    except LapseError as e:
        return _no_coordinator(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, str(e))
    state = services.partitions.state_of(partition)
    broker = services.config.node_id if state is None else state.leader
    addresses = services.addresses_for(session)
    address = addresses.get(broker)
    if address is None:
        why = (
            f"nobody leads {partition} just now" if addresses else "this listener is not advertised"
        )
        return _no_coordinator(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, why)
    return Coordinator(
        key=key,
        node_id=broker,
        host=address.host,
        port=address.port,
        error_code=ErrorCode.NONE,
        error_message=None,
    )


def _no_coordinator(key: str, error: ErrorCode, why: str) -> Coordinator:
    return Coordinator(key=key, error_code=error, error_message=why, **_NOWHERE)


# --- authorization --------------------------------------------------------------------------------


async def _authorize(
    caller: Caller, version: int, request: FindCoordinatorRequest, handle: Handle
) -> Any:
    def code_of(key: str) -> ErrorCode:
        if request.key_type == TRANSACTION_KEY:
            may = caller.may_transaction(Operation.DESCRIBE, key)
            return ErrorCode.NONE if may else TRANSACTION_REFUSED
        if request.key_type == GROUP_KEY:
            return ErrorCode.NONE if caller.may_group(Operation.DESCRIBE, key) else GROUP_REFUSED
        return ErrorCode.NONE  # the handler refuses an unknown key type

    if version < _BATCHED_FROM:
        code = code_of(request.key)
        if not code:
            return await handle(request)
        return FindCoordinatorResponse(error_code=code, error_message=message_of(code), **_NOWHERE)
    codes = {key: code_of(key) for key in request.coordinator_keys}
    fine = tuple(key for key in request.coordinator_keys if not codes[key])
    answer = await handle(replace(request, coordinator_keys=fine))
    refused = tuple(
        _no_coordinator(key, code, message_of(code)) for key, code in codes.items() if code
    )
    return replace(answer, coordinators=(*answer.coordinators, *refused))


API = Endpoint(
    FIND_COORDINATOR, FindCoordinatorRequest, FindCoordinatorResponse, handle, _authorize
)
