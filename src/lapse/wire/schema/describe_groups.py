"""DescribeGroups (key 15): classic groups with their members.

v1 throttle time · v2 throttled after the answer is sent (KIP-219) · v3 authorized operations
(KIP-430) · v4 static members (KIP-345) · v5 flexible · v6 GROUP_ID_NOT_FOUND instead of a dead
group (KIP-1043).
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
from lapse.wire.schema.metadata import OPERATIONS_UNKNOWN

DESCRIBE_GROUPS = api(15, "DescribeGroups", versions="0-6", flexible="5+")


@request(DESCRIBE_GROUPS)
class DescribeGroupsRequest:
    """Asked of each group's coordinator."""

    groups: tuple[str, ...] = field(array(STRING))
    include_authorized_operations: bool = field(BOOL, "3+", default=False)


@struct
class DescribedGroupMember:
    """A member; metadata and assignment only while the group is stable."""

    member_id: str = field(STRING)
    group_instance_id: str | None = field(STRING, "4+", nullable="4+", default=None, ignorable=True)
    client_id: str = field(STRING)
    client_host: str = field(STRING)
    member_metadata: bytes = field(BYTES)
    member_assignment: bytes = field(BYTES)


@struct
class DescribedGroup:
    """A group; `protocol_data` names the assignor while it is stable."""

    error_code: int = field(INT16)
    error_message: str | None = field(STRING, "6+", nullable="6+", default=None)
    group_id: str = field(STRING)
    group_state: str = field(STRING)
    protocol_type: str = field(STRING)
    protocol_data: str = field(STRING)
    members: tuple[DescribedGroupMember, ...] = field(array(DescribedGroupMember))
    authorized_operations: int = field(INT32, "3+", default=OPERATIONS_UNKNOWN)


@response(DESCRIBE_GROUPS)
class DescribeGroupsResponse:
    """Answers per group."""

    throttle_time_ms: int = field(INT32, "1+", default=0, ignorable=True)
    groups: tuple[DescribedGroup, ...] = field(array(DescribedGroup))
