"""ListGroups (key 16): the groups that this broker coordinates.

v1 throttle time · v2 throttled after the answer is sent (KIP-219) · v3 flexible · v4 filter by
state (KIP-518) · v5 filter by type (KIP-848).
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

LIST_GROUPS = api(16, "ListGroups", versions="0-5", flexible="3+")


@request(LIST_GROUPS)
class ListGroupsRequest:
    """An empty filter lets all pass."""

    states_filter: tuple[str, ...] = field(array(STRING), "4+", default=())
    types_filter: tuple[str, ...] = field(array(STRING), "5+", default=())


@struct
class ListedGroup:
    """One group."""

    group_id: str = field(STRING)
    protocol_type: str = field(STRING)
    group_state: str = field(STRING, "4+", default="", ignorable=True)
    group_type: str = field(STRING, "5+", default="", ignorable=True)


@response(LIST_GROUPS)
class ListGroupsResponse:
    """Only what the caller may describe."""

    throttle_time_ms: int = field(INT32, "1+", default=0, ignorable=True)
    error_code: int = field(INT16)
    groups: tuple[ListedGroup, ...] = field(array(ListedGroup))
