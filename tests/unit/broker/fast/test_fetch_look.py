"""Fetches of a session (KIP-227) on the fast path: what is told, once, and what it rests on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from lapse.base.errors import ErrorCode
from lapse.base.ids import TopicPartition
from lapse.broker.fast.fetch import SESSION_PARTITIONS_MAX
from lapse.broker.fast.fetch_look import PARTITIONS_MAX
from lapse.broker.node import Node
from lapse.client.admin import Admin
from lapse.client.connection import BrokerConnection
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.validate import check_produced
from lapse.security.acls import AclFilter, Operation, ResourceType
from lapse.wire.envelope import decode_response
from lapse.wire.schema.fetch import FetchResponse
from tests.support.broker.fetching import Client, got, named, part, until_waiting
from tests.support.broker.running import (
    BY_NAME,
    batch_of,
    connect,
    create,
    fetch_request,
    produce,
    running_node,
)
from tests.support.broker.secured import WITH_ACLS, allow, logged_in, set_acls
from tests.support.wire.frames import frame_of

BY_ID = 17
ONE = batch_of(b"a")
LONG_MS = 60_000
MANY = 100


@pytest.fixture
async def node(disk_path: Path) -> AsyncIterator[Node]:
    """On a disk: a file system in memory cannot say that a read would wait."""
    async with running_node(disk_path) as running:
        yield running


def fast(node: Node) -> int:
    """How many requests took the fast path; the one that makes a session does not."""
    return node.services.counters.fast_requests["Fetch"]


async def begun(
    node: Node, connection: BrokerConnection, partitions: int, version: int = BY_NAME
) -> Client:
    """A session that has all of topic t, from the start."""
    await create(node, "t", partitions)
    client = Client(connection, version)
    await client.fetch(named(node, "t", *(part(n, 0) for n in range(partitions))))
    return client


def marks(answer: FetchResponse) -> list[tuple[int, int, int]]:
    """Partition, high watermark and log start of what is told."""
    return [
        (data.partition_index, data.high_watermark, data.log_start_offset)
        for topic in answer.responses
        for data in topic.partitions
    ]


@pytest.mark.parametrize("version", [7, BY_NAME, BY_ID])
async def test_what_is_new_is_told_once(
    node: Node, connection: BrokerConnection, version: int
) -> None:
    client = await begun(node, connection, MANY, version)
    async with await connect(node) as other:
        assert got(await client.fetch()) == {}
        await produce(other, "t", (70, ONE), (3, ONE))
        assert got(await client.fetch()) == {3: [0], 70: [0]}
        assert got(await client.fetch(named(node, "t", part(70, 1)))) == {3: [0]}
        assert got(await client.fetch(named(node, "t", part(3, 1)))) == {}
        await Admin(other).delete_records({TopicPartition("t", 70): 1})
        assert marks(await client.fetch()) == [(70, 1, 1)]
        assert marks(await client.fetch()) == []
    assert fast(node) == 6
    assert node.services.counters.topics["t"].bytes_out == 3 * len(ONE)


async def test_an_offset_that_moves_back_is_read_again(
    node: Node, connection: BrokerConnection
) -> None:
    client = await begun(node, connection, 2)
    await produce(connection, "t", (0, ONE))
    assert got(await client.fetch(named(node, "t", part(0, 1)))) == {0: []}  # its high watermark
    assert got(await client.fetch()) == {}
    assert got(await client.fetch(named(node, "t", part(0, 0)))) == {0: [0]}
    assert fast(node) == 3


async def test_who_had_records_comes_last(node: Node, connection: BrokerConnection) -> None:
    """Also where the other path takes turns."""
    client = await begun(node, connection, 3)
    batch = batch_of(bytes(1000))
    await produce(connection, "t", *((n, batch) for n in range(3)))
    turns = []
    for n in range(6):
        topics = [named(node, "t", part(9, 0))] if n == 2 else []  # there is none: not plain
        answer = await client.fetch(*topics, max_bytes=len(batch))
        turns += [number for number, seen in got(answer).items() if seen]
    assert turns == [0, 1, 2, 0, 1, 2]
    assert fast(node) == 2


async def test_what_is_asked_here_is_asked_of_the_other_path_too(
    node: Node, connection: BrokerConnection
) -> None:
    client = await begun(node, connection, 1)
    log = node.services.partitions.get(TopicPartition("t", 0))
    log.set_replicated(replicated=True)
    await produce(connection, "t", (0, ONE), acks=1)
    rack = {"rack_id": "r"}  # is for the readable path
    assert got(await client.fetch(**rack)) == {}
    assert got(await client.fetch(named(node, "t", part(0, 1)))) == {}
    assert fast(node) == 1
    log.high_watermark = 1
    assert got(await client.fetch(**rack)) == {0: []}


async def test_a_change_is_waited_for(node: Node, connection: BrokerConnection) -> None:
    client = await begun(node, connection, MANY)
    waiting = asyncio.ensure_future(client.fetch(max_wait_ms=LONG_MS))
    await until_waiting(node)
    async with await connect(node) as other:
        await produce(other, "t", (7, ONE))
    assert got(await waiting) == {7: [0]}
    assert got(await client.fetch(named(node, "t", part(7, 1)), max_wait_ms=1)) == {}
    assert fast(node) == 2


async def test_another_request_of_the_session_ends_the_wait_when_it_is_woken(
    node: Node, connection: BrokerConnection
) -> None:
    client = await begun(node, connection, 1)
    waiting = asyncio.ensure_future(client.fetch(max_wait_ms=LONG_MS))
    await until_waiting(node)
    async with await connect(node) as other:
        again = Client(other)
        again.session_id, again.epoch = client.session_id, 2
        assert got(await again.fetch()) == {}
        await produce(other, "t", (0, ONE))
        assert (await waiting).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
        assert got(await again.fetch()) == {0: [0]}
    assert fast(node) == 2


async def test_what_is_woken_for_the_readable_path_is_still_the_next_request(
    node: Node, connection: BrokerConnection
) -> None:
    """The topic's metadata are others after the wait: what was prepared is not gone by."""
    client = await begun(node, connection, 1)
    waiting = asyncio.ensure_future(client.fetch(max_wait_ms=LONG_MS))
    await until_waiting(node)
    async with await connect(node) as other:
        await create(node, "another")
        await produce(other, "t", (0, ONE))
    assert got(await waiting) == {0: [0]}
    assert fast(node) == 0
    assert got(await client.fetch(named(node, "t", part(0, 1)))) == {}
    assert fast(node) == 1


async def test_a_partition_that_joins_or_leaves_is_for_the_readable_path(
    node: Node, connection: BrokerConnection
) -> None:
    await create(node, "u")
    client = await begun(node, connection, 1)
    assert got(await client.fetch(named(node, "u", part(0, 0)))) == {0: []}
    assert fast(node) == 0
    await produce(connection, "u", (0, ONE))
    assert got(await client.fetch()) == {0: [0]}
    assert fast(node) == 1


async def test_read_committed_and_not_by_turns(node: Node, connection: BrokerConnection) -> None:
    """What is quiet for one of them is not for the other."""
    client = await begun(node, connection, 1)
    log = node.services.partitions.get(TopicPartition("t", 0))
    spec = BatchSpec(producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
    batch = bytearray(build_batch([NewRecord(b"k", b"v", 1)], spec))
    checked = check_produced(batch, log.config, 1, "t-0")
    log.append(checked, leader_epoch=log.leader_epoch, now_ms=1)
    assert marks(await client.fetch(isolation_level=1)) == [(0, 1, 0)]
    assert got(await client.fetch(isolation_level=1)) == {}
    assert got(await client.fetch()) == {0: [0]}
    assert got(await client.fetch(isolation_level=1)) == {}
    assert got(await client.fetch()) == {0: [0]}
    assert fast(node) == 5


async def test_who_says_what_epoch_it_has_read_is_for_the_readable_path(
    node: Node, connection: BrokerConnection
) -> None:
    """KIP-320 by Fetch: the answer may be where the logs part."""
    await create(node, "t")
    await produce(connection, "t", (0, ONE))
    client = Client(connection)
    await client.fetch(named(node, "t", replace(part(0, 1), last_fetched_epoch=0)))
    assert got(await client.fetch()) == {}
    assert fast(node) == 0


async def test_what_one_host_may_read_another_may_not(disk_path: Path) -> None:
    """A session is its principal's; its rights are those of who asks just now."""
    settings = {"authorizer.class.name": WITH_ACLS["authorizer.class.name"]}
    async with running_node(disk_path, {**settings, "super.users": "User:ANONYMOUS"}) as node:
        await create(node, "t")
    async with running_node(disk_path, settings) as node, await connect(node) as connection:
        here = allow(Operation.READ, ResourceType.TOPIC, "t", "ANONYMOUS")
        await set_acls(node, [replace(here, host="127.0.0.1")])
        client = Client(connection)
        await client.fetch(named(node, "t", part(0, 0)))
        assert got(await client.fetch()) == {}
        assert fast(node) == 1
        request = fetch_request("", session_id=client.session_id, session_epoch=client.epoch)
        frame = frame_of(replace(request, topics=()), BY_NAME, correlation_id=1)
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", node.services.address.port, local_addr=("127.0.0.2", 0)
        )
        writer.write(frame)
        size = int.from_bytes(await reader.readexactly(4))
        answer = decode_response(FetchResponse, BY_NAME, memoryview(await reader.readexactly(size)))
        writer.close()
        (topic,) = answer.responses
        assert topic.partitions[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert fast(node) == 1


async def test_rights_are_asked_for_when_they_change(disk_path: Path) -> None:
    async with running_node(disk_path, WITH_ACLS) as node:
        await set_acls(node, [allow(Operation.READ, ResourceType.TOPIC, "t")])
        async with await logged_in(node, "alice") as connection:
            client = await begun(node, connection, 1)
            assert got(await client.fetch()) == {}
            assert fast(node) == 1
            await node.services.access.delete_acls([AclFilter()])
            (topic,) = (await client.fetch()).responses
            assert topic.partitions[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
            assert fast(node) == 1
            await set_acls(node, [allow(Operation.READ, ResourceType.TOPIC, "t")])
            assert marks(await client.fetch()) == [(0, 0, 0)]
            assert fast(node) == 2
        async with await logged_in(node, "bob") as connection:
            thief = Client(connection)
            thief.session_id, thief.epoch = client.session_id, client.epoch
            assert (await thief.fetch()).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


@pytest.mark.parametrize(
    ("count", "times"), [(SESSION_PARTITIONS_MAX, 1), (SESSION_PARTITIONS_MAX + 1, 0)]
)
async def test_very_many_partitions_are_left_to_the_readable_path(
    node: Node, connection: BrokerConnection, count: int, times: int
) -> None:
    client = await begun(node, connection, count)
    assert got(await client.fetch()) == {}
    assert fast(node) == times


async def test_much_news_is_left_to_the_readable_path(
    node: Node, connection: BrokerConnection
) -> None:
    client = await begun(node, connection, PARTITIONS_MAX + 1)
    for count, times in ((PARTITIONS_MAX + 1, 0), (PARTITIONS_MAX, 1)):
        await produce(connection, "t", *((n, ONE) for n in range(count)))
        news = await client.fetch(max_bytes=1)
        assert len(got(news)) == count
        assert fast(node) == times
