"""Connections that are taken at once, late, or not at all; and what others notice of it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lapse.broker.limits.quotas import CONNECTION_CREATION_RATE, IP
from lapse.broker.net import acceptor
from lapse.broker.net.acceptor import Acceptor, HeldBack
from lapse.broker.net.server import bind
from lapse.broker.node import Node
from lapse.client.admin import Admin
from lapse.client.settings import BROKER, ConfigChange, Operation, Resource
from lapse.testing.clock import ManualClock
from lapse.wire.schema.metadata import MetadataRequest, MetadataResponse
from tests.support.broker.running import connect, running_node, until

RATE = 10
AT_ONCE = 10 * RATE  # what a rate allows in its first moment; the next waits for 100 ms
EVERY_ADDRESS = ((IP, None),)
LIMITED = {"max.connection.creation.rate": str(RATE)}
METADATA = MetadataRequest(topics=())


async def test_held_sockets_end_late_and_say_so() -> None:
    held, closed = HeldBack(most=2), []
    pairs = [socket.socketpair() for _ in range(4)]
    held.hold(pairs[0][0], 60_000, lambda: closed.append(0))
    held.hold(pairs[1][0], 1, lambda: closed.append(1))
    held.hold(pairs[2][0], 60_000, lambda: closed.append(2))  # there is no room for it
    assert (closed, len(held)) == ([2], 2)
    held.hold(pairs[3][0], 0, lambda: closed.append(3))
    await until(lambda: 1 in closed)
    assert (closed, len(held)) == ([2, 3, 1], 1)
    assert pairs[0][0].fileno() >= 0
    held.close()
    assert closed == [2, 3, 1, 0]
    assert [ours.fileno() for ours, _ in pairs] == [-1] * 4
    for _, theirs in pairs:
        assert theirs.recv(1) == b""
        theirs.close()


@contextlib.asynccontextmanager
async def storm(node: Node, count: int) -> AsyncIterator[list[asyncio.StreamReader]]:
    """Connections opened at once."""
    address = node.services.address
    opened = [await asyncio.open_connection(address.host, address.port) for _ in range(count)]
    try:
        yield [reader for reader, _ in opened]
    finally:
        for _, writer in opened:
            writer.close()


async def ended(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(ConnectionResetError):
        assert await asyncio.wait_for(reader.read(), 10) == b""


async def test_a_storm_of_one_address_is_closed_and_others_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    async with running_node(tmp_path, clock=clock) as node, await connect(node) as before:
        await node.services.quotas.alter(EVERY_ADDRESS, {CONNECTION_CREATION_RATE: 1})
        counters = node.services.counters
        async with storm(node, 10 + 5) as peers:
            throttled = counters.connections_throttled
            await until(lambda: counters.connections + throttled["PLAINTEXT"] == 1 + len(peers))
            assert counters.connections == 1 + 10
            assert (await before.request(METADATA, MetadataResponse)).brokers
            assert not any(reader.at_eof() for reader in peers)  # the end is a second away
            await asyncio.gather(*map(ended, peers[10:]))
            assert not any(reader.at_eof() for reader in peers[:10])
        assert caplog.text.count("more a second than its quota") == 1
        await node.services.quotas.alter(EVERY_ADDRESS, {CONNECTION_CREATION_RATE: None})
        async with await connect(node) as after:
            assert (await after.request(METADATA, MetadataResponse)).brokers


async def test_beyond_the_brokers_rate_connections_wait_and_all_are_taken(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running_node(tmp_path, LIMITED, clock=clock) as node, await connect(node) as before:
        counters = node.services.counters
        async with storm(node, AT_ONCE + 1) as peers:
            await until(lambda: counters.connections_delayed)
            assert counters.connections == AT_ONCE
            assert (await before.request(METADATA, MetadataResponse)).brokers
            await until(lambda: counters.connections == 1 + len(peers))
            assert counters.connections_delayed == {"PLAINTEXT": 2}
            assert not any(reader.at_eof() for reader in peers)


async def test_the_brokers_rate_may_be_changed_while_it_runs(tmp_path: Path) -> None:
    """The broker's, and one listener's; Kafka's tools set them by these names."""
    broker = Resource(BROKER, "0")
    clock = ManualClock()
    async with running_node(tmp_path, clock=clock) as node, await connect(node) as connection:
        rates, admin = node.services.connection_rates, Admin(connection)

        async def waits_ms(name: str, value: str | None) -> int:
            operation = Operation.DELETE if value is None else Operation.SET
            changes = [ConfigChange(name, value, operation)]
            done = await admin.incremental_alter_configs({broker: changes})
            assert done == {broker: None}
            return rates.came("PLAINTEXT", "127.0.0.1", 0).waits_ms

        everywhere = "max.connection.creation.rate"
        here = f"listener.name.plaintext.{everywhere}"
        assert await waits_ms(everywhere, "0") == 1000
        assert await waits_ms(everywhere, None) == 0
        assert await waits_ms(f"listener.name.other.{everywhere}", "0") == 0
        assert await waits_ms(here, "0") == 1000
        assert await waits_ms(here, None) == 0
        for bad in ("-1", "some"):
            changes = {broker: [ConfigChange(here, bad)]}
            (refused,) = (await admin.incremental_alter_configs(changes)).values()
            assert refused is not None


async def test_stopping_waits_for_nobody(tmp_path: Path) -> None:
    settings = {"max.connection.creation.rate": "0", "quota.window.size.seconds": "3600"}
    async with running_node(tmp_path, settings) as node:
        opened = await asyncio.open_connection(
            node.services.address.host, node.services.address.port
        )
        await until(lambda: node.services.counters.connections_delayed)
        assert node.services.counters.connections == 0
    await ended(opened[0])
    opened[1].close()


async def test_where_files_run_out_it_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(acceptor, "_RETRY_SECONDS", 0.01)
    listening = Failing(bind("127.0.0.1", 0, "listeners"))
    taken: asyncio.Queue[socket.socket] = asyncio.Queue()
    async with running_node(tmp_path) as node:
        held = HeldBack()
        own = Acceptor(node.services, "PLAINTEXT", listening, held, taken.put_nowait)  # type: ignore[arg-type]
        own.start()
        client = socket.create_connection(listening.getsockname())
        got = await asyncio.wait_for(taken.get(), 10)
        own.stop()
    assert got.getpeername() == client.getsockname()
    assert "takes none for now" in caplog.text
    for one in (got, client):
        one.close()


class Failing:
    """A listening socket of a process that has no more descriptors, at first."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._failures = 2

    def __getattr__(self, name: str) -> object:
        return getattr(self._sock, name)

    def accept(self) -> tuple[socket.socket, tuple[str, int]]:
        if self._failures:
            self._failures -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return self._sock.accept()
