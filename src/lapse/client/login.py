"""How a client gets in: TLS and SASL, by Kafka's client settings (`--command-config`).

`security.protocol`, `ssl.*`, `sasl.mechanism` and `sasl.jaas.config` mean what they mean to Kafka's
own clients. Other settings in a properties file for those clients are ignored.
"""

from __future__ import annotations

import random
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lapse.base.errors import ConfigError
from lapse.security.jaas import JAAS_CONFIG, User, login_of, parse_jaas
from lapse.security.mechanism import ClientMechanism
from lapse.security.plain import PlainClient
from lapse.security.sasl import SaslClient
from lapse.security.scram import SCRAM, ScramClient, fresh_nonce
from lapse.security.tls import client_context, tls_settings

# Protocol: whether it is over TLS, whether it uses SASL.
_PROTOCOLS = {
    "PLAINTEXT": (False, False),
    "SSL": (True, False),
    "SASL_PLAINTEXT": (False, True),
    "SASL_SSL": (True, True),
}


@dataclass(frozen=True, slots=True)
class Login:
    """What every connection of a client does first.

    Attributes:
        context: TLS by it; None: none.
        mechanism: of SASL; "": none.
        make: the client's side of one SASL exchange.
    """

    context: ssl.SSLContext | None = None
    mechanism: str = ""
    make: Callable[[], ClientMechanism] | None = None

    def exchange(self) -> SaslClient | None:
        """SASL for one connection, if the settings require it."""
        if self.make is None:
            return None
        return SaslClient(self.mechanism, self.make, random.random())


PLAINTEXT = Login()


def login(properties: Mapping[str, str]) -> Login:
    """From a client's settings.

    Raises:
        ConfigError: one is out of range or missing; names it, and shows no secret.
    """
    protocol = properties.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in _PROTOCOLS:
        raise ConfigError(f"security.protocol={protocol}: allowed is {', '.join(_PROTOCOLS)}")
    over_tls, uses_sasl = _PROTOCOLS[protocol]
    context = client_context(tls_settings(properties)) if over_tls else None
    if not uses_sasl:
        return Login(context)
    mechanism = properties.get("sasl.mechanism", "")
    if mechanism != "PLAIN" and mechanism not in SCRAM:
        allowed = ", ".join(("PLAIN", *SCRAM))
        raise ConfigError(f"sasl.mechanism={mechanism}: allowed is {allowed}")
    text = properties.get(JAAS_CONFIG)
    if text is None:
        raise ConfigError(f"{JAAS_CONFIG} is not set; {mechanism} needs it")
    return sasl_login(context, mechanism, login_of(parse_jaas(JAAS_CONFIG, text), mechanism))


def sasl_login(context: ssl.SSLContext | None, mechanism: str, who: User) -> Login:
    """By PLAIN or SCRAM, over TLS where there is a context."""

    def make() -> ClientMechanism:
        if mechanism == "PLAIN":
            return PlainClient(who.user, who.password)
        return ScramClient(SCRAM[mechanism], who.user, who.password, fresh_nonce())

    return Login(context, mechanism, make)
