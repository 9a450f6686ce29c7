"""Bytes no client should send: that connection ends with one line in the log, others go on."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import os
import socket
import struct
import weakref

import pytest

from lapse.base.errors import LapseError
from lapse.base.ids import TopicPartition
from lapse.base.readable import SHORT_MAX
from lapse.broker.limits.log_lines import OF_KIND_MAX
from lapse.broker.net.connection import WRITE_BUFFER_BYTES_MAX, Connection
from lapse.broker.node import Node
from lapse.client.admin import Admin
from lapse.client.connection import BrokerConnection
from lapse.wire.envelope import decode_response, encode_request
from lapse.wire.schema.api_versions import ApiVersionsResponse
from lapse.wire.schema.metadata import MetadataRequest
from tests.support.broker.running import (
    BY_NAME,
    batch_of,
    connect,
    create,
    fetch,
    fetch_request,
    produce,
    produce_request,
    until,
)
from tests.support.wire.frames import frame_of

LIMIT = 100 << 20


def frame(content: bytes) -> bytes:
    return struct.pack(">i", len(content)) + content


def header(key: int, version: int) -> bytes:
    return struct.pack(">hhih", key, version, 7, -1)


METADATA = b"".join(
    bytes(part)  # type: ignore[arg-type]
    for part in encode_request(
        MetadataRequest(topics=None), version=9, correlation_id=1, client_id="test"
    )
)

BAD = {
    "garbage": (b"GET / HTTP/1.1\r\n\r\n", "frame announces 1195725856 bytes"),
    "over the limit": (struct.pack(">i", LIMIT + 1), "socket.request.max.bytes"),
    "negative size": (struct.pack(">i", -1), "frame announces -1 bytes"),
    "empty frame": (frame(b""), "request header"),
    "unknown API": (frame(header(77, 0)), "API key 77 v0 is not served"),
    "version not served": (frame(header(8, 1)), "OffsetCommit v1"),
    "older than any": (frame(header(0, -1)), "Produce v-1"),
    "version too new": (frame(header(3, 99) + b"\0"), "Metadata v99"),
    "cut off": (frame(METADATA[4:-3]), "MetadataRequest"),
}


async def send(node: Node, data: bytes) -> bytes:
    """What comes back until the broker hangs up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", node.services.address.port)
    try:
        writer.write(data)
        return await asyncio.wait_for(reader.read(), 10)
    finally:
        writer.close()


@pytest.mark.parametrize("name", BAD)
async def test_ends_its_connection_with_one_line(
    name: str, node: Node, connection: BrokerConnection, caplog: pytest.LogCaptureFixture
) -> None:
    data, reason = BAD[name]
    caplog.set_level(logging.WARNING)
    assert await send(node, data) == b""
    (line,) = [record.getMessage() for record in caplog.records]
    assert reason in line
    assert "\n" not in line
    assert await Admin(connection).list_topics() == []  # others go on
    assert node.services.counters.connections_refused == 1


async def test_one_that_comes_again_and_again_does_not_fill_the_log(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    for _ in range(3 * OF_KIND_MAX):
        await send(node, BAD["version too new"][0])
    assert len(caplog.records) == OF_KIND_MAX
    assert node.services.counters.connections_refused == 3 * OF_KIND_MAX


async def test_what_a_client_says_is_cut_in_the_log(
    node: Node, connection: BrokerConnection, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    name = "t" * 30_000
    await connection.send(produce_request(name, (0, batch_of(b"v")), acks=0), version=BY_NAME)
    await until(lambda: caplog.records)
    (line,) = [record.getMessage() for record in caplog.records]
    assert "Produce with acks=0 failed" in line
    assert len(line) < SHORT_MAX + 100
    kept = node.services.log_lines._by_kind
    assert max(len(kind) for _, kind in kept) <= SHORT_MAX


async def test_good_frames_before_a_bad_one_are_answered(node: Node) -> None:
    answer = await send(node, METADATA + METADATA + b"\xff" * 8)
    size = struct.unpack_from(">i", answer)[0]
    assert len(answer) == 2 * (4 + size)


async def test_a_client_that_leaves_is_no_error(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", node.services.address.port)
    writer.write(METADATA[:9])
    writer.close()
    await writer.wait_closed()
    async with asyncio.timeout(10):
        while node.services.counters.connections:  # noqa: ASYNC110  (nothing to wait for)
            await asyncio.sleep(0.01)
    assert caplog.records == []


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (BrokenPipeError(), ""),
        (OSError(errno.EIO, "read error"), "a slice of a segment: read error"),
    ],
)
async def test_what_ends_an_answer_in_its_middle(
    node: Node,
    connection: BrokerConnection,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    error: OSError,
    line: str,
) -> None:
    """A client that leaves is no error, a file that cannot be read one line."""
    await create(node, "t")
    await produce(connection, "t", (0, batch_of(bytes(500_000))))
    sent: list[int] = []

    def fails_soon(out: int, fd: int, position: int, _size: int) -> int:
        if sent:
            raise error
        sent.append(sendfile(out, fd, position, 1000))
        return sent[-1]

    sendfile = os.sendfile
    monkeypatch.setattr(os, "sendfile", fails_soon)
    caplog.set_level(logging.WARNING)
    with pytest.raises(LapseError):
        await fetch(connection, "t", (0, 0))
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == bool(line)
    assert line in "".join(told)


async def test_many_pipelined_requests_are_answered_in_order(node: Node) -> None:
    """More than the queue takes: reading pauses and goes on."""
    await create(node, "t", 50)
    reader, writer = await asyncio.open_connection("127.0.0.1", node.services.address.port)
    count = 500
    for n in range(count):
        writer.write(METADATA[:8] + struct.pack(">i", n) + METADATA[12:])
    for n in range(count):
        size = struct.unpack(">i", await reader.readexactly(4))[0]
        assert struct.unpack_from(">i", await reader.readexactly(size))[0] == n
    writer.close()


async def test_api_versions_too_new_is_answered_in_version_0(node: Node) -> None:
    """KIP-511: error 35 and the table, on a connection that goes on."""
    reader, writer = await asyncio.open_connection("127.0.0.1", node.services.address.port)
    writer.write(frame(header(18, 99) + b"\0") + METADATA)
    size = struct.unpack(">i", await reader.readexactly(4))[0]
    answer = decode_response(
        ApiVersionsResponse, 99, memoryview(bytearray(await reader.readexactly(size)))
    )
    assert answer.error_code == 35
    assert {row.api_key for row in answer.api_keys} >= {0, 1, 2, 3, 18, 19, 20, 22}
    assert await reader.readexactly(4)
    writer.close()


def made_connections() -> list[Connection]:
    return [c for c in gc.get_objects() if isinstance(c, Connection) and c._is_made]


async def test_a_client_that_does_not_read_short_answers_is_waited_for(node: Node) -> None:
    """Else each one that fills the buffer would be followed by another, held in memory with it."""
    await create(node, "t", 500)
    loop = asyncio.get_running_loop()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        await loop.sock_connect(client, ("127.0.0.1", node.services.address.port))
        handled = node.services.counters.requests
        served = None
        for n in range(1000):
            await loop.sock_sendall(client, METADATA)
            await until(lambda n=n: handled["Metadata"] > n)
            if served is None:  # looking for it takes long: among all objects there are
                (served,) = [c for c in made_connections() if c._services is node.services]
            if served._drained is not None:
                break
        assert served is not None
        assert served._is_sending
        assert served._transport.get_write_buffer_size() < 2 * WRITE_BUFFER_BYTES_MAX
        while served._drained is not None:
            await loop.sock_recv(client, 1 << 20)
        await until(lambda: not served._is_sending)


async def test_a_connection_that_ends_is_let_go_of_at_once(node: Node) -> None:
    """Its buffer does not wait for the collector: connections may come and go by the thousand."""
    gc.collect()
    gc.disable()
    try:
        async with await connect(node) as client:
            assert await Admin(client).list_topics() == []
            [served] = [weakref.ref(c) for c in made_connections() if c._services is node.services]
        await until(lambda: served() is None)
    finally:
        gc.enable()


async def number_of_answer(reader: asyncio.StreamReader) -> int:
    size = struct.unpack(">i", await reader.readexactly(4))[0]
    return int(struct.unpack_from(">i", await reader.readexactly(size))[0])


async def test_the_fast_path_waits_for_its_turn(node: Node, connection: BrokerConnection) -> None:
    """What comes while another request is in work is handled after it, in a later read too."""
    await create(node, "t")
    await produce(connection, "t", (0, batch_of(b"a")))
    log = node.services.partitions.get(TopicPartition("t", 0))
    reader, writer = await asyncio.open_connection("127.0.0.1", node.services.address.port)
    waits = fetch_request("t", (0, 1), max_wait_ms=60_000)
    writer.write(frame_of(waits, 11, correlation_id=1))
    await until(lambda: node.services.purgatory.waiting)
    writer.write(frame_of(produce_request("t", (0, batch_of(b"b"))), 9, correlation_id=2))
    await asyncio.sleep(0.05)
    assert log.log_end_offset == 1
    await produce(connection, "t", (0, batch_of(b"c")))
    assert [await number_of_answer(reader) for _ in range(2)] == [1, 2]
    assert log.log_end_offset == 3
    writer.close()


@pytest.mark.parametrize("node", [{"lapse.fast.requests": "true"}], indirect=True)
async def test_a_client_that_does_not_read_fast_answers_is_waited_for(
    node: Node, connection: BrokerConnection
) -> None:
    """One more request is handled while what was written is not taken, and no further one."""
    await create(node, "t")
    await produce(connection, "t", (0, batch_of(b"a")))
    log = node.services.partitions.get(TopicPartition("t", 0))
    reader, writer = await asyncio.open_connection("127.0.0.1", node.services.address.port)
    frames = [
        frame_of(produce_request("t", (0, batch_of(b"b"))), 9, correlation_id=n) for n in range(4)
    ]
    writer.write(frames[0])
    assert await number_of_answer(reader) == 0
    address = "{}:{}".format(*writer.get_extra_info("sockname"))
    (served,) = [c for c in made_connections() if c.session.peer == address]
    served.pause_writing()
    for one in frames[1:]:
        writer.write(one)
        await asyncio.sleep(0.02)
    assert log.log_end_offset == 3
    served.resume_writing()
    assert [await number_of_answer(reader) for _ in range(3)] == [1, 2, 3]
    assert log.log_end_offset == 5
    assert node.services.counters.fast_requests["Produce"] == 4, "the others as well"
    writer.close()


async def test_a_request_that_what_it_waits_for_cancels_ends_its_connection(
    node: Node, connection: BrokerConnection, caplog: pytest.LogCaptureFixture
) -> None:
    """Without its answer the next one would be taken for it."""
    await create(node, "t")
    reader, writer = await asyncio.open_connection("127.0.0.1", node.services.address.port)
    writer.write(frame_of(fetch_request("t", (0, 0), max_wait_ms=60_000), 11, correlation_id=1))
    await until(lambda: node.services.purgatory.waiting)
    [(watch,)] = node.services.purgatory.watches.values()
    assert watch._future is not None
    watch._future.cancel()
    assert await asyncio.wait_for(reader.read(), 10) == b""
    (told,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert "ended by an error of ours" in told.getMessage()
    assert await Admin(connection).list_topics()  # others go on
    writer.close()
