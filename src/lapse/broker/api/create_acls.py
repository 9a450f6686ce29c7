"""CreateAcls (key 30): create access control bindings.

Needs ALTER cluster.

Behaviour: each binding is checked by itself (`security.acls.check_binding`): INVALID_REQUEST says
what is wrong with it. Valid bindings are durable and in force when the broker responds; one that
exists already is no error. SECURITY_DISABLED without an authorizer, KAFKA_STORAGE_ERROR for all.

v1-2 the same · v3 users as resources (KIP-373).
"""

from __future__ import annotations

from lapse.base.errors import ErrorCode, KafkaError
from lapse.broker.request.authorize import CLUSTER_REFUSAL, of_cluster
from lapse.broker.request.context import Services, Session
from lapse.broker.request.endpoint import Endpoint, always
from lapse.security.acls import AclBinding, Operation, PatternType, Permission, ResourceType
from lapse.wire.schema.create_acls import (
    CREATE_ACLS,
    AclCreation,
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)


async def handle(
    services: Services, _session: Session, _version: int, request: CreateAclsRequest
) -> CreateAclsResponse:
    """Create every valid binding."""
    bindings = [_binding(creation) for creation in request.creations]
    try:
        errors = (await services.access.create_acls(bindings)).errors
    except KafkaError as e:
        errors = (e,) * len(request.creations)
    return CreateAclsResponse(results=tuple(_result(error) for error in errors))


def _binding(creation: AclCreation) -> AclBinding:
    return AclBinding(
        ResourceType(creation.resource_type),
        PatternType(creation.resource_pattern_type),
        creation.resource_name,
        creation.principal,
        creation.host,
        Operation(creation.operation),
        Permission(creation.permission_type),
    )


def _result(error: KafkaError | None) -> AclCreationResult:
    if error is None:
        return AclCreationResult(error_code=ErrorCode.NONE, error_message=None)
    return AclCreationResult(error_code=error.code, error_message=str(error))


API = Endpoint(
    CREATE_ACLS,
    CreateAclsRequest,
    CreateAclsResponse,
    handle,
    of_cluster(
        Operation.ALTER,
        lambda request: CreateAclsResponse(
            results=tuple(AclCreationResult(**CLUSTER_REFUSAL) for _ in request.creations)
        ),
    ),
    by_controller=always,
)
