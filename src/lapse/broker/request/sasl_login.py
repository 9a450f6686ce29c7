"""Logins by SASL: what `security.sasl` decides of a connection, done to the connection.

Each has to be within its budgets before it is tried (`security.attempts`). A failed one is answered
late (`security.throttle`), logged with its reason, counted, and ends its connection. The error that
a client gets says no more than Kafka's; nothing here sees a password.
"""

from __future__ import annotations

import asyncio
import logging
import struct

from lapse.base.clock import monotonic_ms
from lapse.base.errors import KafkaError
from lapse.broker.request.context import CloseConnection, Services, Session
from lapse.security.sasl import AuthenticateAnswer, HandshakeAnswer, SaslServer, SessionExpired
from lapse.wire.codec import Part

logger = logging.getLogger(__name__)

_SIZE = struct.Struct(">i")
_API_KEY_BYTES = 2
TOO_MANY = (
    "not tried, since too many attempts failed: lapse.login.failures.per.minute says how many may"
)


async def admit(services: Services, session: Session, sasl: SaslServer, frame: memoryview) -> None:
    """Whether a frame may be looked at; raises CloseConnection where it may not.

    Before its login a client may ask ApiVersions and what belongs to the login; afterwards
    everything, until its session ends. Anything else before is a failed login, as in Kafka; it has
    no answer, where Kafka has one for a client that has begun.
    """
    if len(frame) < _API_KEY_BYTES:
        return
    key = int.from_bytes(frame[:_API_KEY_BYTES], "big", signed=True)
    try:
        sasl.admit(key, monotonic_ms(services.clock))
    except SessionExpired as e:
        raise CloseConnection(str(e)) from e
    except KafkaError as e:
        await refuse(services, session, str(e))
        raise CloseConnection(session.ends) from e


async def handshake(
    services: Services, session: Session, sasl: SaslServer, mechanism: str, version: int
) -> HandshakeAnswer:
    """SaslHandshake."""
    answered = sasl.handshake(mechanism, version, monotonic_ms(services.clock))
    if answered.closes:
        await refuse(services, session, f"{mechanism!r} is refused: {answered.error.name}")
    return answered


async def authenticate(
    services: Services, session: Session, sasl: SaslServer, token: bytes
) -> AuthenticateAnswer:
    """SaslAuthenticate.

    Raises CloseConnection where too many attempts failed to have this one tried: SASL's error would
    make a client with the right password never try again.
    """
    user = sasl.tried_user(token)
    attempt = None
    if user is not None:
        attempt = services.attempts.begin(session.address, user, monotonic_ms(services.clock))
        if attempt is None:
            await refuse(services, session, TOO_MANY)
            raise CloseConnection(session.ends)
        if attempt.wait_ms:
            await asyncio.sleep(attempt.wait_ms / 1000)
    answered = sasl.authenticate(token, monotonic_ms(services.clock))
    if answered.closes:
        await refuse(services, session, answered.reason)
    elif sasl.principal is not None:
        if attempt is not None:
            services.attempts.succeeded(attempt, monotonic_ms(services.clock))
        services.counters.logins[session.entrance.listener.name] += 1
    return answered


async def bare_token(
    services: Services, session: Session, sasl: SaslServer, frame: memoryview
) -> list[Part] | None:
    """A frame that is a token and no request: after SaslHandshake 0 they travel like this.

    A failure has no answer. Clients from before 0.10 begin with bare tokens of GSSAPI, which is not
    spoken here.
    """
    answered = await authenticate(services, session, sasl, bytes(frame))
    if answered.closes:
        raise CloseConnection(session.ends)
    return [_SIZE.pack(len(answered.auth_bytes)) + answered.auth_bytes]


async def refuse(services: Services, session: Session, reason: str) -> None:
    """Note a failed login, and hold its answer back; the connection ends after it."""
    failures = session.entrance.failures
    held_back_ms = failures.failed(session.address, monotonic_ms(services.clock))
    session.end(f"login failed at listener {session.entrance.listener.name}: {reason}")
    if held_back_ms:
        await asyncio.sleep(held_back_ms / 1000)
