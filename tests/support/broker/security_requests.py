"""A request of each API of ACLs, credentials and logins, for a node that has none of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lapse.wire.schema.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from lapse.wire.schema.create_acls import AclCreation, CreateAclsRequest
from lapse.wire.schema.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from lapse.wire.schema.describe_acls import DescribeAclsRequest
from lapse.wire.schema.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from lapse.wire.schema.sasl_authenticate import SaslAuthenticateRequest
from lapse.wire.schema.sasl_handshake import SaslHandshakeRequest

_FILTER: Mapping[str, Any] = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 3,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}

SECURITY_REQUESTS: Mapping[int, Any] = {
    17: SaslHandshakeRequest(mechanism="PLAIN"),
    29: DescribeAclsRequest(**_FILTER),
    30: CreateAclsRequest(
        creations=(
            AclCreation(
                resource_type=2,
                resource_name="t",
                principal="User:alice",
                host="*",
                operation=3,
                permission_type=3,
            ),
        )
    ),
    31: DeleteAclsRequest(filters=(DeleteAclsFilter(**_FILTER),)),
    36: SaslAuthenticateRequest(auth_bytes=b"\0alice\0secret"),
    50: DescribeUserScramCredentialsRequest(users=(UserName(name="x"),)),
    51: AlterUserScramCredentialsRequest(
        deletions=(ScramCredentialDeletion(name="x", mechanism=1),),
        upsertions=(
            ScramCredentialUpsertion(
                name="alice",
                mechanism=1,
                iterations=4096,
                salt=b"salt",
                salted_password=bytes(32),
            ),
        ),
    ),
}
# ILLEGAL_SASL_STATE and SECURITY_DISABLED; the others' errors are of their items.
SECURITY_ERRORS = {17: 34, 36: 34, 29: 54}
