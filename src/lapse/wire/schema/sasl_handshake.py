"""SaslHandshake (key 17): which SASL mechanism follows (KIP-43).

v0 the mechanism's own bytes follow, without Kafka's header · v1 they follow in SaslAuthenticate
(KIP-152). Never flexible: Java clients up to 2.4 negotiate newer versions wrongly (KAFKA-9577).
"""

from __future__ import annotations

from lapse.wire.declaration import (
    INT16,
    STRING,
    api,
    array,
    field,
    request,
    response,
)

SASL_HANDSHAKE = api(17, "SaslHandshake", versions="0-1", flexible="none")


@request(SASL_HANDSHAKE)
class SaslHandshakeRequest:
    """The mechanism wanted."""

    mechanism: str = field(STRING)


@response(SASL_HANDSHAKE)
class SaslHandshakeResponse:
    """Which mechanisms there are; UNSUPPORTED_SASL_MECHANISM for another."""

    error_code: int = field(INT16)
    mechanisms: tuple[str, ...] = field(array(STRING))
