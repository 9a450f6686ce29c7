"""SaslHandshake (key 17): which SASL mechanism a client logs in by (KIP-43).

Needs nothing.

Behaviour: UNSUPPORTED_SASL_MECHANISM lists the enabled mechanisms, ends the connection, and counts
as a failed login; so does ILLEGAL_SASL_STATE in the middle of a login. On a listener without SASL,
or too early after the last login (KIP-368), it is ILLEGAL_SASL_STATE too, and the connection goes
on. `security.sasl` decides when a client may send this request.

v0 tokens follow without a Kafka header · v1 tokens are sent in SaslAuthenticate.
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
    answer = await sasl_login.handshake(services, session, session.sasl, request.mechanism, version)
    return SaslHandshakeResponse(error_code=answer.error, mechanisms=answer.mechanisms)


API = Endpoint(SASL_HANDSHAKE, SaslHandshakeRequest, SaslHandshakeResponse, handle, None)
