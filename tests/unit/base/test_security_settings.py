"""Settings of security: each is known, has Kafka's default, and no secret among them is shown."""

from __future__ import annotations

import pytest

from lapse.base.config import broker_config
from lapse.base.errors import ConfigError
from lapse.base.secret import HIDDEN, Secret
from lapse.base.security_settings import SECURITY_SETTINGS
from lapse.base.setting import Kind
from lapse.metadata.settings import BrokerSettings, describe_broker

SECRETS = {
    "ssl.keystore.password",
    "ssl.keystore.key",
    "ssl.keystore.certificate.chain",
    "ssl.key.password",
    "ssl.truststore.password",
    "ssl.truststore.certificates",
}
JAAS = "listener.name.sasl_ssl.plain.sasl.jaas.config"
EVERY = {
    **{row.name: "hunter2" for row in SECURITY_SETTINGS if row.kind is Kind.PASSWORD},
    JAAS: "hunter2",
    "sasl.jaas.config": "hunter2",
}


def test_what_is_a_secret() -> None:
    assert {row.name for row in SECURITY_SETTINGS if row.is_sensitive} == SECRETS


def test_defaults_are_kafkas() -> None:
    security = broker_config({}).security
    assert security.connection_failed_authentication_delay_ms == 100
    assert security.connections_max_reauth_ms == 0
    assert security.allow_everyone_if_no_acl_found is False
    assert security.authorizer_class_name == ""
    assert security.properties == {}


def test_what_a_listener_may_need_is_kept_as_secrets() -> None:
    security = broker_config({**EVERY, "listener.name.x.ssl.client.auth": "required"}).security
    assert security.properties[JAAS] == Secret("hunter2")
    assert security.properties["listener.name.x.ssl.client.auth"] == Secret("required")
    assert broker_config({"log.dirs": "/a"}).security.properties == {}


def test_no_secret_is_shown() -> None:
    config = broker_config(EVERY)
    told = describe_broker(BrokerSettings.of_file(config))
    for text in (repr(config), repr(config.security), repr(told)):
        assert "hunter2" not in text
    assert dict(config.given)["ssl.key.password"] == HIDDEN
    shown = {one.name: one for one in told}
    for name in SECRETS:
        assert shown[name].value is None
        assert shown[name].is_sensitive
        assert shown[name].read_only


@pytest.mark.parametrize(
    "name",
    [
        "connections.max.reauth.ms",
        "connection.failed.authentication.delay.ms",
        "allow.everyone.if.no.acl.found",
        "lapse.http.login",
    ],
)
def test_what_is_wrong_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name}=-1: allowed is"):
        broker_config({name: "-1"})
