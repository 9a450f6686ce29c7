"""DeleteAcls (key 31): delete the bindings that match some filters.

Needs ALTER cluster.

Behaviour: the response lists the bindings that matched each filter; all of them are durably deleted
when the broker responds. A binding that matches two filters is listed for both. INVALID_REQUEST
for a filter with an unknown value; SECURITY_DISABLED without an authorizer, KAFKA_STORAGE_ERROR for
all.

v1-2 the same · v3 users as resources (KIP-373).
"""

from __future__ import annotations

from lapse.base.errors import ErrorCode, KafkaError
from lapse.broker.api.describe_acls import filter_of
from lapse.broker.request.authorize import CLUSTER_REFUSAL, of_cluster
from lapse.broker.request.context import Services, Session
from lapse.broker.request.endpoint import Endpoint, always
from lapse.security.acls import AclBinding, Operation
from lapse.wire.schema.delete_acls import (
    DELETE_ACLS,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)


async def handle(
    services: Services, _session: Session, _version: int, request: DeleteAclsRequest
) -> DeleteAclsResponse:
    """Delete the bindings that match the valid filters."""
    filters = [filter_of(one) for one in request.filters]
    try:
        results = (await services.access.delete_acls(filters)).results
    except KafkaError as e:
        results = (e,) * len(request.filters)
    return DeleteAclsResponse(filter_results=tuple(map(_result, results)))


def _result(found: tuple[AclBinding, ...] | KafkaError) -> DeleteAclsFilterResult:
    if isinstance(found, KafkaError):
        return DeleteAclsFilterResult(
            error_code=found.code, error_message=str(found), matching_acls=()
        )
    return DeleteAclsFilterResult(
        error_code=ErrorCode.NONE,
        error_message=None,
        matching_acls=tuple(
            DeleteAclsMatchingAcl(
                error_code=ErrorCode.NONE,
                error_message=None,
                resource_type=b.resource_type,
                resource_name=b.name,
                pattern_type=b.pattern_type,
                principal=b.principal,
                host=b.host,
                operation=b.operation,
                permission_type=b.permission,
            )
            for b in found
        ),
    )


API = Endpoint(
    DELETE_ACLS,
    DeleteAclsRequest,
    DeleteAclsResponse,
    handle,
    of_cluster(
        Operation.ALTER,
        lambda request: DeleteAclsResponse(
            filter_results=tuple(
                DeleteAclsFilterResult(**CLUSTER_REFUSAL, matching_acls=()) for _ in request.filters
            )
        ),
    ),
    by_controller=always,
)
