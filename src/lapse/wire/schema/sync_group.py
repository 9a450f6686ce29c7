"""SyncGroup (key 14): the leader hands in the assignment, each member gets its part.

v1 throttle time · v2 throttled after the answer is sent (KIP-219) · v3 static members (KIP-345) ·
v4 flexible · v5 protocol type and name, which must be the group's (KIP-559).
"""

from __future__ import annotations

from lapse.wire.declaration import (
    BYTES,
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

SYNC_GROUP = api(14, "SyncGroup", versions="0-5", flexible="4+")


@struct
class SyncGroupRequestAssignment:
    """One member's part; for consumers partitions in the form of KIP-54."""

    member_id: str = field(STRING)
    assignment: bytes = field(BYTES)


@request(SYNC_GROUP)
class SyncGroupRequest:
    """`assignments` is empty for all but the leader."""

    group_id: str = field(STRING)
    generation_id: int = field(INT32)
    member_id: str = field(STRING)
    group_instance_id: str | None = field(STRING, "3+", nullable="3+", default=None)
    protocol_type: str | None = field(STRING, "5+", nullable="5+", default=None, ignorable=True)
    protocol_name: str | None = field(STRING, "5+", nullable="5+", default=None, ignorable=True)
    assignments: tuple[SyncGroupRequestAssignment, ...] = field(array(SyncGroupRequestAssignment))


@response(SYNC_GROUP)
class SyncGroupResponse:
    """The member's own part."""

    throttle_time_ms: int = field(INT32, "1+", default=0, ignorable=True)
    error_code: int = field(INT16)
    protocol_type: str | None = field(STRING, "5+", nullable="5+", default=None, ignorable=True)
    protocol_name: str | None = field(STRING, "5+", nullable="5+", default=None, ignorable=True)
    assignment: bytes = field(BYTES)
