"""How fast connections may come, by a clock that moves as it is told."""

from __future__ import annotations

import pytest

from lapse.base.config import broker_config
from lapse.broker.limits.connection_rates import ConnectionRates, Ruling, limits_of
from lapse.broker.limits.quotas import Windows
from lapse.metadata.settings import BrokerSettings

ALL, CLIENTS = "max.connection.creation.rate", "listener.name.clients.max.connection.creation.rate"


def rates(
    quotas: dict[str, float] | None = None,
    settings: dict[str, str] | None = None,
    windows: Windows | None = None,
) -> ConnectionRates:
    """The quota by no address is everybody's."""
    known = quotas or {}
    found = BrokerSettings(settings or {})
    return ConnectionRates(
        windows or Windows(), lambda host: known.get(host, known.get("")), lambda: found
    )


def test_who_has_no_quota_comes_as_fast_as_they_like() -> None:
    coming = rates()
    assert {coming.came("PLAINTEXT", "10.0.0.1", 0) for _ in range(1000)} == {Ruling()}
    assert len(coming) == 0


def test_an_address_over_its_quota_is_closed_and_told_of_once() -> None:
    """Ten seconds' worth at once; one more would make the rate 2.1 over ten seconds."""
    coming = rates({"10.0.0.1": 2})
    assert [coming.came("L", "10.0.0.1", 0) for _ in range(20)] == [Ruling()] * 20
    assert coming.came("L", "10.0.0.1", 0) == Ruling(closes_ms=500, is_first=True)
    assert coming.came("L", "10.0.0.1", 0) == Ruling(closes_ms=500)  # it did not count
    assert coming.came("L", "10.0.0.2", 0) == Ruling()
    assert coming.came("L", "10.0.0.1", 10_500) == Ruling()
    assert coming.came("L", "10.0.0.1", 10_501).is_first


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        ("10.0.0.1", "10.0.0.2", False),
        ("10.0.0.1", "::ffff:10.0.0.1", True),  # the same, by a socket of IPv6
        ("2001:db8::1", "2001:db8::2", False),
    ],
)
def test_the_quota_of_every_address_is_of_each(one: str, other: str, shared: bool) -> None:
    coming = rates({"": 1})
    for _ in range(10):
        assert coming.came("L", one, 0) == Ruling()
    assert (coming.came("L", other, 0) != Ruling()) is shared


def test_no_wait_is_longer_than_a_window() -> None:
    coming = rates({"a": 1}, {ALL: "1"}, Windows(2, 300))
    assert coming.came("L", "a", 0).closes_ms == 300  # 3.3 a second
    assert coming.came("L", "b", 0).waits_ms == 300


@pytest.mark.parametrize(
    ("settings", "come", "waits"),
    [
        ({}, ["L", "CLIENTS", "L"], [0, 0, 0]),
        ({ALL: "0"}, ["L"], [1000]),
        ({ALL: "1"}, ["L"] * 5 + ["CLIENTS"] * 5 + ["L"], [0] * 10 + [1000]),
        ({CLIENTS: "1"}, ["CLIENTS"] * 11 + ["L"], [0] * 10 + [1000, 0]),
        ({ALL: "2", CLIENTS: "1"}, ["L"] * 10 + ["CLIENTS"] * 10 + ["L"], [0] * 20 + [500]),
        ({ALL: "2", CLIENTS: "1"}, ["CLIENTS"] * 11 + ["L"], [0] * 10 + [1000, 0]),
    ],
)
def test_limits_make_connections_wait(
    settings: dict[str, str], come: list[str], waits: list[int]
) -> None:
    coming = rates({}, settings)
    assert [coming.came(listener, "a", 0).waits_ms for listener in come] == waits


def test_who_is_closed_takes_nothing_from_others() -> None:
    coming = rates({"bad": 1}, {ALL: "2"})
    told = [coming.came("L", "bad", 0) for _ in range(100)]
    assert sum(ruling.closes_ms > 0 for ruling in told) == 90
    assert [coming.came("L", "good", 0).waits_ms for _ in range(11)] == [0] * 10 + [500]


def test_a_limit_counts_from_when_it_is_set() -> None:
    settings = [BrokerSettings({})]
    coming = ConnectionRates(Windows(), lambda _: None, lambda: settings[-1])
    for _ in range(100):
        assert coming.came("L", "a", 0) == Ruling()
    settings.append(BrokerSettings({}, {ALL: "1"}))
    assert [coming.came("L", "a", 0).waits_ms for _ in range(11)] == [0] * 10 + [1000]
    settings.append(BrokerSettings({}))
    assert coming.came("L", "a", 0) == Ruling()


def test_addresses_are_forgotten_where_there_are_too_many() -> None:
    """The one that came longest ago goes, and begins anew."""
    coming = rates({"": 1})
    coming.addresses_max = 10
    for _ in range(11):
        told = coming.came("L", "a", 0)
    assert told.closes_ms
    for n in range(9):
        coming.came("L", f"b{n}", 0)
    assert coming.came("L", "a", 0).closes_ms
    for n in range(1000):
        coming.came("L", f"c{n}", 0)
    assert len(coming) == 10
    assert coming.came("L", "a", 0) == Ruling()


def test_limits_are_the_settings_that_hold() -> None:
    static = broker_config({ALL: "5", CLIENTS.replace("clients", "CLIENTS"): "4"})
    settings = BrokerSettings.of_file(static)
    assert limits_of(settings) == {"": 5, "clients": 4}
    assert limits_of(BrokerSettings(settings.static, {ALL: "6", CLIENTS: "3"}, {ALL: "7"})) == {
        "": 7,
        "clients": 3,
    }
    assert limits_of(BrokerSettings({})) == {}
    of_older = BrokerSettings(settings.static, {ALL: "none", CLIENTS: "none"}, {})
    assert limits_of(of_older) == {"": 5, "clients": 4}  # a version that took it
