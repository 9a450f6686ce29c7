"""`listeners` as people write it."""

from __future__ import annotations

import pytest

from lapse.base.config import broker_config
from lapse.base.errors import ConfigError
from lapse.broker.listeners import http_address, kafka_address
from lapse.broker.services import Address


@pytest.mark.parametrize(
    ("listeners", "address"),
    [
        ("PLAINTEXT://127.0.0.1:9092", Address("127.0.0.1", 9092)),
        ("PLAINTEXT://:9092", Address("0.0.0.0", 9092)),
        ("CONTROLLER://:9093,PLAINTEXT://kafka-1.example:9092", Address("kafka-1.example", 9092)),
        ("SSL://:9093, PLAINTEXT://[::1]:0", Address("::1", 0)),
    ],
)
def test_the_first_plaintext_listener_counts(listeners: str, address: Address) -> None:
    assert kafka_address(broker_config({"listeners": listeners})) == address


@pytest.mark.parametrize(
    "listeners", ["", "9092", "SSL://:9093", "PLAINTEXT://host", "PLAINTEXT://host:65536"]
)
def test_anything_else_is_named_and_refused(listeners: str) -> None:
    with pytest.raises(ConfigError, match=r"^listeners=.*allowed is PLAINTEXT://HOST:PORT"):
        kafka_address(broker_config({"listeners": listeners}))


def test_http_is_on_the_same_host_unless_switched_off() -> None:
    config = broker_config({"listeners": "PLAINTEXT://10.0.0.1:0", "lapse.http.port": "8080"})
    assert http_address(config) == Address("10.0.0.1", 8080)
    assert http_address(broker_config({"lapse.http.port": "-1"})) is None
