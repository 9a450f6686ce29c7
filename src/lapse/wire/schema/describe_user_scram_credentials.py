"""DescribeUserScramCredentials (key 50): who has which SCRAM credentials (KIP-554).

v0 flexible. `mechanism` 1 is SCRAM-SHA-256, 2 SCRAM-SHA-512.
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

DESCRIBE_USER_SCRAM_CREDENTIALS = api(
    50, "DescribeUserScramCredentials", versions="0-0", flexible="0+"
)


@struct
class UserName:
    """A requested user."""

    name: str = field(STRING)


@request(DESCRIBE_USER_SCRAM_CREDENTIALS)
class DescribeUserScramCredentialsRequest:
    """`users` null or empty means all."""

    users: tuple[UserName, ...] | None = field(array(UserName), nullable="0+")


@struct
class CredentialInfo:
    """A credential, without its secrets."""

    mechanism: int = field(INT8)
    iterations: int = field(INT32)


@struct
class DescribeUserScramCredentialsResult:
    """One user's credentials."""

    user: str = field(STRING)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    credential_infos: tuple[CredentialInfo, ...] = field(array(CredentialInfo))


@response(DESCRIBE_USER_SCRAM_CREDENTIALS)
class DescribeUserScramCredentialsResponse:
    """Answers per user."""

    throttle_time_ms: int = field(INT32, default=0)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    results: tuple[DescribeUserScramCredentialsResult, ...] = field(
        array(DescribeUserScramCredentialsResult)
    )
