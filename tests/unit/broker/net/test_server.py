"""The listener's socket."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from lapse.broker.access.authentication import Entrance
from lapse.broker.access.listeners import Address
from lapse.broker.limits.log_lines import OF_KIND_MAX
from lapse.broker.net import connection, server
from lapse.broker.net.server import ListenError, bind
from lapse.broker.node import Node
from lapse.security.acls import Operation, ResourceType
from lapse.wire.envelope import decode_response, encode_request
from lapse.wire.schema.fetch import FetchResponse
from lapse.wire.schema.metadata import MetadataRequest, MetadataResponse
from tests.support.broker.running import (
    BY_NAME,
    batch_of,
    connect,
    create,
    fetch_request,
    produce,
    running_node,
    until,
)
from tests.support.broker.secured import WITH_ACLS, address_of, allow, set_acls
from tests.support.security.certificates import CHECKED_IN


async def test_parts_of_an_answer_are_not_held_back() -> None:
    """Nagle's algorithm and delayed ACKs together cost up to 40 ms an answer."""
    accepted: asyncio.Future[asyncio.BaseTransport] = asyncio.get_running_loop().create_future()

    class Accepting(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            accepted.set_result(transport)

    listening = bind("127.0.0.1", 0, "listeners")
    port = listening.getsockname()[1]
    listener = await asyncio.get_running_loop().create_server(Accepting, sock=listening)
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    transport = await accepted
    sock = transport.get_extra_info("socket")
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    transport.close()
    writer.close()
    listener.close()


def test_a_client_that_comes_early_waits() -> None:
    listening = bind("127.0.0.1", 0, "listeners")
    socket.create_connection(listening.getsockname()).close()
    listening.close()


def test_an_address_that_is_not_ours_names_the_setting() -> None:
    with pytest.raises(ListenError, match=r"^lapse\.http\.port: cannot listen at 192\.0\.2\.1:0"):
        bind("192.0.2.1", 0, "lapse.http.port")


# --- TLS -----------------------------------------------------------------------------------------

CERTS = {
    **WITH_ACLS,
    "listeners": "PLAINTEXT://127.0.0.1:0,CERTS://127.0.0.1:0",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CERTS:SSL",
    "ssl.keystore.type": "PEM",
    "ssl.keystore.location": str(CHECKED_IN / "server.pem"),
    "ssl.truststore.type": "PEM",
    "ssl.truststore.location": str(CHECKED_IN / "ca.crt"),
    "ssl.client.auth": "requested",
    "ssl.principal.mapping.rules": "RULE:^.*CN=(alice),.*$/$1/",
}
METADATA = MetadataRequest(topics=None)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with running_node(tmp_path / "data", CERTS) as running:
        yield running


def of_certs(node: Node) -> Entrance:
    return next(e for e in node.services.entrances if e.listener.name == "CERTS")


async def by_tls(
    node: Node, certificate: str | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    context = ssl.create_default_context(cafile=str(CHECKED_IN / "ca.crt"))
    if certificate is not None:
        context.load_cert_chain(CHECKED_IN / f"{certificate}.pem")
    address = address_of(node, "CERTS")
    return await asyncio.open_connection(
        address.host, address.port, ssl=context, server_hostname="localhost"
    )


async def ask(
    streams: tuple[asyncio.StreamReader, asyncio.StreamWriter], request: Any, cls: Any, version: int
) -> Any:
    reader, writer = streams
    parts = encode_request(request, version=version, correlation_id=1, client_id="c")
    writer.write(b"".join(bytes(part) for part in parts))  # type: ignore[arg-type]
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    return decode_response(cls, version, memoryview(bytearray(await reader.readexactly(size))))


async def test_a_certificate_names_whoever_asks(node: Node) -> None:
    await create(node, "t")
    await set_acls(node, [allow(Operation.DESCRIBE, ResourceType.TOPIC, "t", "alice")])
    streams = await by_tls(node, "client")
    answer = await ask(streams, METADATA, MetadataResponse, 9)
    assert [t.name for t in answer.topics] == ["t"]
    assert [b.port for b in answer.brokers] == [address_of(node, "CERTS").port]
    assert node.services.counters.logins == {"CERTS": 1}
    streams[1].close()


async def test_one_that_names_nobody_ends_the_connection(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where requests come along with the handshake: none of them is handled."""
    reader, writer = await by_tls(node, "server")
    parts = encode_request(METADATA, version=9, correlation_id=1, client_id="c")
    writer.write(b"".join(bytes(part) for part in parts))  # type: ignore[arg-type]
    assert await reader.read() == b""
    assert "no rule of ssl.principal.mapping.rules" in caplog.text
    assert node.services.counters.logins_refused == {"CERTS": 1}
    assert node.services.counters.requests["Metadata"] == 0
    writer.close()


@pytest.mark.parametrize("name", ["expired", "stranger"])
async def test_certificates_that_are_not_believed_are_counted(
    node: Node, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    streams = await by_tls(node, name)  # with TLS 1.3 the client learns it later
    with pytest.raises((OSError, asyncio.IncompleteReadError)):
        await ask(streams, METADATA, MetadataResponse, 9)
    streams[1].close()
    assert "TLS handshake with" in caplog.text
    assert of_certs(node).failures.counts.failures == 1
    assert node.services.counters.connections == 0


async def test_what_is_no_handshake_ends_alone(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    address = address_of(node, "CERTS")
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(b"GET / HTTP/1.1\r\n\r\n")
    await reader.read()
    writer.close()
    (line,) = [record.getMessage() for record in caplog.records]
    assert "failed at CERTS" in line


async def test_failed_handshakes_do_not_fill_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    count = OF_KIND_MAX + 3
    settings = {**CERTS, "connection.failed.authentication.delay.ms": "0"}
    async with running_node(tmp_path, settings) as node:
        for _ in range(count):
            reader, writer = await no_handshake(address_of(node, "CERTS"))
            assert await ended(reader)
            writer.close()
        await until(lambda: of_certs(node).failures.counts.failures == count)
    failed = [r for r in caplog.records if "failed at CERTS" in r.getMessage()]
    assert len(failed) == OF_KIND_MAX


async def test_a_handshake_that_never_comes_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "HANDSHAKE_SECONDS_MAX", 0.1)
    async with running_node(tmp_path, CERTS) as node:
        address = address_of(node, "CERTS")
        reader, writer = await asyncio.open_connection(address.host, address.port)
        assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()
        assert node.services.counters.logins_refused == {"CERTS": 1}


async def test_failed_handshakes_wait_for_each_other(tmp_path: Path) -> None:
    """As failed logins do; until then their connections stay, and count for their address."""
    settings = {
        **CERTS,
        "connection.failed.authentication.delay.ms": "60000",
        "max.connections.per.ip": "3",
    }
    async with running_node(tmp_path, settings) as node:
        address = address_of(node, "CERTS")
        peers = [await no_handshake(address) for _ in range(3)]
        await until(lambda: of_certs(node).failures.counts.failures == 3)
        late, refused = await asyncio.open_connection(address.host, address.port)
        assert await ended(late)
        assert node.services.counters.connections_refused == 1
        assert 5 * 60_000 < of_certs(node).failures.counts.waited_ms <= 6 * 60_000
        assert not any(reader.at_eof() for reader, _ in peers)
    for reader, writer in (*peers, (late, refused)):  # now they are gone
        assert await ended(reader)
        writer.close()


async def test_a_handshake_that_failed_is_over_in_the_end(tmp_path: Path) -> None:
    """And its place is free then, for one who can."""
    async with running_node(tmp_path, {**CERTS, "max.connections.per.ip": "1"}) as node:
        reader, writer = await no_handshake(address_of(node, "CERTS"))
        assert await ended(reader)
        async with asyncio.timeout(10):
            while True:
                with contextlib.suppress(OSError):
                    streams = await by_tls(node, "client")
                    break
        assert (await ask(streams, METADATA, MetadataResponse, 9)).brokers
        for one in (writer, streams[1]):
            one.close()


async def no_handshake(address: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    streams = await asyncio.open_connection(address.host, address.port)
    streams[1].write(b"GET / HTTP/1.1\r\n\r\n")
    return streams


async def ended(reader: asyncio.StreamReader) -> bool:
    """Waits for the end of a connection by which nothing comes."""
    with contextlib.suppress(ConnectionResetError):
        return await asyncio.wait_for(reader.read(), 10) == b""
    return True


async def test_stopping_ends_handshakes_under_way(tmp_path: Path) -> None:
    async with running_node(tmp_path, CERTS) as node:
        address = address_of(node, "CERTS")
        reader, writer = await asyncio.open_connection(address.host, address.port)
        await asyncio.sleep(0.05)
    assert await asyncio.wait_for(reader.read(), 10) == b""
    writer.close()


async def test_slices_of_files_come_whole(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel cannot encrypt: they go piece by piece, whatever the pieces are."""
    monkeypatch.setattr(connection, "TLS_PIECE_BYTES", 50_001)
    await create(node, "t")
    await set_acls(node, [allow(Operation.READ, ResourceType.TOPIC, "t", "alice")])
    async with await connect(node) as plain:
        await produce(plain, "t", (0, batch_of(bytes(300_000))), (0, batch_of(b"x" * 200_000)))
    streams = await by_tls(node, "client")
    request = fetch_request("t", (0, 0))
    answer = await ask(streams, request, FetchResponse, BY_NAME)
    async with await connect(node) as plain:
        wanted = await plain.request(request, FetchResponse, version=BY_NAME)
    got = bytes(answer.responses[0].partitions[0].records)
    assert got == bytes(wanted.responses[0].partitions[0].records)
    assert len(got) > 500_000
    streams[1].close()


async def test_handshakes_under_way_count_as_connections(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A storm of them would cost most before the first is done."""
    async with running_node(tmp_path, {**CERTS, "max.connections": "2"}) as node:
        address = address_of(node, "CERTS")
        begun = [await asyncio.open_connection(address.host, address.port) for _ in range(2)]
        reader, writer = await asyncio.open_connection(address.host, address.port)
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), 10) == b""
        assert "max.connections is 2" in caplog.text
        for _, one in (*begun, (reader, writer)):
            one.close()
        async with asyncio.timeout(10):
            while True:  # until the places of both are free
                with contextlib.suppress(OSError):
                    streams = await by_tls(node, "client")
                    break
        assert (await ask(streams, METADATA, MetadataResponse, 9)).brokers
        streams[1].close()
