"""JoinGroup (key 11): a member enters a classic group, or answers a rebalance.

v1 rebalance timeout · v2 throttle time · v3 throttled after the answer is sent (KIP-219) · v4 a new
member is first only given its id: MEMBER_ID_REQUIRED (KIP-394) · v5 static members (KIP-345) · v6
flexible · v7 protocol type in the answer (KIP-559) · v8 reason (KIP-800) · v9 the leader may be
which leaves the assignment as it is (KIP-814).
"""

from __future__ import annotations

from lapse.wire.declaration import (
    BOOL,
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

JOIN_GROUP = api(11, "JoinGroup", versions="0-9", flexible="6+")


@struct
class JoinGroupRequestProtocol:
    """An assignor the member can use; for consumers `metadata` is a subscription."""

    name: str = field(STRING)
    metadata: bytes = field(BYTES)


@request(JOIN_GROUP)
class JoinGroupRequest:
    """The member id is empty at first. In v0 the session timeout is the rebalance timeout too."""

    group_id: str = field(STRING)
    session_timeout_ms: int = field(INT32)
    rebalance_timeout_ms: int = field(INT32, "1+", default=-1, ignorable=True)
    member_id: str = field(STRING)
    group_instance_id: str | None = field(STRING, "5+", nullable="5+", default=None)
    protocol_type: str = field(STRING)
    protocols: tuple[JoinGroupRequestProtocol, ...] = field(array(JoinGroupRequestProtocol))
    reason: str | None = field(STRING, "8+", nullable="8+", default=None, ignorable=True)


@struct
class JoinGroupResponseMember:
    """A member as the leader needs to know it."""

    member_id: str = field(STRING)
    group_instance_id: str | None = field(STRING, "5+", nullable="5+", default=None, ignorable=True)
    metadata: bytes = field(BYTES)


@response(JOIN_GROUP)
class JoinGroupResponse:
    """`members` is filled for the leader alone, which assigns and then sends SyncGroup."""

    throttle_time_ms: int = field(INT32, "2+", default=0, ignorable=True)
    error_code: int = field(INT16)
    generation_id: int = field(INT32, default=-1)
    protocol_type: str | None = field(STRING, "7+", nullable="7+", default=None, ignorable=True)
    protocol_name: str | None = field(STRING, nullable="7+")
    leader: str = field(STRING)
    skip_assignment: bool = field(BOOL, "9+", default=False)
    member_id: str = field(STRING)
    members: tuple[JoinGroupResponseMember, ...] = field(array(JoinGroupResponseMember))
