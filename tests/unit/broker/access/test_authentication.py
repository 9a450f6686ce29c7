"""A listener's settings as what clients meet: TLS, mechanisms, whom certificates name."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from pathlib import Path

import pytest

from lapse.base.config import broker_config
from lapse.base.errors import ConfigError
from lapse.broker.access.acl_store import Access
from lapse.broker.access.authentication import Entrance, entrance
from lapse.broker.access.listeners import kafka_listeners
from lapse.broker.logs.disk import DiskThreads
from lapse.metadata.sqlite import SqliteStore
from lapse.security.ssl_principal import MappingRule
from tests.support.broker.secured import JAAS, USERS
from tests.support.security.certificates import CHECKED_IN

TLS = {
    "ssl.keystore.type": "PEM",
    "ssl.keystore.location": str(CHECKED_IN / "server.pem"),
    "ssl.truststore.type": "PEM",
    "ssl.truststore.location": str(CHECKED_IN / "ca.crt"),
}


def made(tmp_path: Path, settings: Mapping[str, str]) -> Entrance:
    config = broker_config(settings)
    store = SqliteStore(tmp_path / "store", str)
    disk = DiskThreads("test")
    try:
        (listener,) = kafka_listeners(config)
        return entrance(config, listener, Access(store, disk, config.security))
    finally:
        store.close()
        asyncio.run(disk.close())


def test_plaintext_has_nothing(tmp_path: Path) -> None:
    found = made(tmp_path, {"listeners": "PLAINTEXT://:0", **TLS, "sasl.enabled.mechanisms": "x"})
    assert (found.tls, found.sasl, found.plain_users) == (None, None, {})


@pytest.mark.parametrize(
    ("listener", "auth", "verifies"),
    [
        ("SSL", {"ssl.client.auth": "required"}, ssl.CERT_REQUIRED),
        ("SSL", {"listener.name.ssl.ssl.client.auth": "requested"}, ssl.CERT_OPTIONAL),
        ("SSL", {}, ssl.CERT_NONE),
        # Kafka's rule: with SASL only the listener's own setting counts.
        ("SASL_SSL", {"ssl.client.auth": "required"}, ssl.CERT_NONE),
        ("SASL_SSL", {"listener.name.sasl_ssl.ssl.client.auth": "required"}, ssl.CERT_REQUIRED),
    ],
)
def test_what_is_asked_of_clients(
    tmp_path: Path, listener: str, auth: dict[str, str], verifies: ssl.VerifyMode
) -> None:
    settings = {"listeners": f"{listener}://:0", "sasl.enabled.mechanisms": "SCRAM-SHA-512"}
    found = made(tmp_path, {**settings, **TLS, **auth})
    assert found.tls is not None
    assert found.tls.verify_mode is verifies
    assert (found.sasl is not None) == (listener == "SASL_SSL")


def test_sasl_by_listener(tmp_path: Path) -> None:
    settings = {
        "listeners": "SASL_PLAINTEXT://:0",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.sasl.enabled.mechanisms": "SCRAM-SHA-256, PLAIN",
        JAAS: USERS,
        "connections.max.reauth.ms": "5",
        "listener.name.sasl_plaintext.scram-sha-256.connections.max.reauth.ms": "7",
    }
    found = made(tmp_path, settings)
    assert found.sasl is not None
    assert list(found.sasl.mechanisms) == ["SCRAM-SHA-256", "PLAIN"]
    assert found.sasl.max_reauth_ms == {"SCRAM-SHA-256": 7, "PLAIN": 5}
    assert sorted(found.plain_users) == ["admin", "alice", "bob"]
    assert "b" not in repr(dict(found.plain_users)).replace("bob", "")


def test_without_rules_a_certificate_names_its_subject(tmp_path: Path) -> None:
    found = made(tmp_path, {"listeners": "SSL://:0", **TLS, "ssl.principal.mapping.rules": ""})
    assert found.rules == (MappingRule(),)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"listeners": "SSL://:0"}, r"^listener SSL: ssl\.keystore\.location or"),
        ({"listeners": "SSL://:0", **TLS, "ssl.keystore.location": "/none"}, "No such file"),
        ({"listeners": "SASL_PLAINTEXT://:0"}, r"sasl\.enabled\.mechanisms=: allowed is a list"),
        (
            {"listeners": "SASL_PLAINTEXT://:0", "sasl.enabled.mechanisms": "PLAIN,GSSAPI"},
            "=PLAIN,GSSAPI: allowed is a list of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512",
        ),
        (
            {"listeners": "SASL_PLAINTEXT://:0", "sasl.enabled.mechanisms": "PLAIN"},
            f"{JAAS} is not set",
        ),
        (
            {
                "listeners": "PLAINTEXT://:0",
                "listener.name.plaintext.connection.failed.authentication.delay.ms": "x",
            },
            r"delay\.ms=x: allowed is a whole number",
        ),
        (
            {"listeners": "SSL://:0", **TLS, "ssl.principal.mapping.rules": "RULE"},
            "allowed are DEFAULT",
        ),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, settings: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        made(tmp_path, settings)
