"""Heartbeat (key 12): a member of a classic group lives.

v1 throttle time · v2 throttled after the answer is sent (KIP-219) · v3 static members (KIP-345) ·
v4 flexible.
"""

from __future__ import annotations

from lapse.wire.declaration import (
    INT16,
    INT32,
    STRING,
    api,
    field,
    request,
    response,
)

HEARTBEAT = api(12, "Heartbeat", versions="0-4", flexible="4+")


@request(HEARTBEAT)
class HeartbeatRequest:
    """Sent every `heartbeat.interval.ms`."""

    group_id: str = field(STRING)
    generation_id: int = field(INT32)
    member_id: str = field(STRING)
    group_instance_id: str | None = field(STRING, "3+", nullable="3+", default=None)


@response(HEARTBEAT)
class HeartbeatResponse:
    """REBALANCE_IN_PROGRESS sends the member back to JoinGroup."""

    throttle_time_ms: int = field(INT32, "1+", default=0, ignorable=True)
    error_code: int = field(INT16)
