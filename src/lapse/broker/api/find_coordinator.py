"""FindCoordinator (key 10): which broker looks after a group or a transactional id.

Needs DESCRIBE group or transactional id.

Behaviour: this one looks after all, being the only one; the topic that its coordinator keeps them
in is made when the first one is looked for. COORDINATOR_NOT_AVAILABLE where it cannot be, which
clients try again after.

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
    words_of,
)
from lapse.broker.request.context import Services, Session
from lapse.broker.request.endpoint import Endpoint
from lapse.security.acls import Operation
from lapse.wire.schema.find_coordinator import (
    FIND_COORDINATOR,
    GROUP_KEY,
    TRANSACTION_KEY,
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

NOBODY = -1
_BATCHED_FROM = 4


async def handle(
    services: Services, session: Session, version: int, request: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    """Ourselves, for each key."""
    if version >= _BATCHED_FROM:
        keys = request.coordinator_keys
        found = [await _coordinator(services, session, key, request.key_type) for key in keys]
        return FindCoordinatorResponse(coordinators=tuple(found))
    one = await _coordinator(services, session, request.key, request.key_type)
    return FindCoordinatorResponse(
        error_code=one.error_code,
        error_message=one.error_message,
        node_id=one.node_id,
        host=one.host,
        port=one.port,
    )


async def _coordinator(
    services: Services, session: Session, key: str, key_type: int
) -> Coordinator:
    if key_type not in {GROUP_KEY, TRANSACTION_KEY}:
        return _nobody(key, ErrorCode.INVALID_REQUEST, f"key type {key_type}: 0 or 1")
    try:
        if key_type == TRANSACTION_KEY:
            await services.transactions.require_topic()
        else:
            await services.groups.require_topic()
    except LapseError as e:
        return _nobody(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, str(e))
    told = services.address_for(session)
    if told is None:
        return _nobody(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, "this listener is not advertised")
    return Coordinator(
        key=key,
        node_id=services.config.node_id,
        host=told.host,
        port=told.port,
        error_code=ErrorCode.NONE,
        error_message=None,
    )


def _nobody(key: str, error: ErrorCode, why: str) -> Coordinator:
    return Coordinator(
        key=key, node_id=NOBODY, host="", port=NOBODY, error_code=error, error_message=why
    )


# --- who may --------------------------------------------------------------------------------------


_KEYS_FROM = 4  # FindCoordinator: several keys


_NOWHERE: dict[str, Any] = {"node_id": -1, "host": "", "port": -1}


async def _authorize(
    caller: Caller, version: int, request: FindCoordinatorRequest, handle: Handle
) -> Any:
    def code_of(key: str) -> ErrorCode:
        if request.key_type == TRANSACTION_KEY:
            may = caller.may_transaction(Operation.DESCRIBE, key)
            return ErrorCode.NONE if may else TRANSACTION_REFUSED
        if request.key_type == GROUP_KEY:
            return ErrorCode.NONE if caller.may_group(Operation.DESCRIBE, key) else GROUP_REFUSED
        return ErrorCode.NONE  # the handler knows no such type

    if version < _KEYS_FROM:
        code = code_of(request.key)
        if not code:
            return await handle(request)
        return FindCoordinatorResponse(error_code=code, error_message=words_of(code), **_NOWHERE)
    codes = {key: code_of(key) for key in request.coordinator_keys}
    fine = tuple(key for key in request.coordinator_keys if not codes[key])
    answer = await handle(replace(request, coordinator_keys=fine))
    refused = tuple(
        Coordinator(key=key, error_code=code, error_message=words_of(code), **_NOWHERE)
        for key, code in codes.items()
        if code
    )
    return replace(answer, coordinators=(*answer.coordinators, *refused))


API = Endpoint(
    FIND_COORDINATOR, FindCoordinatorRequest, FindCoordinatorResponse, handle, _authorize
)
