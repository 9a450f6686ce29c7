"""AlterUserScramCredentials (key 51): SCRAM credentials are set and removed (KIP-554).

v0 flexible. `mechanism` 1 is SCRAM-SHA-256, 2 SCRAM-SHA-512.
"""

from __future__ import annotations

from lapse.wire.declaration import (
    BYTES,
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

ALTER_USER_SCRAM_CREDENTIALS = api(51, "AlterUserScramCredentials", versions="0-0", flexible="0+")


@struct
class ScramCredentialDeletion:
    """A credential that goes."""

    name: str = field(STRING)
    mechanism: int = field(INT8)


@struct
class ScramCredentialUpsertion:
    """A credential to keep; the client salts and hashes, the password stays with it."""

    name: str = field(STRING)
    mechanism: int = field(INT8)
    iterations: int = field(INT32)
    salt: bytes = field(BYTES)
    salted_password: bytes = field(BYTES)


@request(ALTER_USER_SCRAM_CREDENTIALS)
class AlterUserScramCredentialsRequest:
    """A user may appear once."""

    deletions: tuple[ScramCredentialDeletion, ...] = field(array(ScramCredentialDeletion))
    upsertions: tuple[ScramCredentialUpsertion, ...] = field(array(ScramCredentialUpsertion))


@struct
class AlterUserScramCredentialsResult:
    """What became of one user."""

    user: str = field(STRING)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")


@response(ALTER_USER_SCRAM_CREDENTIALS)
class AlterUserScramCredentialsResponse:
    """Answers per user."""

    throttle_time_ms: int = field(INT32, default=0)
    results: tuple[AlterUserScramCredentialsResult, ...] = field(
        array(AlterUserScramCredentialsResult)
    )
