"""CreateAcls (key 30). Numbers are those of `describe_acls`.

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

CREATE_ACLS = api(30, "CreateAcls", versions="1-3", flexible="2+")


@struct
class AclCreation:
    """One ACL wanted."""

    resource_type: int = field(INT8)
    resource_name: str = field(STRING)
    resource_pattern_type: int = field(INT8, "1+", default=3)
    principal: str = field(STRING)
    host: str = field(STRING)
    operation: int = field(INT8)
    permission_type: int = field(INT8)


@request(CREATE_ACLS)
class CreateAclsRequest:
    """ACLs wanted."""

    creations: tuple[AclCreation, ...] = field(array(AclCreation))


@struct
class AclCreationResult:
    """What became of one; one that is there already is no error."""

    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")


@response(CREATE_ACLS)
class CreateAclsResponse:
    """Answers in the order of the request."""

    throttle_time_ms: int = field(INT32, default=0)
    results: tuple[AclCreationResult, ...] = field(array(AclCreationResult))
