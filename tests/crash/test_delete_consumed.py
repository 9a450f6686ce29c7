"""`lapse delete-consumed` killed at any request, before or after it: nothing unread is deleted.

The command runs as a process whose every byte to the broker comes by a relay here. It is killed
when it sends its nth request, held back or let through. Between two lives, groups and a query go
on. Whenever it dies, no low watermark is beyond the least of what all had committed.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from lapse.base.ids import TopicPartition
from lapse.broker.node import Node
from lapse.client.connection import BrokerConnection
from lapse.wire.schema.delete_records import DELETE_RECORDS
from lapse.wire.schema.list_groups import LIST_GROUPS
from lapse.wire.schema.list_offsets import LIST_OFFSETS
from lapse.wire.schema.metadata import METADATA
from lapse.wire.schema.offset_fetch import OFFSET_FETCH
from tests.support.broker.running import batch_of, connect, create, produce, running_node
from tests.support.client.commits import commit, delete_group
from tests.support.serving import stop_serving

PARTITIONS = tuple(TopicPartition("t", n) for n in range(3))
RECORDS = 1000
GROUPS = ("a", "b")
STEP_MAX = 20  # the lives of a whole torture run fit into the records


class Relay:
    """Between the command and the broker.

    Attributes:
        asked: keys of the APIs that were asked for, in the order in which requests came.
        deadly: the number of the request (from 1 on) at which `kill` is called.
        lets_through: whether that request still gets to the broker.
    """

    def __init__(self) -> None:
        self.node: Node
        self.port = 0
        self.asked: list[int] = []
        self.deadly = 0
        self.lets_through = False
        self.kill: Callable[[], None] = lambda: None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        address = self.node.services.address
        down, up = await asyncio.open_connection(address.host, address.port)
        answers = asyncio.create_task(_pump(down, writer))
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readexactly(4)
                body = await reader.readexactly(*struct.unpack(">i", head))
                self.asked.append(struct.unpack_from(">h", body)[0])
                dies = len(self.asked) == self.deadly
                if not dies or self.lets_through:
                    up.write(head + body)
                    await up.drain()
                if dies:
                    self.kill()
        up.close()
        await answers
        writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            writer.write(data)


@pytest.fixture
async def relay(tmp_path: Path) -> AsyncIterator[Relay]:
    """Of a broker that has RECORDS in each partition, and says that it lives here."""
    one = Relay()
    server = await asyncio.start_server(one.serve, "127.0.0.1", 0)
    one.port = server.sockets[0].getsockname()[1]
    settings = {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{one.port}"}
    async with running_node(tmp_path / "data", settings) as one.node:
        async with await connect(one.node) as connection:
            await create(one.node, "t", partitions=len(PARTITIONS))
            batch = batch_of(*(b"v%d" % n for n in range(RECORDS)))
            await produce(connection, "t", *((p.partition, batch) for p in PARTITIONS))
        yield one
        await stop_serving(server)


class World:
    """Groups and a query that go on, and the command over all of them."""

    def __init__(self, relay: Relay, connection: BrokerConnection, path: Path, seed: int) -> None:
        self.relay = relay
        self.random = random.Random(seed)
        self.committed = {who: dict.fromkeys(PARTITIONS, 0) for who in (*GROUPS, "query")}
        self._connection = connection
        self._path = path
        self._batch = 0
        for folder in ("offsets", "commits"):
            (path / folder).mkdir(parents=True)

    async def go_on(self) -> None:
        """Everybody reads some more; of the query's next batch only the plan is there."""
        for group in GROUPS:
            self._read(group)
            await commit(self._connection, group, self.committed[group])
        self._read("query")
        (self._path / "offsets" / str(self._batch)).write_text(_offsets(self.committed["query"]))
        (self._path / "commits" / str(self._batch)).write_text("v1\n{}")
        self._batch += 1
        planned = dict.fromkeys(PARTITIONS, RECORDS)
        (self._path / "offsets" / str(self._batch)).write_text(_offsets(planned))

    def _read(self, who: str) -> None:
        offsets = self.committed[who]
        for partition in offsets:
            offsets[partition] += self.random.randint(0, STEP_MAX)

    def least(self) -> list[int]:
        return [min(offsets[p] for offsets in self.committed.values()) for p in PARTITIONS]

    def low_watermarks(self) -> list[int]:
        partitions = self.relay.node.services.partitions
        return [partitions.get(p).log_start_offset for p in PARTITIONS]

    async def run(self, deadly: int = 0, *, lets_through: bool = False) -> int:
        """The command, to its end or until it is killed; its exit code."""
        words = ["--bootstrap-server", f"127.0.0.1:{self.relay.port}", "--groups"]
        words += [",".join(GROUPS), "--checkpoint", str(self._path)]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "lapse.cli.main", "delete-consumed", *words,
            stdout=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        self.relay.asked.clear()
        self.relay.deadly, self.relay.lets_through = deadly, lets_through
        self.relay.kill = process.kill
        return await process.wait()


def _offsets(ends: dict[TopicPartition, int]) -> str:
    inner = ",".join(f'"{p.partition}":{end}' for p, end in ends.items())
    return f'v1\n{{}}\n{{"t":{{{inner}}}}}'


async def test_killed_at_any_request(
    relay: Relay, tmp_path: Path, seed: int, scaled: Callable[[int], int]
) -> None:
    async with await connect(relay.node) as connection:
        world = World(relay, connection, tmp_path / "checkpoint", seed)
        await world.go_on()
        assert await world.run() == 0
        assert world.low_watermarks() == world.least()
        asked = list(relay.asked)
        asks = [n for n, key in enumerate(asked) if key in {OFFSET_FETCH.key, LIST_GROUPS.key}]
        ends = [n for n, key in enumerate(asked) if key == LIST_OFFSETS.key]
        deletes = [n for n, key in enumerate(asked) if key == DELETE_RECORDS.key]
        assert asks
        assert max(asks) < min(ends)
        assert deletes == [len(asked) - 1] == [max(ends) + 2]
        assert asked[deletes[0] - 1] == METADATA.key, "whether the topic is the same still"

        for life in range(scaled(60)):
            await world.go_on()
            # The last request deletes: every other life dies there.
            deadly = len(asked) if life % 2 == 0 else world.random.randint(1, len(asked))
            lets_through = world.random.random() < 0.5
            assert await world.run(deadly, lets_through=lets_through) < 0
            for low_watermark, least in zip(world.low_watermarks(), world.least(), strict=True):
                assert low_watermark <= least

        assert await world.run() == 0
        assert world.low_watermarks() == world.least()
        before = world.least()
        await world.go_on()
        await delete_group(connection, "b")
        assert await world.run() == 1
        assert world.low_watermarks() == before
