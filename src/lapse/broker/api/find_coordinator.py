"""FindCoordinator (key 10): which broker looks after a group or a transactional id.

Behaviour: this broker would look after every group, being the only one; the group APIs themselves
come with a later version and are not offered, which a client that joins a group then reports in its
own words. Naming ourselves serves both kinds of librdkafka consumers: one that subscribes is told
that groups are unsupported (with no such API it waits for ever without a word), one that only
assigns partitions asks for the coordinator of its `group.id` all the same, and must not be given an
error that it passes on. Besides, librdkafka takes a broker without this API for one that knows no
lz4, and sends uncompressed. aiokafka would try to join for ever; it is told by v1, the newest it
speaks, which nobody else stops at.

Transactions come with a later version too: TRANSACTIONAL_ID_AUTHORIZATION_FAILED is the one refusal
that every client takes for final.

v0-1 UNSUPPORTED_VERSION for groups · v1 key type, error message · v2-3 one key · v4-6 several.
"""

from __future__ import annotations

from lapse.base.errors import ErrorCode
from lapse.broker.services import Services, Session
from lapse.wire.schema.find_coordinator import (
    GROUP_KEY,
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

NOBODY = -1
_JOINED_FROM = 2
_BATCHED_FROM = 4


async def handle(
    services: Services, session: Session, version: int, request: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    """Ourselves for groups, nobody for transactions."""
    found = _coordinator(services, session, version, request.key_type)
    if version < _BATCHED_FROM:
        return FindCoordinatorResponse(
            error_code=found.error_code,
            error_message=found.error_message,
            node_id=found.node_id,
            host=found.host,
            port=found.port,
        )
    return FindCoordinatorResponse(
        coordinators=tuple(
            Coordinator(
                key=key,
                node_id=found.node_id,
                host=found.host,
                port=found.port,
                error_code=found.error_code,
                error_message=found.error_message,
            )
            for key in request.coordinator_keys
        )
    )


def _coordinator(services: Services, session: Session, version: int, key_type: int) -> Coordinator:
    if key_type != GROUP_KEY:
        return _nobody(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "transactions")
    if version < _JOINED_FROM:
        return _nobody(ErrorCode.UNSUPPORTED_VERSION, "consumer groups")
    return Coordinator(
        key="",
        node_id=services.config.node_id,
        host=services.host_for(session),
        port=services.address.port,
        error_code=ErrorCode.NONE,
        error_message=None,
    )


def _nobody(error: ErrorCode, what: str) -> Coordinator:
    why = f"{what} are not supported by this broker version"
    return Coordinator(
        key="", node_id=NOBODY, host="", port=NOBODY, error_code=error, error_message=why
    )
