"""AlterUserScramCredentials (key 51): set and remove SCRAM credentials (KIP-554).

Needs ALTER cluster.

Behaviour: all changes of a user are made or none is; they are durable and in force when the broker
responds. Connections that are authenticated stay authenticated. The client has salted and hashed
the password: the password never reaches the broker. UNACCEPTABLE_CREDENTIAL for an empty user name
and for iterations out of range, UNSUPPORTED_SASL_MECHANISM, RESOURCE_NOT_FOUND for the removal of a
credential that does not exist, DUPLICATE_RESOURCE for one mechanism of a user named twice;
KAFKA_STORAGE_ERROR for every user without another error.

v0 the only one.
"""

from __future__ import annotations

from lapse.base.errors import ErrorCode, KafkaError
from lapse.broker.request.authorize import CLUSTER_REFUSAL, of_cluster
from lapse.broker.request.context import Services, Session
from lapse.broker.request.endpoint import Endpoint, always
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

Alteration = ScramCredentialDeletion | ScramCredentialUpsertion
Changes = dict[tuple[str, ScramMechanism], ScramCredential | None]


async def handle(
    services: Services, _session: Session, _version: int, request: AlterUserScramCredentialsRequest
) -> AlterUserScramCredentialsResponse:
    """Make the changes of every user whose changes are all valid."""
    errors: dict[str, KafkaError | None] = {}
    changes: Changes = {}
    alterations: list[Alteration] = [*request.deletions, *request.upsertions]
    for alteration in alterations:
        errors.setdefault(alteration.name, None)
        try:
            mechanism, credential = validate(alteration, services.access.credentials)
            if (alteration.name, mechanism) in changes:
                raise KafkaError(
                    ErrorCode.DUPLICATE_RESOURCE,
                    "A user credential cannot be altered twice in the same request",
                )
            changes[alteration.name, mechanism] = credential
        except KafkaError as e:
            errors[alteration.name] = errors[alteration.name] or e
    accepted = {key: change for key, change in changes.items() if errors[key[0]] is None}
    if accepted:
        try:
            await services.access.change_credentials(accepted)
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


def validate(
    alteration: Alteration, existing: Credentials
) -> tuple[ScramMechanism, ScramCredential | None]:
    """The mechanism and its new credential, None to delete it; raises KafkaError."""
    if isinstance(alteration, ScramCredentialUpsertion):
        mechanism = check_upsertion(alteration.name, alteration.mechanism, alteration.iterations)
        salted, salt = bytes(alteration.salted_password), bytes(alteration.salt)
        if not salt or len(salted) != len(mechanism.digest(b"")):
            raise KafkaError(
                ErrorCode.UNACCEPTABLE_CREDENTIAL,
                f"empty salt, or salted password of a wrong length for {mechanism.mechanism_name}",
            )
        return mechanism, credential_of(mechanism, salted, salt, alteration.iterations)
    mechanism = check_scram_user(alteration.name, alteration.mechanism)
    if (alteration.name, mechanism) not in existing:
        raise KafkaError(
            ErrorCode.RESOURCE_NOT_FOUND,
            "Attempt to delete a user credential that does not exist",
        )
    return mechanism, None


# --- authorization --------------------------------------------------------------------------------


def _no_credentials(
    request: AlterUserScramCredentialsRequest,
) -> AlterUserScramCredentialsResponse:
    names = [*(d.name for d in request.deletions), *(u.name for u in request.upsertions)]
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
    by_controller=always,
)
