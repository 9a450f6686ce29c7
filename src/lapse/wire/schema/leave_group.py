"""LeaveGroup (key 13): members leave a classic group, or are removed.

v1 throttle time · v2 throttled after the answer is sent (KIP-219) · v3 several members; static ones
by their instance id (KIP-345) · v4 flexible · v5 reason (KIP-800).
"""

from __future__ import annotations

from lapse.wire.declaration import (
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

LEAVE_GROUP = api(13, "LeaveGroup", versions="0-5", flexible="4+")


@struct
class MemberIdentity:
    """Who leaves: with an instance id the member id may be empty."""

    member_id: str = field(STRING, "3+")
    group_instance_id: str | None = field(STRING, "3+", nullable="3+", default=None)
    reason: str | None = field(STRING, "5+", nullable="5+", default=None, ignorable=True)


@request(LEAVE_GROUP)
class LeaveGroupRequest:
    """Up to v2 one `member_id`, from v3 `members`."""

    group_id: str = field(STRING)
    member_id: str = field(STRING, "0-2", default="")
    members: tuple[MemberIdentity, ...] = field(array(MemberIdentity), "3+", default=())


@struct
class MemberResponse:
    """What became of one member."""

    member_id: str = field(STRING, "3+")
    group_instance_id: str | None = field(STRING, "3+", nullable="3+")
    error_code: int = field(INT16, "3+")


@response(LEAVE_GROUP)
class LeaveGroupResponse:
    """Up to v2 `error_code` alone, from v3 an answer per member too."""

    throttle_time_ms: int = field(INT32, "1+", default=0, ignorable=True)
    error_code: int = field(INT16)
    members: tuple[MemberResponse, ...] = field(array(MemberResponse), "3+", default=())
