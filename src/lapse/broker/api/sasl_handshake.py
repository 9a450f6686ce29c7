"""SaslHandshake (key 17): which SASL mechanism a client logs in by (KIP-43).

Needs nothing.

Behaviour: UNSUPPORTED_SASL_MECHANISM, with those that are enabled, ends the connection, and counts
as a failed login. On a listener without SASL, or too early after the last login (KIP-368), it is
ILLEGAL_SASL_STATE. When it may be sent is `security.sasl`'s.

v0 the tokens follow bare · v1 in SaslAuthenticate.
"""

from __future__ import annotations

from lapse.base.errors import ErrorCode
from lapse.broker.request import sasl_login
from lapse.broker.request.context import Services, Session
from lapse.broker.request.endpoint import Endpoint
from lapse.wire.schema.sasl_handshake import (
    SASL_HANDSHAKE,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)


async def handle(
    services: Services, session: Session, version: int, request: SaslHandshakeRequest
) -> SaslHandshakeResponse:
    """Begin a login."""
    if session.sasl is None:
        return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=())
    answered = await sasl_login.handshake(
        services, session, session.sasl, request.mechanism, version
    )
    return SaslHandshakeResponse(error_code=answered.error, mechanisms=answered.mechanisms)


API = Endpoint(SASL_HANDSHAKE, SaslHandshakeRequest, SaslHandshakeResponse, handle, None)
