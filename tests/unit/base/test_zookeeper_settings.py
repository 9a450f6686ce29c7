"""Settings of how brokers get into ZooKeeper: known, with Kafka's defaults, no secret shown."""

from __future__ import annotations

from typing import Any

import pytest

from lapse.base.config import broker_config
from lapse.base.errors import ConfigError
from lapse.base.secret import HIDDEN, Secret
from lapse.base.zookeeper_settings import ZOOKEEPER_SETTINGS

# name: default, what is refused, what is allowed, and as what
SETTINGS: dict[str, tuple[Any, str | None, str, Any]] = {
    "lapse.zookeeper.login": (Secret(""), None, "u:p", Secret("u:p")),
    "zookeeper.set.acl": (False, "yes", "TRUE", True),
    "zookeeper.ssl.client.enable": (False, "yes", "true", True),
    "zookeeper.ssl.truststore.type": ("", None, "PEM", "PEM"),
    "zookeeper.ssl.truststore.location": ("", None, "a.pem", "a.pem"),
    "zookeeper.ssl.keystore.type": ("", None, "PEM", "PEM"),
    "zookeeper.ssl.keystore.location": ("", None, "a.pem", "a.pem"),
    "zookeeper.ssl.keystore.password": (Secret(""), None, "p", Secret("p")),
    "zookeeper.ssl.endpoint.identification.algorithm": ("HTTPS", None, "", ""),
}


def test_each_is_tested_here() -> None:
    assert {row.name for row in ZOOKEEPER_SETTINGS} == set(SETTINGS)


@pytest.mark.parametrize("name", SETTINGS)
def test_setting(name: str) -> None:
    default, bad, good, value = SETTINGS[name]
    field = name.removeprefix("lapse.").replace(".", "_")
    assert getattr(broker_config({}).zookeeper, field) == default
    assert getattr(broker_config({name: good}).zookeeper, field) == value
    if bad is not None:
        with pytest.raises(ConfigError, match=name):
            broker_config({name: bad})


def test_no_secret_is_shown() -> None:
    said = {"lapse.zookeeper.login": "me:hunter2", "zookeeper.ssl.keystore.password": "hunter2"}
    config = broker_config(said)
    assert "hunter2" not in repr(config)
    assert dict(config.given) == dict.fromkeys(said, HIDDEN)
