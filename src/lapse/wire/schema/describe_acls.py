"""DescribeAcls (key 29): the ACLs that a filter lets pass.

v1 the oldest still spoken: pattern types (KIP-290) · v2 flexible · v3 users as resources (KIP-373).
Numbers are Kafka's enums: `resource_type` 2 topic, 3 group, 4 cluster, 5 transactional id, 6
delegation token, 7 user; `pattern_type` 3 literal, 4 prefixed; `permission_type` 2 deny, 3 allow. 1
is any; among pattern types 2 is every pattern that matches the name.
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

DESCRIBE_ACLS = api(29, "DescribeAcls", versions="1-3", flexible="2+")


@request(DESCRIBE_ACLS)
class DescribeAclsRequest:
    """The filter; null lets every name, principal or host pass."""

    resource_type_filter: int = field(INT8)
    resource_name_filter: str | None = field(STRING, nullable="0+")
    pattern_type_filter: int = field(INT8, "1+", default=3)
    principal_filter: str | None = field(STRING, nullable="0+")
    host_filter: str | None = field(STRING, nullable="0+")
    operation: int = field(INT8)
    permission_type: int = field(INT8)


@struct
class AclDescription:
    """Who may, or may not, do what from where."""

    principal: str = field(STRING)
    host: str = field(STRING)
    operation: int = field(INT8)
    permission_type: int = field(INT8)


@struct
class DescribeAclsResource:
    """A resource or prefix, with its ACLs."""

    resource_type: int = field(INT8)
    resource_name: str = field(STRING)
    pattern_type: int = field(INT8, "1+", default=3)
    acls: tuple[AclDescription, ...] = field(array(AclDescription))


@response(DESCRIBE_ACLS)
class DescribeAclsResponse:
    """What passed the filter."""

    throttle_time_ms: int = field(INT32, default=0)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    resources: tuple[DescribeAclsResource, ...] = field(array(DescribeAclsResource))
