"""DeleteAcls (key 31). Numbers are those of `describe_acls`.

v1 the oldest still spoken: pattern types (KIP-290) · v2 flexible · v3 users as resources (KIP-373).
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

DELETE_ACLS = api(31, "DeleteAcls", versions="1-3", flexible="2+")


@struct
class DeleteAclsFilter:
    """Which ACLs go; null lets every name, principal or host pass."""

    resource_type_filter: int = field(INT8)
    resource_name_filter: str | None = field(STRING, nullable="0+")
    pattern_type_filter: int = field(INT8, "1+", default=3)
    principal_filter: str | None = field(STRING, nullable="0+")
    host_filter: str | None = field(STRING, nullable="0+")
    operation: int = field(INT8)
    permission_type: int = field(INT8)


@request(DELETE_ACLS)
class DeleteAclsRequest:
    """What goes."""

    filters: tuple[DeleteAclsFilter, ...] = field(array(DeleteAclsFilter))


@struct
class DeleteAclsMatchingAcl:
    """An ACL that passed a filter, and whether it is gone."""

    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    resource_type: int = field(INT8)
    resource_name: str = field(STRING)
    pattern_type: int = field(INT8, "1+", default=3)
    principal: str = field(STRING)
    host: str = field(STRING)
    operation: int = field(INT8)
    permission_type: int = field(INT8)


@struct
class DeleteAclsFilterResult:
    """What one filter found."""

    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    matching_acls: tuple[DeleteAclsMatchingAcl, ...] = field(array(DeleteAclsMatchingAcl))


@response(DELETE_ACLS)
class DeleteAclsResponse:
    """Answers in the order of the filters."""

    throttle_time_ms: int = field(INT32, default=0)
    filter_results: tuple[DeleteAclsFilterResult, ...] = field(array(DeleteAclsFilterResult))
