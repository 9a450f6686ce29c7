"""DeleteGroups (key 42): groups and their offsets go (KIP-229).

v1 throttled after the answer is sent (KIP-219) · v2 flexible.
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

DELETE_GROUPS = api(42, "DeleteGroups", versions="0-2", flexible="2+")


@request(DELETE_GROUPS)
class DeleteGroupsRequest:
    """Asked of each group's coordinator."""

    groups_names: tuple[str, ...] = field(array(STRING))


@struct
class DeletableGroupResult:
    """What became of one group; NON_EMPTY_GROUP while it has members."""

    group_id: str = field(STRING)
    error_code: int = field(INT16)


@response(DELETE_GROUPS)
class DeleteGroupsResponse:
    """Answers per group."""

    throttle_time_ms: int = field(INT32, default=0)
    results: tuple[DeletableGroupResult, ...] = field(array(DeletableGroupResult))
