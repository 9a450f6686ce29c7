"""SaslAuthenticate (key 36): a step of a login (KIP-152).

Needs nothing.

Behaviour: SASL_AUTHENTICATION_FAILED is sent late (`login`) and ends the connection. On a listener
without SASL, or when no login is in progress, the error is ILLEGAL_SASL_STATE.

v0 the same · v1 how long the session lasts (KIP-368) · v2 flexible.
"""

from __future__ import annotations

from lapse.base.errors import ErrorCode
from lapse.broker.request import sasl_login
from lapse.broker.request.context import Services, Session
from lapse.broker.request.endpoint import Endpoint
from lapse.wire.schema.sasl_authenticate import (
    SASL_AUTHENTICATE,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)


async def handle(
    services: Services, session: Session, _version: int, request: SaslAuthenticateRequest
) -> SaslAuthenticateResponse:
    """Process the client's token, and return the server's."""
    if session.sasl is None:
        return SaslAuthenticateResponse(
            error_code=ErrorCode.ILLEGAL_SASL_STATE,
            error_message="this listener has no SASL",
            auth_bytes=b"",
        )
    answer = await sasl_login.authenticate(
        services, session, session.sasl, bytes(request.auth_bytes)
    )
    return SaslAuthenticateResponse(
        error_code=answer.error,
        error_message=answer.message,
        auth_bytes=answer.auth_bytes,
        session_lifetime_ms=answer.session_lifetime_ms,
    )


API = Endpoint(SASL_AUTHENTICATE, SaslAuthenticateRequest, SaslAuthenticateResponse, handle, None)
