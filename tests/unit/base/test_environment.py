"""Settings from the environment, by the rule of Apache's image."""

from __future__ import annotations

import pytest

from lapse.base.config import BROKER_SETTINGS
from lapse.base.environment import NAMES, misspelt_in, settings_in, variable_of, without_settings

GIVEN = {
    "KAFKA_LOG_DIRS": "/data",
    "KAFKA_LOG_RETENTION_MS": "5",
    "KAFKA_BROKER_ID": "3",
    "KAFKA_LAPSE_HTTP_PORT": "9",
    "KAFKA_LISTENER_NAME_CLIENTS_SASL_ENABLED_MECHANISMS": "PLAIN",
    "KAFKA_SSL_KEYSTORE_LOCATION": "/k",
}
OTHERS = {
    "KAFKA_HOME": "/opt/kafka",
    "KAFKA_HEAP_OPTS": "-Xmx1g",
    "KAFKA_": "",
    "kafka_log_dirs": "/lower",
    "LOG_DIRS": "/others",
    "KAFKA_LOG_RETENTION_MSS": "7",
}


def test_what_names_a_setting_is_one() -> None:
    assert settings_in({**GIVEN, **OTHERS}) == {
        "log.dirs": "/data",
        "log.retention.ms": "5",
        "broker.id": "3",
        "lapse.http.port": "9",
        "listener.name.clients.sasl.enabled.mechanisms": "PLAIN",
        "ssl.keystore.location": "/k",
    }
    assert without_settings({**GIVEN, **OTHERS}) == OTHERS


def test_what_is_misspelt_is_told() -> None:
    assert misspelt_in({**GIVEN, **OTHERS}) == {"KAFKA_LOG_RETENTION_MSS": "KAFKA_LOG_RETENTION_MS"}


@pytest.mark.parametrize("name", NAMES)
def test_every_setting_has_avariable_of(name: str) -> None:
    assert [*settings_in({variable_of(name): "1"})] == [name]


def test_all_settings_are_named() -> None:
    assert {one.name for one in BROKER_SETTINGS} < set(NAMES)
    assert "log.retention.ms" in NAMES
