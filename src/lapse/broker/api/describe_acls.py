"""DescribeAcls (key 29): the bindings that match a filter.

Needs DESCRIBE cluster.

Behaviour: the matching bindings, by resource, in a fixed order. INVALID_REQUEST for a filter with
an unknown value; SECURITY_DISABLED without an authorizer.

v1-2 the same · v3 users as resources (KIP-373).
"""

from __future__ import annotations

from itertools import groupby

from lapse.base.errors import ErrorCode, KafkaError
from lapse.broker.request.authorize import CLUSTER_REFUSAL, of_cluster
from lapse.broker.request.context import Services, Session
from lapse.broker.request.endpoint import Endpoint
from lapse.security.acls import AclFilter, Operation, PatternType, Permission, ResourceType
from lapse.wire.schema.delete_acls import DeleteAclsFilter
from lapse.wire.schema.describe_acls import (
    DESCRIBE_ACLS,
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)


async def handle(
    services: Services, _session: Session, _version: int, request: DescribeAclsRequest
) -> DescribeAclsResponse:
    """List the bindings that match the filter."""
    try:
        found = services.access.describe_acls(filter_of(request))
    except KafkaError as e:
        return DescribeAclsResponse(error_code=e.code, error_message=str(e), resources=())
    by_resource = groupby(found, key=lambda b: (b.resource_type, b.pattern_type, b.name))
    return DescribeAclsResponse(
        error_code=ErrorCode.NONE,
        error_message=None,
        resources=tuple(
            DescribeAclsResource(
                resource_type=resource_type,
                resource_name=name,
                pattern_type=pattern_type,
                acls=tuple(
                    AclDescription(
                        principal=b.principal,
                        host=b.host,
                        operation=b.operation,
                        permission_type=b.permission,
                    )
                    for b in bindings
                ),
            )
            for (resource_type, pattern_type, name), bindings in by_resource
        ),
    )


def filter_of(request: DescribeAclsRequest | DeleteAclsFilter) -> AclFilter:
    """The filter of a request; a DeleteAcls request has several."""
    return AclFilter(
        ResourceType(request.resource_type_filter),
        PatternType(request.pattern_type_filter),
        request.resource_name_filter,
        request.principal_filter,
        request.host_filter,
        Operation(request.operation),
        Permission(request.permission_type),
    )


API = Endpoint(
    DESCRIBE_ACLS,
    DescribeAclsRequest,
    DescribeAclsResponse,
    handle,
    of_cluster(Operation.DESCRIBE, DescribeAclsResponse(**CLUSTER_REFUSAL, resources=())),
)
