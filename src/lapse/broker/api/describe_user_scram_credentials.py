"""DescribeUserScramCredentials (key 50): the SCRAM credentials of users (KIP-554).

Needs DESCRIBE cluster.

Behaviour: mechanisms and iterations of the requested users, or of all; salts and keys are never
returned. RESOURCE_NOT_FOUND for a user without any, DUPLICATE_RESOURCE for one requested twice.

v0 the only one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from lapse.base.errors import ErrorCode, KafkaError
from lapse.broker.request.authorize import CLUSTER_REFUSAL, of_cluster
from lapse.broker.request.context import Services, Session
from lapse.broker.request.endpoint import Endpoint
from lapse.security.acls import Operation
from lapse.wire.schema.describe_user_scram_credentials import (
    DESCRIBE_USER_SCRAM_CREDENTIALS,
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)


async def handle(
    services: Services,
    _session: Session,
    _version: int,
    request: DescribeUserScramCredentialsRequest,
) -> DescribeUserScramCredentialsResponse:
    """Describe the credentials of each user."""
    by_user: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for (user, mechanism), kept in services.access.credentials.items():
        by_user[user].append((mechanism, kept.iterations))
    times = Counter(user.name for user in request.users or ())
    if not times:
        times = Counter(sorted(by_user))
    return DescribeUserScramCredentialsResponse(
        error_code=ErrorCode.NONE,
        error_message=None,
        results=tuple(
            _result(user, sorted(by_user.get(user, ())), twice=bool(request.users) and count > 1)
            for user, count in times.items()
        ),
    )


def _result(
    user: str, found: Sequence[tuple[int, int]], *, twice: bool
) -> DescribeUserScramCredentialsResult:
    error: KafkaError | None = None
    if twice:
        error = KafkaError(ErrorCode.DUPLICATE_RESOURCE, f"user {user!r} is requested twice")
    elif not found:
        error = KafkaError(
            ErrorCode.RESOURCE_NOT_FOUND,
            f"Attempt to describe a user credential that does not exist: {user}",
        )
    return DescribeUserScramCredentialsResult(
        user=user,
        error_code=ErrorCode.NONE if error is None else error.code,
        error_message=None if error is None else str(error),
        credential_infos=tuple(
            CredentialInfo(mechanism=mechanism, iterations=iterations)
            for mechanism, iterations in found
            if error is None
        ),
    )


API = Endpoint(
    DESCRIBE_USER_SCRAM_CREDENTIALS,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    handle,
    of_cluster(
        Operation.DESCRIBE,
        DescribeUserScramCredentialsResponse(**CLUSTER_REFUSAL, results=()),
    ),
)
