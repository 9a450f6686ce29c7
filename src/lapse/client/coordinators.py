"""Which broker coordinates a group or a transactional id (FindCoordinator).

Used by `groups` and `transactions`.
"""

from __future__ import annotations

from collections.abc import Sequence

from lapse.client.connection import BrokerConnection, closed_if_lost
from lapse.wire.schema.find_coordinator import (
    FIND_COORDINATOR,
    GROUP_KEY,
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

_BATCHED_FROM = 4


async def find_coordinators(
    connection: BrokerConnection, keys: Sequence[str], key_type: int = GROUP_KEY
) -> list[Coordinator]:
    """One a key, or its error; in one request where the broker takes several. Raises as that."""
    with closed_if_lost(connection):
        return await _found(connection, keys, key_type)


async def _found(
    connection: BrokerConnection, keys: Sequence[str], key_type: int
) -> list[Coordinator]:
    if connection.version_of(FIND_COORDINATOR) >= _BATCHED_FROM:
        request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=tuple(keys))
        return list((await connection.request(request, FindCoordinatorResponse)).coordinators)
    found = []
    for key in keys:
        request = FindCoordinatorRequest(key=key, key_type=key_type)
        one = await connection.request(request, FindCoordinatorResponse)
        found.append(
            Coordinator(
                key=key, node_id=one.node_id, host=one.host, port=one.port,
                error_code=one.error_code, error_message=one.error_message,
            )
        )  # fmt: skip
    return found
