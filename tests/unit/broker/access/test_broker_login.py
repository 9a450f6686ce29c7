"""How a broker gets in at the others: what its settings say, and what is wrong with them."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping

import pytest

from lapse.base.config import broker_config
from lapse.base.errors import ConfigError
from lapse.broker.access.broker_login import broker_login
from lapse.broker.access.listeners import Listener, Protocol
from lapse.client.login import Login
from tests.support.security.certificates import CHECKED_IN

JAAS = "org.apache.kafka.common.security.plain.PlainLoginModule required "
TLS = {
    "ssl.keystore.type": "PEM", "ssl.keystore.location": str(CHECKED_IN / "server.pem"),
    "ssl.truststore.type": "PEM", "ssl.truststore.location": str(CHECKED_IN / "ca.crt"),
}  # fmt: skip
PLAIN = {
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.b.plain.sasl.jaas.config": f'{JAAS}username="broker" password="s3cret";',
}


def login(protocol: Protocol, settings: Mapping[str, str]) -> Login:
    return broker_login(broker_config(settings), Listener("B", protocol))


def test_plaintext_needs_nothing() -> None:
    assert login(Protocol.PLAINTEXT, {}) == Login()


def test_by_tls_the_other_brokers_certificate_is_checked() -> None:
    found = login(Protocol.SSL, TLS)
    assert found.context is not None
    assert (found.context.verify_mode, found.context.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert found.exchange() is None


def test_what_is_said_for_the_listener_wins() -> None:
    own = {"listener.name.b.ssl.endpoint.identification.algorithm": ""}
    found = login(Protocol.SSL, TLS | own)
    assert found.context is not None
    assert not found.context.check_hostname


def test_by_sasl_it_is_who_the_jaas_entry_says() -> None:
    found = login(Protocol.SASL_PLAINTEXT, PLAIN)
    assert found.context is None
    exchange = found.exchange()
    assert exchange is not None
    assert exchange.handshake_answer(0, ("PLAIN",)) == b"\0broker\0s3cret"


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (
            {},
            "sasl.mechanism.inter.broker.protocol=: allowed is one of PLAIN, SCRAM-SHA-256, SCRAM",
        ),
        (
            {"sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256"},
            "listener.name.b.scram-sha-256.sasl.jaas.config is not set",
        ),
        (
            PLAIN | {"listener.name.b.plain.sasl.jaas.config": f"{JAAS};"},
            "listener.name.b.plain.sasl.jaas.config: option username is missing",
        ),
    ],
)
def test_what_is_wrong_is_named_and_no_secret_shown(settings: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(why)) as refused:
        login(Protocol.SASL_PLAINTEXT, settings)
    assert "listener B, by which brokers reach each other" in str(refused.value)
    assert "s3cret" not in str(refused.value)
