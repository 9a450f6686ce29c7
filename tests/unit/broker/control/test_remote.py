"""The owner's side of rounds for a service on another machine, over a listener of a real node."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lapse.base.clock import SystemClock
from lapse.base.errors import ErrorCode
from lapse.base.fs import Buffer, RealFs
from lapse.base.secret import Secret
from lapse.broker.control.lease import SILENT_SECONDS
from lapse.broker.node import Node
from lapse.client.connection import BrokerConnection
from lapse.client.login import PLAINTEXT
from lapse.lifecycle.owner import messages
from lapse.lifecycle.owner.kafka_channel import Brokers, KafkaChannel
from lapse.lifecycle.owner.messages import Hello, ListLogs, Refused, Renew, Welcome
from lapse.lifecycle.owner.protocol import OwnerGone, OwnerTaken
from lapse.lifecycle.owner.remote import RemoteOwner
from lapse.lifecycle.round.inline import InlineEngine
from lapse.lifecycle.round.receipt import Receipt, attempt_dir
from lapse.lifecycle.round.run import receipts_of
from lapse.testing.clock import ManualClock
from lapse.wire.schema.lifecycle_control import (
    LifecycleControlRequest,
    LifecycleControlResponse,
)
from tests.support.broker.overwritten_topics import filled
from tests.support.broker.running import connect, running_node, until
from tests.support.lifecycle.rounds import plan_of, records_in

SILENT_MS = round(SILENT_SECONDS * 1000)
REMOTE = {"lapse.lifecycle.remote.enable": "true"}


class Service:
    """A service's end, as `lapse lifecycle --bootstrap-server` has it."""

    def __init__(self, node: Node) -> None:
        address = node.services.address
        self.brokers = Brokers(f"{address.host}:{address.port}", PLAINTEXT)
        self.owner = RemoteOwner(KafkaChannel(self.brokers, node.services.config.node_id))

    def close(self) -> None:
        self.owner.close()
        self.brokers.close()


@pytest.fixture
def services() -> Iterator[list[Service]]:
    made: list[Service] = []
    yield made
    for service in made:
        service.brokers.close()


def rounds(owner: RemoteOwner) -> list[Receipt]:
    now_ms = SystemClock().now_ms()
    plans = [plan_of(info, f"r{n}", now_ms) for n, info in enumerate(owner.logs())]
    return list(receipts_of(InlineEngine(RealFs(), SystemClock()).submit(plans)))


def marks(data: Path) -> list[str]:
    return sorted(path.name for path in data.glob(f"{messages.MARK}*"))


async def test_facts_and_commits_from_another_machine(
    tmp_path: Path, services: list[Service]
) -> None:
    data = tmp_path / "data"
    async with running_node(data, REMOTE) as node:
        await filled(node, "a", "b")
        left = attempt_dir(data / "a-0", "r9", "p0-a0-ffff")
        left.mkdir(parents=True)
        services.append(Service(node))
        owner = services[0].owner
        infos = await asyncio.to_thread(owner.logs)
        assert (owner.broker_pid, owner.dirs) == (os.getpid(), (data,))
        assert not left.parent.exists()  # of services before it
        logs = {str(log.partition): log for log in node.services.partitions.all()}
        assert [info.facts for info in infos] == [logs["a-0"].facts(), logs["b-0"].facts()]
        assert len(marks(data)) == 1
        receipts = await asyncio.to_thread(rounds, owner)
        results = await asyncio.to_thread(owner.commit, receipts)
        assert [(r.name, r.error) for r in results] == [("a-0", None), ("b-0", None)]
        assert [len(records_in(data / f"{name}-0")) for name in "ab"] == [10, 10]
        await asyncio.to_thread(owner.close)
        assert marks(data) == []
    assert marks(data) == []


async def test_there_is_one_service_at_a_time_and_the_next_follows_at_once(
    tmp_path: Path, services: list[Service]
) -> None:
    data = tmp_path / "data"
    async with running_node(data, REMOTE) as node:
        beside = RemoteOwner.beside(data)
        services += [Service(node), Service(node)]
        first, second = (service.owner for service in services)
        await asyncio.to_thread(first.greet)
        words = rf"process {os.getpid()} on \S+ is this broker's"
        for other in (second, beside):
            with pytest.raises(OwnerTaken, match=words):
                await asyncio.to_thread(other.logs)
            assert other.is_taken
        await asyncio.to_thread(first.close)
        assert await asyncio.to_thread(second.logs) == []
        assert not second.is_taken
        await asyncio.to_thread(second.close)
        await asyncio.to_thread(beside.greet)
        with pytest.raises(OwnerTaken, match=rf"process {os.getpid()} is this broker's"):
            await asyncio.to_thread(first.logs)
        beside.close()


async def test_one_that_is_silent_is_followed_and_refused_what_it_says_then(
    tmp_path: Path, services: list[Service]
) -> None:
    """Its machine may be gone, or it may have been stopped for a while: its receipts are stale."""
    data, clock = tmp_path / "data", ManualClock(SystemClock().now_ms())
    async with running_node(data, REMOTE, clock=clock) as node:
        await filled(node, "a")
        services += [Service(node), Service(node)]
        first, second = (service.owner for service in services)
        receipts = await asyncio.to_thread(rounds, first)
        clock.advance(SILENT_MS)
        mine = attempt_dir(data / "a-0", receipts[0].round_id, receipts[0].attempt_id)
        assert mine.exists()
        await asyncio.to_thread(second.greet)
        assert not mine.exists()
        with pytest.raises(OwnerTaken, match="another service may have come meanwhile"):
            await asyncio.to_thread(first.commit, receipts)
        assert len(records_in(data / "a-0")) == 100
        assert len(marks(data)) == 1
        [result] = await asyncio.to_thread(lambda: second.commit(rounds(second)))
        assert result.error is None


async def test_one_that_has_nothing_to_ask_keeps_its_lease(
    tmp_path: Path, services: list[Service], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lapse.lifecycle.owner.kafka_channel.RENEW_SECONDS", 0.01)
    clock = ManualClock(SystemClock().now_ms())
    async with running_node(tmp_path / "data", REMOTE, clock=clock) as node:
        services += [Service(node), Service(node)]
        await asyncio.to_thread(services[0].owner.greet)
        lease = node.services.remote_services._control.lease
        for _ in range(3):
            before = lease._until_s
            clock.advance(SILENT_MS - 1)
            await until(lambda before=before: lease._until_s > before)
        with pytest.raises(OwnerTaken):
            await asyncio.to_thread(services[1].owner.greet)


async def test_a_lease_outlives_its_connection(tmp_path: Path, services: list[Service]) -> None:
    """A broker cuts it when a login ends (KIP-368); a round under way goes on all the same."""
    data = tmp_path / "data"
    async with running_node(data, REMOTE) as node:
        await filled(node, "a")
        services.append(Service(node))
        owner = services[0].owner
        receipts = await asyncio.to_thread(rounds, owner)
        for ask in (owner.logs, lambda: owner.commit(receipts), lambda: owner.commit(receipts)):
            await asyncio.to_thread(cut, services[0])
            answer = await asyncio.to_thread(ask)
            assert all(getattr(one, "error", None) is None for one in answer)
        assert len(records_in(data / "a-0")) == 10


async def test_a_service_that_ends_says_so_to_who_waits_for_a_broker() -> None:
    """A thread of its own would wait for an answer that nobody reads any more."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host, port = silent.getsockname()
        brokers = Brokers(f"{host}:{port}", PLAINTEXT)
        asking = asyncio.create_task(asyncio.to_thread(brokers.run, brokers.address(1)))
        listing = brokers.listing()
        await until(lambda: brokers._cluster._connections)  # it has begun
        await asyncio.to_thread(brokers.close)
        with pytest.raises(OwnerGone, match="this service ends"):
            await asking
        assert brokers.listed(listing) == []


def cut(service: Service) -> None:
    channel = service.owner._channel
    assert isinstance(channel, KafkaChannel)
    connection = channel._connection
    assert connection is not None
    service.brokers._loop.call(connection.close)


async def test_who_lost_its_lease_need_not_wait_for_itself(
    tmp_path: Path, services: list[Service]
) -> None:
    """As where the broker was not told that it goes."""
    async with running_node(tmp_path / "data", REMOTE) as node:
        services.append(Service(node))
        owner = services[0].owner
        await asyncio.to_thread(owner.greet)
        channel = owner._channel
        assert isinstance(channel, KafkaChannel)
        lease = channel._lease
        await asyncio.to_thread(cut, services[0])
        await until(lambda: channel._connection is None or channel._connection.is_lost)
        await asyncio.to_thread(owner.close)
        assert channel._lease == lease
        await asyncio.to_thread(owner.greet)
        assert channel._lease != lease


class Elsewhere(RealFs):
    """The disk of another machine, as far as the marks of leases go: they are not seen here."""

    def write_file(self, path: Path, data: Buffer | Secret) -> None:
        if not path.name.startswith(messages.MARK):
            super().write_file(path, data)


async def test_a_directory_that_is_another_one_here_is_not_served(
    tmp_path: Path, services: list[Service]
) -> None:
    """A copy at the same path has the same segments, and is not what the broker reads."""
    data = tmp_path / "data"
    async with running_node(data, REMOTE, fs=Elsewhere()) as node:
        services.append(Service(node))
        with pytest.raises(OwnerGone, match=rf"keeps logs in {data}, .*under the same path"):
            await asyncio.to_thread(services[0].owner.greet)
        beside = RemoteOwner.beside(data)
        await asyncio.to_thread(beside.greet)  # nobody keeps the lease
        beside.close()


async def said(connection: BrokerConnection, lease: str, message: bytes) -> messages.Answer:
    request = LifecycleControlRequest(lease=lease, message=message)
    answer = await connection.request(request, LifecycleControlResponse, version=0)
    assert (answer.error_code, answer.error_message) == (0, None)
    return messages.decode_answer(answer.message, "")


def body(request: messages.Request) -> bytes:
    return messages.encode(request)[messages.LENGTH.size :]


async def test_garbage_is_refused_and_ends_nothing(tmp_path: Path, services: list[Service]) -> None:
    async with running_node(tmp_path / "data", REMOTE) as node, await connect(node) as connection:
        services.append(Service(node))
        await asyncio.to_thread(services[0].owner.greet)
        deep = b'{"type":"ListLogs","x":' + b"[" * 100_000
        for message in (b"", b"{:}", b'{"type":"Eat"}', b"[" * 100_000, b"\xff", deep):
            refused = await said(connection, "", message)
            assert isinstance(refused, Refused)
            assert "not a request" in refused.reason
        for lease in ("", "x", "\u00e9"):
            for request in (ListLogs(), Renew()):
                refused = await said(connection, lease, body(request))
                assert isinstance(refused, Refused)
        old = await said(connection, "", body(Hello(messages.VERSION + 1, 1)))
        assert old == Refused(f"version {messages.VERSION + 1} of the service, "
                              f"{messages.VERSION} of the broker")  # fmt: skip
        assert await asyncio.to_thread(services[0].owner.logs) == []


@pytest.mark.parametrize("field", ["round_id", "attempt_id"])
@pytest.mark.parametrize("name", ["../../b-0", "", "..", "a/b", "a\0b"])
async def test_names_that_lead_elsewhere_are_refused(
    tmp_path: Path, services: list[Service], field: str, name: str
) -> None:
    async with running_node(tmp_path / "data", REMOTE) as node:
        await filled(node, "a")
        services.append(Service(node))
        owner = services[0].owner
        [receipt] = await asyncio.to_thread(rounds, owner)
        changed = replace(receipt, **{field: name})
        with pytest.raises(OwnerGone, match="a name that is no name"):
            await asyncio.to_thread(owner.commit, [changed])
        assert len(records_in(tmp_path / "data" / "a-0")) == 100


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({}, "lapse.lifecycle.remote.enable"),
        ({**REMOTE, "log.cleaner.enable": "false"}, "log.cleaner.enable"),
    ],
)
async def test_unless_it_is_enabled_nobody_is_a_service_there(
    tmp_path: Path, settings: dict[str, str], name: str
) -> None:
    async with running_node(tmp_path / "data", settings) as node, await connect(node) as connection:
        request = LifecycleControlRequest(message=body(Hello(messages.VERSION, 1)))
        answer = await connection.request(request, LifecycleControlResponse, version=0)
        assert answer.error_code == ErrorCode.INVALID_REQUEST
        assert f"{name}=false: allowed is true" in (answer.error_message or "")
        assert answer.message == b""


async def test_a_relative_directory_is_none_for_another_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with running_node(Path("data"), REMOTE) as node, await connect(node) as connection:
        refused = await said(connection, "", body(Hello(messages.VERSION, 1)))
        assert isinstance(refused, Refused)
        assert refused.reason.startswith("log.dirs=data: allowed is an absolute path")


async def test_what_a_killed_broker_left_there_is_taken_away(
    tmp_path: Path, services: list[Service]
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / f"{messages.MARK}0123").touch()
    async with running_node(data, REMOTE) as node, await connect(node) as connection:
        assert marks(data) == []
        (data / f"{messages.MARK}4567").touch()
        welcome = await said(connection, "", body(Hello(messages.VERSION, 1, "there")))
        assert isinstance(welcome, Welcome)
        assert marks(data) == [welcome.mark]
        assert welcome.lease not in welcome.mark  # which everybody may see
