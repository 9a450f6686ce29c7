"""FindCoordinator (key 10): which broker looks after a group or a transactional id.

v1 key type and throttle time (KIP-98) · v2 throttled after the answer is sent (KIP-219) · v3
flexible · v4 several keys at once (KIP-699) · v5 as v4 (KIP-890) · v6 share groups (KIP-932).
"""

from __future__ import annotations

from lapse.wire.declaration import (
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

FIND_COORDINATOR = api(10, "FindCoordinator", versions="0-6", flexible="3+")

GROUP_KEY = 0
TRANSACTION_KEY = 1


@request(FIND_COORDINATOR)
class FindCoordinatorRequest:
    """Up to v3 one `key`, from v4 `coordinator_keys`."""

    key: str = field(STRING, "0-3", default="")
    key_type: int = field(INT8, "1+", default=GROUP_KEY)
    coordinator_keys: tuple[str, ...] = field(array(STRING), "4+", default=())


@struct
class Coordinator:
    """One key's coordinator, or an error and -1."""

    key: str = field(STRING, "4+")
    node_id: int = field(INT32, "4+")
    host: str = field(STRING, "4+")
    port: int = field(INT32, "4+")
    error_code: int = field(INT16, "4+")
    error_message: str | None = field(STRING, "4+", nullable="4+", default="", ignorable=True)


@response(FIND_COORDINATOR)
class FindCoordinatorResponse:
    """Up to v3 one answer, in fields of its own; from v4 `coordinators`."""

    throttle_time_ms: int = field(INT32, "1+", default=0, ignorable=True)
    error_code: int = field(INT16, "0-3", default=0)
    error_message: str | None = field(STRING, "1-3", nullable="1-3", default="", ignorable=True)
    node_id: int = field(INT32, "0-3", default=0)
    host: str = field(STRING, "0-3", default="")
    port: int = field(INT32, "0-3", default=0)
    coordinators: tuple[Coordinator, ...] = field(array(Coordinator), "4+", default=())
