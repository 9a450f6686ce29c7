"""Logins at the HTTP port: basic authentication (RFC 7617) by the users of the SASL listeners.

`lapse.http.login` switches logins on. Then a request without one gets from `/health` whether the
broker serves, and nothing else. With ACLs, reading the other pages needs DESCRIBE of the cluster;
changes (`rounds`) need ALTER, and a login in any case. Attempts are limited together with those at
the listeners (`security.attempts`), and the response to a failure is delayed as it is there.

Pages for people (`web`) ask brokers as the user who has logged in: that user's rights are the
brokers' business (`visit`). Without logins they are for clients on this machine alone.
Without `lapse.http.protocol=https` the password comes in clear text: then leave the port at an
address that only this machine can reach.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import ipaddress
from enum import Enum, auto

from lapse.base.clock import monotonic_ms
from lapse.base.errors import ConfigError
from lapse.base.secret import Secret
from lapse.broker.access.authentication import HTTP, Passwords
from lapse.broker.access.broker_login import user_login
from lapse.broker.access.listeners import ANY_ADDRESS, Address, Listener, Protocol
from lapse.broker.request.context import Services
from lapse.client.login import PLAINTEXT
from lapse.client.visitor import Visitor
from lapse.security.acls import CLUSTER_NAME, Operation, ResourceType
from lapse.security.authorizer import RequestContext, host_of
from lapse.security.jaas import User
from lapse.security.throttle import FailedAuthentications

_PLAINTEXT = Protocol.PLAINTEXT


class Admission(Enum):
    """The result for an HTTP client; NOBODY: the port has no logins, so no client may do this.

    ELSEWHERE: no client of another machine may, for the same reason.
    """

    GRANTED = auto()
    LOGIN = auto()
    LATER = auto()
    FORBIDDEN = auto()
    NOBODY = auto()
    ELSEWHERE = auto()


class HttpLogin:
    """Who may read the pages; failed logins are counted as those of a listener called HTTP."""

    def __init__(self, services: Services) -> None:
        """Raises ConfigError where a login is configured that no client could pass."""
        config, entrances, access = services.config, services.entrances, services.access
        with_users = any(entrance.sasl is not None for entrance in entrances)
        wanted = config.security.http_login
        if wanted == "required" and not with_users:
            raise ConfigError(
                "lapse.http.login=required: there are no users, as no listener has SASL"
            )
        self._is_needed = with_users and wanted != "none"
        self._config, self._entrances = config, entrances
        self._passwords = Passwords(entrances, access)
        self._access = access
        self._clock = services.clock
        self._counters = services.counters
        self._attempts = services.attempts
        self._failures = FailedAuthentications(
            config.security.connection_failed_authentication_delay_ms
        )

    async def admit(self, authorization: str | None, address: str) -> Admission:
        """Whether what an `Authorization` header says is enough.

        Args:
            authorization: its text, if there was one.
            address: the client's.
        """
        if not self._is_needed:
            return Admission.GRANTED
        return await self._admit(authorization, address, Operation.DESCRIBE)

    async def admit_change(self, authorization: str | None, address: str) -> Admission:
        """Likewise for what changes something: ALTER of the cluster, and never without a login."""
        if not self._is_needed:
            return Admission.NOBODY
        return await self._admit(authorization, address, Operation.ALTER)

    async def visit(self, authorization: str | None, address: str) -> Visitor | Admission:
        """Who looks at pages, to ask brokers as that user; GRANTED is no answer.

        Raises ConfigError where the brokers' listener cannot be reached by its own settings.
        """
        if not self._is_needed:
            is_open = (e.listener for e in self._entrances if e.listener.protocol is _PLAINTEXT)
            listener = next(is_open, None)
            if listener is None or not is_loopback(address):
                return Admission.ELSEWHERE
            return Visitor(str(_near(listener)), PLAINTEXT)
        found = await self._identify(authorization, address)
        if isinstance(found, Admission):
            return found
        who, listener, mechanism = found
        login = await asyncio.to_thread(user_login, self._config, listener, mechanism, who)
        return Visitor(str(_near(listener)), login, who.user, may_change=True)

    async def _admit(
        self, authorization: str | None, address: str, operation: Operation
    ) -> Admission:
        found = await self._identify(authorization, address)
        if isinstance(found, Admission):
            return found
        actor = RequestContext(f"User:{found[0].user}", host_of(address))
        may = self._access.authorizer.authorize(
            actor, operation, ResourceType.CLUSTER, CLUSTER_NAME
        )
        return Admission.GRANTED if may else Admission.FORBIDDEN

    async def _identify(
        self, authorization: str | None, address: str
    ) -> tuple[User, Listener, str] | Admission:
        """Who it is, and by which listener and mechanism that user comes in."""
        if authorization is None:
            return Admission.LOGIN
        given = _parsed(authorization)
        attempt = self._attempts.begin(
            address, given[0] if given else "", monotonic_ms(self._clock)
        )
        if attempt is None:
            await self._refuse(address)
            return Admission.LATER
        if attempt.wait_ms:
            await asyncio.sleep(attempt.wait_ms / 1000)
        way = None if given is None else await asyncio.to_thread(self._passwords.way_of, *given)
        if given is None or way is None:
            await self._refuse(address)
            return Admission.LOGIN
        self._attempts.succeeded(attempt, monotonic_ms(self._clock))
        return User(*given), *way

    async def _refuse(self, address: str) -> None:
        """Count a failure, and hold its answer back."""
        self._counters.logins_refused[HTTP] += 1
        await asyncio.sleep(self._failures.failed(address, monotonic_ms(self._clock)) / 1000)


def _parsed(authorization: str) -> tuple[str, Secret] | None:
    """User and password; None for what is not of the form."""
    scheme, _, encoded = authorization.partition(" ")
    try:
        text = base64.b64decode(encoded.strip(), validate=True).decode()
    except (binascii.Error, ValueError):
        return None
    user, colon, password = text.partition(":")
    if scheme.lower() != "basic" or not colon or not user:
        return None
    return user, Secret(password)


def is_loopback(address: str) -> bool:
    """Whether a client's address is one of this machine alone."""
    try:
        return ipaddress.ip_address(host_of(address).removeprefix("::ffff:")).is_loopback
    except ValueError:
        return False


def _near(listener: Listener) -> Address:
    """Where a client on this machine reaches it; by TLS by the name that clients know."""
    own = listener.address
    if listener.protocol.has_tls and listener.advertised is not None:
        return Address(listener.advertised.host, listener.advertised.port or own.port)
    return Address("127.0.0.1" if own.host in {"", *ANY_ADDRESS} else own.host, own.port)
