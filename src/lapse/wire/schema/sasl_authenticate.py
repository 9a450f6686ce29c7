"""SaslAuthenticate (key 36): the bytes of a SASL mechanism (KIP-152).

v1 session lifetime (KIP-368) · v2 flexible.
"""

from __future__ import annotations

from lapse.wire.declaration import (
    BYTES,
    INT16,
    INT64,
    STRING,
    api,
    field,
    request,
    response,
)

SASL_AUTHENTICATE = api(36, "SaslAuthenticate", versions="0-2", flexible="2+")


@request(SASL_AUTHENTICATE)
class SaslAuthenticateRequest:
    """The client's next bytes."""

    auth_bytes: bytes = field(BYTES)


@response(SASL_AUTHENTICATE)
class SaslAuthenticateResponse:
    """The server's next bytes.

    `session_lifetime_ms` above 0: by then the client must have authenticated again.
    """

    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    auth_bytes: bytes = field(BYTES)
    session_lifetime_ms: int = field(INT64, "1+", default=0, ignorable=True)
