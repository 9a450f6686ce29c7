"""Quotas of hosts by name: whose address has which, and that nothing waits for a name server."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from lapse.base.errors import KafkaError
from lapse.broker.limits.client_quotas import ClientQuotas
from lapse.broker.limits.quotas import (
    CONNECTION_CREATION_RATE,
    IP,
    PRODUCER_BYTE_RATE,
    USER,
    Quotas,
)
from lapse.broker.logs.disk import DiskThreads
from lapse.metadata.store import Entity
from lapse.metadata.tree_store import TreeStore
from lapse.testing.clock import ManualClock
from lapse.testing.memory_tree import MemoryEnsemble
from tests.support.broker.running import create, until
from tests.support.broker.two_nodes import two_nodes

HOST, OTHER_HOST = ((IP, "h.example"),), ((IP, "other.example"),)
NUMBER, ALL = ((IP, "10.0.0.1"),), ((IP, None),)


def rate(value: float | None) -> dict[str, Any]:
    return {CONNECTION_CREATION_RATE: value}


@dataclass
class Names:
    """A name server.

    Attributes:
        addresses: what it knows.
        asked: of whom.
        answers: while it is not set, none comes.
    """

    addresses: dict[str, str] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    answers: asyncio.Event = field(default_factory=asyncio.Event)

    async def resolve(self, name: str) -> str | None:
        if name == NUMBER[0][1]:
            return name
        self.asked.append(name)
        await self.answers.wait()
        return self.addresses.get(name)


@dataclass
class Broker:
    """Its quotas, and what another broker may do with the same store."""

    quotas: ClientQuotas
    store: TreeStore
    names: Names

    def others_set(self, entity: Entity, value: float | None) -> None:
        self.store.set_client_quotas({entity: {} if value is None else rate(value)})

    def of(self, address: str) -> float | None:
        return self.quotas.connection_rate(address)


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    ensemble, disk, names = MemoryEnsemble(), DiskThreads("test", 1), Names()
    names.answers.set()
    one, other = (TreeStore(ensemble.connect(), list, lambda: "c", n) for n in (1, 2))
    quotas = ClientQuotas(one, disk, ManualClock(), Quotas(), names.resolve)
    await quotas.load()
    yield Broker(quotas, other, names)
    await quotas.close()
    await disk.close()


async def test_the_old_address_of_a_host_falls_under_the_default_again(broker: Broker) -> None:
    """Also where the host has moved by the time that its quota goes."""
    broker.names.addresses["h.example"] = "10.0.0.7"
    await broker.quotas.alter(HOST, rate(1000.0))
    await broker.quotas.alter(ALL, rate(5.0))
    assert [broker.of(address) for address in ("10.0.0.7", "10.0.0.8")] == [1000.0, 5.0]
    broker.names.addresses["h.example"] = "10.0.0.8"
    await broker.quotas.alter(HOST, rate(None))
    assert [broker.of(address) for address in ("10.0.0.7", "10.0.0.8")] == [5.0, 5.0]


async def test_a_host_that_moved_leaves_its_old_address(broker: Broker) -> None:
    broker.names.addresses["h.example"] = "10.0.0.7"
    await broker.quotas.alter(HOST, rate(1000.0))
    broker.names.addresses["h.example"] = "10.0.0.8"
    await broker.quotas.alter(HOST, rate(1001.0))
    assert [broker.of(address) for address in ("10.0.0.7", "10.0.0.8")] == [None, 1001.0]


async def test_of_two_that_mean_one_address_the_one_that_says_it_counts(broker: Broker) -> None:
    """Whichever is set last; and the other one counts once it is gone."""
    broker.names.addresses["h.example"] = broker.names.addresses["other.example"] = "10.0.0.1"
    await broker.quotas.alter(NUMBER, rate(9.0))
    await broker.quotas.alter(OTHER_HOST, rate(8.0))
    await broker.quotas.alter(HOST, rate(7.0))
    told = [broker.of("10.0.0.1")]
    for entity in (NUMBER, HOST, OTHER_HOST):
        await broker.quotas.alter(entity, rate(None))
        told.append(broker.of("10.0.0.1"))
    assert told == [9.0, 7.0, 8.0, None]


async def test_what_others_set_is_in_force_without_a_name_server(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """Each host once it is found; those that are known are not asked for again."""
    broker.names.addresses = {"h.example": "10.0.0.7", "other.example": "10.0.0.8"}
    await broker.quotas.alter(HOST, rate(7.0))
    broker.names.answers.clear()
    broker.others_set(OTHER_HOST, 8.0)
    broker.others_set(NUMBER, 9.0)
    broker.others_set(((USER, "alice"),), None)
    for _ in range(2):
        await broker.quotas.reread()
    addresses = ("10.0.0.1", "10.0.0.7", "10.0.0.8")
    assert [broker.of(address) for address in addresses] == [9.0, 7.0, None]
    await until(lambda: broker.names.asked == ["h.example", "other.example"])
    broker.names.answers.set()
    await until(lambda: broker.of("10.0.0.8") == 8.0)
    broker.others_set(OTHER_HOST, 80.0)  # as it is set it is looked up anew
    broker.names.addresses.clear()
    await broker.quotas.reread()
    await until(lambda: broker.names.asked.count("other.example") == 2)
    assert broker.of("10.0.0.8") == 80.0
    assert "not in force" not in caplog.text
    broker.others_set(((IP, "nowhere.example"),), 1.0)
    await broker.quotas.reread()
    await until(lambda: "the quota of nowhere.example is not in force" in caplog.text)


async def test_what_a_host_had_when_its_quota_went_is_not_found_later(broker: Broker) -> None:
    broker.names.addresses["h.example"] = "10.0.0.7"
    broker.names.answers.clear()
    broker.others_set(HOST, 7.0)
    await broker.quotas.reread()
    [looking] = broker.quotas._looking.values()
    broker.others_set(HOST, None)
    await broker.quotas.reread()
    broker.names.answers.set()
    await asyncio.wait([looking])
    assert looking.cancelled()
    assert broker.of("10.0.0.7") is None
    assert not broker.quotas._looking


async def test_a_start_waits_for_the_names(broker: Broker) -> None:
    """Else a host would have everybody's quota for a while; and closing ends what is looked up."""
    broker.names.addresses["h.example"] = "10.0.0.7"
    broker.others_set(HOST, 7.0)
    broker.names.answers.clear()
    loading = asyncio.create_task(broker.quotas.load())
    await until(lambda: broker.names.asked)
    assert not loading.done()
    [looking] = broker.quotas._looking.values()
    await broker.quotas.close()
    await loading
    assert looking.cancelled()


async def test_a_host_that_is_not_found_is_refused(broker: Broker) -> None:
    with pytest.raises(KafkaError, match=r"h\.example is neither an IP address nor a host"):
        await broker.quotas.alter(HOST, rate(7.0))


async def test_a_silent_name_server_holds_up_no_broker_in_its_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """At each change of any quota it followed its cluster no more, for five seconds."""
    caplog.set_level(logging.INFO)
    real, silent, asked = socket.getaddrinfo, threading.Event(), []

    def look_up(host: Any, *rest: Any, **more: Any) -> Any:
        if host != "h.example":
            return real(host, *rest, **more)
        asked.append(host)
        if len(asked) > 1:  # the first is who sets it
            silent.wait()
        return real("127.0.0.1", *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    try:
        async with two_nodes(tmp_path, ManualClock()) as (controller, other):
            quotas = controller.services.quotas
            await quotas.alter(HOST, rate(1000.0))
            await until(lambda: len(asked) == 2)
            await quotas.alter(((USER, "alice"),), {PRODUCER_BYTE_RATE: 1e6})
            await create(controller, "t")
            await until(lambda: "t" in other.services.topics.image.topics)
            await until(lambda: len(other.services.quotas.all()) == 2)  # read beside topics
            assert len(asked) == 2
    finally:
        silent.set()
