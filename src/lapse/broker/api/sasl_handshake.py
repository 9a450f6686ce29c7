"""SaslHandshake (key 17): which SASL mechanism a client logs in by (KIP-43).

Behaviour: UNSUPPORTED_SASL_MECHANISM, with those that are enabled, ends the connection, and counts
as a failed login. On a listener without SASL, or too early after the last login (KIP-368), it is
ILLEGAL_SASL_STATE. When it may be sent is `security.sasl`'s.

v0 the tokens follow bare · v1 in SaslAuthenticate.
"""

from __future__ import annotations

from lapse.base.errors import ErrorCode
from lapse.broker import login
from lapse.broker.services import Services, Session
from lapse.wire.schema.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse


async def handle(
    services: Services, session: Session, version: int, request: SaslHandshakeRequest
) -> SaslHandshakeResponse:
    """Begin a login."""
    if session.sasl is None:
        return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=())
    answered = await login.handshake(services, session, session.sasl, request.mechanism, version)
    return SaslHandshakeResponse(error_code=answered.error, mechanisms=answered.mechanisms)
