"""Clients that are slow, silent, gone or many: the broker keeps its memory, others are served."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import struct
from pathlib import Path
from typing import Any

import pytest

from lapse.broker.api.table import SERVED
from lapse.broker.node import Node
from lapse.client.admin import Admin
from lapse.wire.envelope import encode_request
from lapse.wire.schema.metadata import MetadataRequest
from tests.support.broker.running import (
    batch_of,
    connect,
    create,
    fetch_request,
    produce,
    running_node,
)

SECONDS = 30
GROWTH_BYTES_MAX = 64 << 20


def frame(request: Any, version: int) -> bytes:
    parts = encode_request(request, version=version, correlation_id=7, client_id=None)
    return b"".join(bytes(part) for part in parts)  # type: ignore[arg-type]


METADATA = frame(MetadataRequest(topics=None), 9)


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


async def opened(node: Node) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", node.services.address.port)


async def leave(*writers: asyncio.StreamWriter) -> None:
    for writer in writers:
        writer.close()
    await asyncio.gather(*(w.wait_closed() for w in writers), return_exceptions=True)


async def is_served(node: Node) -> None:
    """Somebody else, meanwhile."""
    async with asyncio.timeout(SECONDS), await connect(node) as connection:
        await Admin(connection).list_topics()


async def until_open(node: Node, count: int) -> None:
    async with asyncio.timeout(SECONDS):
        while node.services.counters.connections != count:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_a_writer_of_single_bytes_is_answered(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        reader, writer = await opened(node)
        for n in range(len(METADATA)):
            writer.write(METADATA[n : n + 1])
            await writer.drain()
            await asyncio.sleep(0)
        size = struct.unpack(">i", await asyncio.wait_for(reader.readexactly(4), SECONDS))[0]
        assert await reader.readexactly(size)
        await leave(writer)


async def test_who_does_not_read_is_not_read_from(tmp_path: Path) -> None:
    """Answers of many times what may be queued: they wait in the log, not in memory."""
    async with running_node(tmp_path) as node:
        await create(node, "t")
        async with await connect(node) as connection:
            for _ in range(8):
                await produce(connection, "t", (0, batch_of(b"x" * 900_000)))
        asked = frame(fetch_request("t", (0, 0), partition_max_bytes=1 << 23), 12)
        slow = socket.create_connection(("127.0.0.1", node.services.address.port))
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.setblocking(False)
        before = peak_bytes()
        unsent = 0
        while unsent < 200:
            try:
                slow.send(asked * 1000)
            except BlockingIOError:
                unsent += 1
                await asyncio.sleep(0.002)
        await is_served(node)
        assert peak_bytes() - before < GROWTH_BYTES_MAX
        slow.close()
        await until_open(node, 0)


async def test_large_frames_that_never_come_cost_little(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        before = peak_bytes()
        writers = []
        for _ in range(10):
            _, writer = await opened(node)
            writer.write(struct.pack(">i", 100 << 20) + b"\0" * 1000)
            writers.append(writer)
        await until_open(node, 10)
        await is_served(node)
        assert peak_bytes() - before < GROWTH_BYTES_MAX
        await leave(*writers)
        await until_open(node, 0)


@pytest.mark.parametrize("key", SERVED)
async def test_arrays_that_lie_cost_nothing(key: int, tmp_path: Path) -> None:
    """Every place of a short request says 2^31-1 of something once: no memory is taken for it."""
    async with running_node(tmp_path) as node:
        row = SERVED[key]
        before = peak_bytes()
        for version in {row.api.versions.low, row.api.newest}:
            for at in range(0, 40, 2):
                lie = bytearray(60)
                lie[at : at + 5] = b"\x7f\xff\xff\xff\x07"
                content = struct.pack(">hhih", key, version, 1, -1) + bytes(lie)
                _, writer = await opened(node)
                writer.write(struct.pack(">i", len(content)) + content)
                await leave(writer)
        await is_served(node)
        await until_open(node, 0)
        assert peak_bytes() - before < GROWTH_BYTES_MAX


async def test_a_storm_of_connections_leaves_nothing_behind(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        for _ in range(10):
            storm = await asyncio.gather(*(opened(node) for _ in range(100)))
            for n, (_, writer) in enumerate(storm):
                writer.write(METADATA[: n % len(METADATA)])
            for n, (_, writer) in enumerate(storm):
                if n % 2:
                    writer.transport.abort()
            await leave(*(writer for _, writer in storm))
        await is_served(node)
        await until_open(node, 0)


async def test_an_address_has_so_many_connections(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with running_node(tmp_path, {"max.connections.per.ip": "3"}) as node:
        kept = [await opened(node) for _ in range(3)]
        await until_open(node, 3)
        for _ in range(5):
            reader, writer = await opened(node)
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await asyncio.wait_for(reader.readexactly(1), SECONDS)
            await leave(writer)
        assert node.services.counters.connections == 3
        (line,) = [record.getMessage() for record in caplog.records]
        assert "max.connections.per.ip is 3" in line
        await leave(kept[0][1])
        await until_open(node, 2)
        await is_served(node)
        await leave(*(writer for _, writer in kept))


async def test_silent_connections_end_and_waiting_ones_do_not(tmp_path: Path) -> None:
    """A client may be gone without a word; one whose long poll goes on is waited for."""
    async with running_node(tmp_path, {"connections.max.idle.ms": "300"}) as node:
        await create(node, "t")
        waiting_reader, waiting = await opened(node)
        waiting.write(frame(fetch_request("t", (0, 0), max_wait_ms=900), 12))
        half, half_writer = await opened(node)
        half_writer.write(METADATA[:9])
        silent, silent_writer = await opened(node)
        for reader in (half, silent):
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await asyncio.wait_for(reader.readexactly(1), SECONDS)
        assert await asyncio.wait_for(waiting_reader.readexactly(4), SECONDS)
        await leave(waiting, half_writer, silent_writer)


async def test_half_closed_connections_are_not_kept(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        readers = []
        for _ in range(20):
            reader, writer = await opened(node)
            writer.write(METADATA[:9])
            writer.write_eof()
            readers.append((reader, writer))
        for reader, writer in readers:
            assert await asyncio.wait_for(reader.read(), SECONDS) == b""
            await leave(writer)
        await until_open(node, 0)
