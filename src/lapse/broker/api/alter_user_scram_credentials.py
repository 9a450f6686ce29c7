"""AlterUserScramCredentials (key 51): set and remove SCRAM credentials (KIP-554).

Needs ALTER cluster.

Behaviour: a user's changes are made together or not at all, durable and in force at the answer;
connections that are logged in stay so. The client has salted and hashed the password: it never
comes here. UNACCEPTABLE_CREDENTIAL for no name and for iterations out of range,
UNSUPPORTED_SASL_MECHANISM, RESOURCE_NOT_FOUND for the removal of what is not there,
DUPLICATE_RESOURCE for one mechanism of a user named twice; KAFKA_STORAGE_ERROR for all that were
fine.

v0 the only one.
"""

from __future__ import annotations

from lapse.base.errors import ErrorCode, KafkaError
from lapse.broker.request.authorize import CLUSTER_REFUSAL, of_cluster
from lapse.broker.request.context import Services, Session
from lapse.broker.request.endpoint import Endpoint
from lapse.security.acls import Operation
from lapse.security.scram import (
    Credentials,
    ScramCredential,
    ScramMechanism,
    check_scram_user,
    check_upsertion,
    credential_of,
)
from lapse.wire.schema.alter_user_scram_credentials import (
    ALTER_USER_SCRAM_CREDENTIALS,
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)

Asked = ScramCredentialDeletion | ScramCredentialUpsertion
Changes = dict[tuple[str, ScramMechanism], ScramCredential | None]


async def handle(
    services: Services, _session: Session, _version: int, request: AlterUserScramCredentialsRequest
) -> AlterUserScramCredentialsResponse:
    """Change what can be changed."""
    errors: dict[str, KafkaError | None] = {}
    changes: Changes = {}
    asked: list[Asked] = [*request.deletions, *request.upsertions]
    for one in asked:
        errors.setdefault(one.name, None)
        try:
            mechanism, credential = judge(one, services.access.credentials)
            if (one.name, mechanism) in changes:
                raise KafkaError(
                    ErrorCode.DUPLICATE_RESOURCE,
                    "A user credential cannot be altered twice in the same request",
                )
            changes[one.name, mechanism] = credential
        except KafkaError as e:
            errors[one.name] = errors[one.name] or e
    wanted = {key: change for key, change in changes.items() if errors[key[0]] is None}
    if wanted:
        try:
            await services.access.change_credentials(wanted)
        except KafkaError as e:
            errors = {user: error or e for user, error in errors.items()}
    return AlterUserScramCredentialsResponse(
        results=tuple(
            AlterUserScramCredentialsResult(
                user=user,
                error_code=ErrorCode.NONE if error is None else error.code,
                error_message=None if error is None else str(error),
            )
            for user, error in errors.items()
        )
    )


def judge(asked: Asked, there: Credentials) -> tuple[ScramMechanism, ScramCredential | None]:
    """The mechanism, and what is to be kept for it; raises KafkaError."""
    if isinstance(asked, ScramCredentialUpsertion):
        mechanism = check_upsertion(asked.name, asked.mechanism, asked.iterations)
        salted, salt = bytes(asked.salted_password), bytes(asked.salt)
        if not salt or len(salted) != len(mechanism.digest(b"")):
            raise KafkaError(
                ErrorCode.UNACCEPTABLE_CREDENTIAL,
                f"the salt is empty, or the salted password is none of {mechanism.mechanism_name}",
            )
        return mechanism, credential_of(mechanism, salted, salt, asked.iterations)
    mechanism = check_scram_user(asked.name, asked.mechanism)
    if (asked.name, mechanism) not in there:
        raise KafkaError(
            ErrorCode.RESOURCE_NOT_FOUND,
            "Attempt to delete a user credential that does not exist",
        )
    return mechanism, None


# --- who may --------------------------------------------------------------------------------------


def _no_credentials(
    request: AlterUserScramCredentialsRequest,
) -> AlterUserScramCredentialsResponse:
    names = [*(one.name for one in request.deletions), *(one.name for one in request.upsertions)]
    return AlterUserScramCredentialsResponse(
        results=tuple(
            AlterUserScramCredentialsResult(user=user, **CLUSTER_REFUSAL)
            for user in dict.fromkeys(names)
        )
    )


API = Endpoint(
    ALTER_USER_SCRAM_CREDENTIALS,
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    handle,
    of_cluster(Operation.ALTER, _no_credentials),
)
