"""Who comes in by a listener: its TLS context, its SASL mechanisms, its failed logins.

Made once at the start, from the settings of each listener (`listener.name.NAME.` in front of a
setting wins there). What is wrong with them is a ConfigError then, never a client's trouble later.
Credentials of SCRAM are looked up in what `broker.access.acl_store` has at the time.

The HTTP port takes the users of all listeners with SASL (`Passwords`).
"""

from __future__ import annotations

import hmac
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from lapse.base.config import BrokerConfig
from lapse.base.errors import ConfigError
from lapse.base.secret import Secret
from lapse.base.security_settings import SecurityConfig
from lapse.base.typed import whole
from lapse.broker.access.acl_store import Access
from lapse.broker.access.listeners import Listener
from lapse.security.certificates import Certificates
from lapse.security.jaas import plain_users, server_login_module
from lapse.security.mechanism import ServerMechanism
from lapse.security.plain import PLAIN, PlainServer
from lapse.security.sasl import SaslSettings
from lapse.security.scram import (
    SCRAM,
    ScramMechanism,
    ScramServer,
    credential_of,
    fresh_nonce,
    salted_password,
)
from lapse.security.ssl_principal import MAPPING_RULES, MappingRule, parse_mapping_rules
from lapse.security.throttle import FailedAuthentications
from lapse.security.tls import listener_properties, tls_settings

MECHANISMS = (PLAIN, *SCRAM)
HTTP = "HTTP"
_CLIENT_AUTH = "ssl.client.auth"
_MAX_REAUTH = "connections.max.reauth.ms"
_DELAY = "connection.failed.authentication.delay.ms"


@dataclass(frozen=True, slots=True)
class Entrance:
    """How clients come in by one listener.

    Attributes:
        certificates: None where there is no TLS.
        rules: whom a client's certificate names.
        sasl: None where there is none.
        plain_users: of SASL PLAIN, their passwords.
        failures: logins that failed, and how long the next is held back.
    """

    listener: Listener
    certificates: Certificates | None = None
    rules: tuple[MappingRule, ...] = ()
    sasl: SaslSettings | None = None
    plain_users: Mapping[str, Secret] = field(default_factory=dict)
    failures: FailedAuthentications = field(default_factory=lambda: FailedAuthentications(0))

    @property
    def tls(self) -> ssl.SSLContext | None:
        """For a handshake that begins now; None where there is none."""
        return None if self.certificates is None else self.certificates.context


def entrance(config: BrokerConfig, listener: Listener, access: Access) -> Entrance:
    """A listener's; reads its key and certificates.

    Raises:
        ConfigError: names the listener and the setting.
    """
    with _named(listener):
        means = _means_of(config.security, listener)
        enabled, users, properties = means.mechanisms, means.users, means.properties
        return Entrance(
            listener,
            means.certificates,
            parse_mapping_rules(properties.get(MAPPING_RULES, "DEFAULT")) or (MappingRule(),),
            _sasl(properties, enabled, users, access) if enabled else None,
            users,
            FailedAuthentications(
                _whole(
                    properties, _DELAY, config.security.connection_failed_authentication_delay_ms
                )
            ),
        )


def check_entrance(config: BrokerConfig, listener: Listener) -> None:
    """Raise ConfigError where clients could not come in; reads the files that `entrance` does."""
    with _named(listener):
        _means_of(config.security, listener)


class _Means(NamedTuple):
    """What a listener lets clients in by; `mechanisms`: of SASL, none where it has none."""

    properties: Mapping[str, str]
    mechanisms: tuple[str, ...]
    users: Mapping[str, Secret]
    certificates: Certificates | None


def _means_of(security: SecurityConfig, listener: Listener) -> _Means:
    has_sasl = listener.protocol.has_sasl
    properties = _properties(security, listener.name, own_client_auth=has_sasl)
    mechanisms = _mechanisms(properties) if has_sasl else ()
    users = _plain_users(security, listener) if PLAIN in mechanisms else {}
    has_tls = listener.protocol.has_tls
    certificates = Certificates(tls_settings(properties)) if has_tls else None
    return _Means(properties, mechanisms, users, certificates)


@contextmanager
def _named(listener: Listener) -> Iterator[None]:
    try:
        yield
    except ConfigError as e:
        raise ConfigError(f"listener {listener.name}: {e}") from None


def http_certificates(security: SecurityConfig) -> Certificates | None:
    """The HTTP port's, as those of a listener called HTTP; raises ConfigError."""
    if security.http_protocol == "http":
        return None
    try:
        return Certificates(tls_settings(_properties(security, HTTP, own_client_auth=True)))
    except ConfigError as e:
        raise ConfigError(f"lapse.http.protocol={security.http_protocol}: {e}") from None


def given_properties(security: SecurityConfig) -> dict[str, str]:
    """All that the file says of security, as text."""
    return {name: secret.reveal() for name, secret in security.properties.items()}


def _properties(
    security: SecurityConfig, listener: str, *, own_client_auth: bool
) -> dict[str, str]:
    """What the listener goes by, as text: kept no longer than it takes to read it."""
    given = given_properties(security)
    properties = listener_properties(given, listener)
    if own_client_auth:
        # As in Kafka: clients that log in by SASL must show certificates only where this
        # listener says so.
        own = {name.lower(): text for name, text in given.items()}
        client_auth = own.get(f"listener.name.{listener.lower()}.{_CLIENT_AUTH}", "none")
        properties[_CLIENT_AUTH] = client_auth
    return properties


def _mechanisms(properties: Mapping[str, str]) -> tuple[str, ...]:
    setting = "sasl.enabled.mechanisms"
    text = properties.get(setting, "")
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names or not set(names) <= set(MECHANISMS):
        raise ConfigError(f"{setting}={text}: allowed is a list of {', '.join(MECHANISMS)}")
    return names


def _plain_users(security: SecurityConfig, listener: Listener) -> dict[str, Secret]:
    return plain_users(server_login_module(given_properties(security), listener.name, PLAIN))


def _sasl(
    properties: Mapping[str, str],
    enabled: tuple[str, ...],
    users: Mapping[str, Secret],
    access: Access,
) -> SaslSettings:
    default_ms = _whole(properties, _MAX_REAUTH, 0)
    makers: dict[str, Callable[[], ServerMechanism]] = {
        PLAIN: lambda: PlainServer(users),
        **{name: partial(_scram, mechanism, access) for name, mechanism in SCRAM.items()},
    }
    return SaslSettings(
        {name: makers[name] for name in enabled},
        {name: _whole(properties, f"{name.lower()}.{_MAX_REAUTH}", default_ms) for name in enabled},
    )


def _scram(mechanism: ScramMechanism, access: Access) -> ScramServer:
    find = partial(access.credential, mechanism)
    return ScramServer(mechanism, find, access.unknown, fresh_nonce())


def _whole(properties: Mapping[str, str], setting: str, default: int) -> int:
    text = properties.get(setting, str(default)).strip()
    found = whole(text)
    if found is None:
        raise ConfigError(f"{setting}={text}: allowed is a whole number from 0")
    return found


class Passwords:
    """Whether a password is a user's, on any of some listeners; takes milliseconds of CPU."""

    def __init__(self, entrances: tuple[Entrance, ...], access: Access) -> None:
        self._plain = [(e.listener, e.plain_users) for e in entrances if e.plain_users]
        self._scram = {
            name: e.listener
            for e in reversed(entrances)
            for name in ([] if e.sasl is None else sorted(e.sasl.mechanisms))
            if name in SCRAM
        }
        self._access = access

    def fit(self, user: str, password: Secret) -> bool:
        """Whether it is."""
        return self.way_of(user, password) is not None

    def way_of(self, user: str, password: Secret) -> tuple[Listener, str] | None:
        """By which listener and mechanism the user comes in with it; None: by none.

        Checks all user stores, so that the time does not reveal which users exist.
        """
        ways = [
            (listener, PLAIN)
            for listener, users in self._plain
            if user in users and users[user] == password
        ]
        for name, listener in sorted(self._scram.items()):
            if self._is_of_scram(SCRAM[name], user, password):
                ways.append((listener, name))
        return next(iter(ways), None)

    def _is_of_scram(self, mechanism: ScramMechanism, user: str, password: Secret) -> bool:
        found = self._access.credential(mechanism, user)
        kept = self._access.unknown.credential(mechanism, user) if found is None else found
        salted = salted_password(mechanism, password, kept.salt, kept.iterations)
        made = credential_of(mechanism, salted, kept.salt, kept.iterations)
        same = hmac.compare_digest(made.stored_key, kept.stored_key)
        return same and found is not None
