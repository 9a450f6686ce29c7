"""`listeners` and its protocol map as people write them."""

from __future__ import annotations

import re

import pytest

from lapse.base.config import broker_config
from lapse.base.errors import ConfigError
from lapse.broker.access.listeners import (
    Address,
    Listener,
    Protocol,
    broker_listener,
    http_address,
    kafka_listeners,
)

MAP = "listener.security.protocol.map"


def plain(name: str, host: str, port: int) -> Listener:
    return Listener(name, Protocol.PLAINTEXT, Address(host, port))


@pytest.mark.parametrize(
    ("listeners", "found"),
    [
        ("PLAINTEXT://127.0.0.1:9092", [plain("PLAINTEXT", "127.0.0.1", 9092)]),
        ("PLAINTEXT://:9092", [plain("PLAINTEXT", "0.0.0.0", 9092)]),
        (
            "CONTROLLER://:9093,PLAINTEXT://kafka-1.example:9092",
            [plain("PLAINTEXT", "kafka-1.example", 9092)],
        ),
        (
            "sasl_ssl://:9093, PLAINTEXT://[::1]:0",
            [
                Listener("SASL_SSL", Protocol.SASL_SSL, Address("0.0.0.0", 9093)),
                plain("PLAINTEXT", "::1", 0),
            ],
        ),
    ],
)
def test_each_has_an_address_and_a_protocol(listeners: str, found: list[Listener]) -> None:
    assert list(kafka_listeners(broker_config({"listeners": listeners}))) == found


def test_names_of_ones_own_need_the_map() -> None:
    settings = {"listeners": "INSIDE://:1,OUT.SIDE://:2", MAP: "inside:PLAINTEXT, OUT.SIDE:ssl"}
    assert [(one.name, one.protocol) for one in kafka_listeners(broker_config(settings))] == [
        ("INSIDE", Protocol.PLAINTEXT),
        ("OUT.SIDE", Protocol.SSL),
    ]
    with pytest.raises(ConfigError, match=r"map says nothing of OUT\.SIDE"):
        kafka_listeners(broker_config({**settings, MAP: "INSIDE:PLAINTEXT"}))


def test_controllers_are_passed_over_by_their_names() -> None:
    settings = {"listeners": "A://:1,PLAINTEXT://:2", "controller.listener.names": "a,b"}
    assert [one.name for one in kafka_listeners(broker_config(settings))] == ["PLAINTEXT"]
    with pytest.raises(ConfigError, match="none of them is for clients"):
        kafka_listeners(broker_config({**settings, "listeners": "A://:1"}))


@pytest.mark.parametrize("listeners", ["", "9092", "PLAINTEXT://host", "PLAINTEXT://host:65536"])
def test_anything_else_is_named_and_refused(listeners: str) -> None:
    with pytest.raises(ConfigError, match=r"^listeners=.*allowed is NAME://HOST:PORT"):
        kafka_listeners(broker_config({"listeners": listeners}))


def test_a_name_counts_once() -> None:
    with pytest.raises(ConfigError, match="PLAINTEXT is there more than once"):
        kafka_listeners(broker_config({"listeners": "PLAINTEXT://:1,plaintext://:2"}))


TWO = "INSIDE://:1,OUTSIDE://10.0.0.1:2,CONTROLLER://:3"
BOTH = "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT"


@pytest.mark.parametrize(
    ("advertised", "told"),
    [
        ("", [(None, True), (None, True)]),
        (
            "inside://:0, OUTSIDE://kafka.example:443,CONTROLLER://0.0.0.1:3",
            [(Address("0.0.0.0", 0), True), (Address("kafka.example", 443), True)],
        ),
        ("OUTSIDE://[fe80::1]:2", [(None, False), (Address("fe80::1", 2), True)]),
    ],
)
def test_what_clients_are_told(advertised: str, told: list[tuple[Address | None, bool]]) -> None:
    settings = {"listeners": TWO, MAP: BOTH, "advertised.listeners": advertised}
    found = kafka_listeners(broker_config(settings))
    assert [(one.advertised, one.is_advertised) for one in found] == told


@pytest.mark.parametrize(
    ("advertised", "why"),
    [
        ("INSIDE://0.0.0.0:1", "no client can connect to 0.0.0.0"),
        ("INSIDE://[::]:1", "no client can connect to 0.0.0.0"),
        ("INSIDE://a:1,OTHER://b:2", "OTHER must be among listeners, which has INSIDE, OUTSIDE"),
        ("INSIDE://a:1,INSIDE://b:1", "INSIDE is there more than once"),
        ("CONTROLLER://a:1", "none of them is for clients"),
        ("a:1", "allowed is NAME://HOST:PORT"),
    ],
)
def test_what_nobody_could_be_told_is_refused(advertised: str, why: str) -> None:
    settings = {"listeners": TWO, MAP: BOTH, "advertised.listeners": advertised}
    with pytest.raises(
        ConfigError, match=rf"^advertised\.listeners={re.escape(advertised)}.*{why}"
    ):
        kafka_listeners(broker_config(settings))


def test_a_protocol_that_there_is_not_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"protocol\.map=PLAINTEXT:TLS.*SASL_SSL"):
        kafka_listeners(broker_config({MAP: "PLAINTEXT:TLS"}))


@pytest.mark.parametrize(
    ("protocol", "tls", "sasl"),
    [
        (Protocol.PLAINTEXT, False, False),
        (Protocol.SSL, True, False),
        (Protocol.SASL_PLAINTEXT, False, True),
        (Protocol.SASL_SSL, True, True),
    ],
)
def test_what_a_protocol_has(protocol: Protocol, tls: bool, sasl: bool) -> None:
    assert (protocol.has_tls, protocol.has_sasl) == (tls, sasl)


def test_http_is_on_the_same_host_unless_switched_off() -> None:
    config = broker_config({"listeners": "PLAINTEXT://10.0.0.1:0", "lapse.http.port": "8080"})
    assert http_address(config) == Address("10.0.0.1", 8080)
    assert http_address(broker_config({"lapse.http.port": "-1"})) is None


FOR_BROKERS = {"listeners": "C://:1,B://:2", MAP: "C:PLAINTEXT,B:SASL_SSL"}


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({}, "C"),
        ({"inter.broker.listener.name": "b"}, "B"),
        ({"security.inter.broker.protocol": "sasl_ssl"}, "B"),
        ({"security.inter.broker.protocol": "PLAINTEXT"}, "C"),
    ],
)
def test_by_which_one_brokers_reach_each_other(settings: dict[str, str], name: str) -> None:
    config = broker_config({**FOR_BROKERS, **settings})
    assert broker_listener(config, kafka_listeners(config)).name == name


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (
            {"inter.broker.listener.name": "X"},
            "inter.broker.listener.name=X: listeners has C (PLAI",
        ),
        (
            {"security.inter.broker.protocol": "SSL"},
            "security.inter.broker.protocol=SSL: listeners",
        ),
        (
            {"inter.broker.listener.name": "B", "security.inter.broker.protocol": "SSL"},
            "allowed is one of them",
        ),
    ],
)
def test_one_that_there_is_not_is_refused(settings: dict[str, str], why: str) -> None:
    config = broker_config({**FOR_BROKERS, **settings})
    with pytest.raises(ConfigError, match=re.escape(why)):
        broker_listener(config, kafka_listeners(config))
