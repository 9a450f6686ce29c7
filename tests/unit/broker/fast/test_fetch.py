"""Fetch on the fast path: what takes it, and what is left to the readable path.

That its answers are those of the readable path is in property/test_fast_requests.
"""

from __future__ import annotations

import asyncio
import errno
import os
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from lapse.base.errors import ErrorCode
from lapse.base.ids import TopicPartition
from lapse.broker.fast.fetch_look import PARTITIONS_MAX
from lapse.broker.limits.quotas import CLIENT_ID, CONSUMER_BYTE_RATE
from lapse.broker.logs.purgatory import Watch
from lapse.broker.node import Node
from lapse.client.admin import Admin
from lapse.client.connection import BrokerConnection, ConnectionLost
from lapse.log.partition_log import PartitionLog
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.validate import check_produced
from lapse.security.acls import AclFilter, Operation, ResourceType
from lapse.wire.schema.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tests.support.broker.fetching import offsets, until_waiting
from tests.support.broker.running import (
    BY_NAME,
    batch_of,
    connect,
    create,
    fetch,
    fetch_request,
    produce,
    running_node,
    until,
)
from tests.support.broker.secured import WITH_ACLS, allow, logged_in, set_acls
from tests.support.broker.transaction_requests import TransactionalProducer
from tests.support.wire.frames import frame_of

T0 = TopicPartition("t", 0)
ONE = batch_of(b"a")
SHORT, LONG = batch_of(bytes(20_000)), batch_of(bytes(40_000))


@pytest.fixture
async def node(disk_path: Path) -> AsyncIterator[Node]:
    """On a disk: a file system in memory cannot say that a read would wait."""
    async with running_node(disk_path) as running:
        yield running


@pytest.fixture
async def topic(node: Node, connection: BrokerConnection) -> PartitionLog:
    """With a short record in its first partition and a long one in its second."""
    await create(node, "t", 2)
    await produce(connection, "t", (0, ONE), (1, LONG))
    return node.services.partitions.get(T0)


def fast(node: Node) -> int:
    """How many requests took the fast path."""
    return node.services.counters.fast_requests["Fetch"]


def values(found: Any) -> list[bytes]:
    return [bytes(partition.records)[61:] for partition in found]


@pytest.mark.usefixtures("topic")
@pytest.mark.parametrize("isolation_level", [0, 1])
async def test_a_plain_request_takes_it(
    node: Node, connection: BrokerConnection, isolation_level: int
) -> None:
    """Short records are read along, long ones go from the file to the socket."""
    found = await fetch(connection, "t", (1, 0), (0, 0), isolation_level=isolation_level)
    assert values(found) == [LONG[61:], ONE[61:]]
    assert [p.high_watermark for p in found] == [1, 1]
    assert fast(node) == node.services.counters.requests["Fetch"] == 1
    assert node.services.counters.topics["t"].bytes_out == len(ONE) + len(LONG)


@pytest.mark.usefixtures("topic")
async def test_by_id(node: Node, connection: BrokerConnection) -> None:
    known = node.services.topics.image.topics["t"]
    one = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    asked = (FetchTopic(topic_id=known.topic_id, partitions=(one,)),)
    request = FetchRequest(max_wait_ms=0, min_bytes=1, topics=asked)
    for version in (13, 18):
        answer = await connection.request(request, FetchResponse, version=version)
        (only,) = answer.responses
        assert only.topic_id == known.topic_id
        assert values(only.partitions) == [ONE[61:]]
    assert fast(node) == 2


@pytest.mark.usefixtures("topic")
async def test_what_is_waited_for_is_waited_for(node: Node, connection: BrokerConnection) -> None:
    async with await connect(node) as other:
        waiting = asyncio.ensure_future(
            fetch(connection, "t", (0, 1), max_wait_ms=60_000, min_bytes=len(ONE) + 1)
        )
        await until_waiting(node)
        await produce(other, "t", (0, ONE))
        await asyncio.sleep(0)
        assert not waiting.done()
        await produce(other, "t", (0, ONE))
    (found,) = await waiting
    assert (offsets(found.records), found.high_watermark) == ([1, 2], 3)
    assert fast(node) == node.services.counters.requests["Fetch"] == 1
    assert values(await fetch(connection, "t", (0, 3), min_bytes=0)) == [b""]
    assert values(await fetch(connection, "t", (0, 3), max_wait_ms=1)) == [b""]
    assert fast(node) == 3


@pytest.mark.usefixtures("topic")
async def test_a_wait_ends_with_its_client(node: Node) -> None:
    async with await connect(node) as leaves:
        waiting = asyncio.ensure_future(fetch(leaves, "t", (0, 1), max_wait_ms=60_000))
        await until_waiting(node)
    await until(lambda: not node.services.purgatory.waiting)
    with pytest.raises(ConnectionLost):
        await waiting


async def test_what_came_meanwhile_may_be_for_the_readable_path(
    node: Node, connection: BrokerConnection, topic: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here the end of an aborted transaction; it waits no longer than the client said."""
    waits, wait = [], Watch.wait

    async def noted(watch: Watch, missing: int, seconds: float) -> None:
        waits.append(seconds)
        await wait(watch, missing, seconds)

    monkeypatch.setattr(Watch, "wait", noted)
    asked: dict[str, Any] = {"isolation_level": 1, "min_bytes": 1 << 20, "max_wait_ms": 600}
    waiting = asyncio.ensure_future(fetch(connection, "t", (0, 1), **asked))
    await until_waiting(node)
    spec = BatchSpec(producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
    batch = bytearray(build_batch([NewRecord(b"k", b"v", 1)], spec))
    checked = check_produced(batch, topic.config, 1, "t-0")
    topic.append(checked, leader_epoch=topic.leader_epoch, now_ms=1)
    topic.append_marker(5, 0, False, 0, leader_epoch=topic.leader_epoch, now_ms=1)
    now = asyncio.get_running_loop().time
    some_of_it_is_over = now() + 0.2
    await until(lambda: now() > some_of_it_is_over)
    node.services.purgatory.changed(T0)
    (found,) = await waiting
    assert [t.producer_id for t in found.aborted_transactions or ()] == [5]
    assert offsets(found.records) == [1, 2]
    assert fast(node) == 0
    assert waits[0] > 0.5
    assert waits[1] < waits[0] - 0.15


@pytest.mark.usefixtures("topic")
async def test_a_marker_of_few_bytes_may_be_what_is_waited_for(
    node: Node, connection: BrokerConnection
) -> None:
    async with await connect(node) as other:
        producer = TransactionalProducer(other, "x")
        await producer.start()
        await producer.add(T0)
        assert await producer.send(T0, bytes(20_000)) == ErrorCode.NONE
        asked: dict[str, Any] = {"isolation_level": 1, "min_bytes": 20_000, "max_wait_ms": 60_000}
        waiting = asyncio.ensure_future(fetch(connection, "t", (0, 1), **asked))
        await until_waiting(node)
        assert await producer.end(commit=True) == ErrorCode.NONE
        (found,) = await asyncio.wait_for(waiting, 10)
    assert offsets(found.records)[0] == 1
    assert fast(node) == 1


@pytest.mark.usefixtures("topic")
async def test_what_waits_counts_as_held(node: Node, connection: BrokerConnection) -> None:
    waiting = asyncio.ensure_future(fetch(connection, "t", (0, 1), max_wait_ms=60_000))
    await until_waiting(node)
    size = len(frame_of(fetch_request("t", (0, 1)), BY_NAME, correlation_id=1))
    assert node.services.request_bytes.whole > size / 2
    async with await connect(node) as other:
        await produce(other, "t", (0, ONE))
    await waiting
    await until(lambda: not node.services.request_bytes.whole)


@pytest.mark.usefixtures("topic")
async def test_a_topic_that_goes_ends_the_wait(node: Node, connection: BrokerConnection) -> None:
    waiting = asyncio.ensure_future(fetch(connection, "t", (0, 1), max_wait_ms=60_000))
    await until_waiting(node)
    async with await connect(node) as other:
        await Admin(other).delete_topic("t")
    (found,) = await asyncio.wait_for(waiting, 10)
    assert found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert fast(node) == 0


@pytest.mark.usefixtures("topic")
@pytest.mark.parametrize(
    ("offset", "fields", "code"),
    [
        (3, {}, ErrorCode.OFFSET_OUT_OF_RANGE),
        (0, {"session_epoch": 0}, ErrorCode.NONE),
        (0, {"rack_id": "r"}, ErrorCode.NONE),
        (0, {"tombstone_values": True}, ErrorCode.NONE),
    ],
)
async def test_another_does_not(
    node: Node, connection: BrokerConnection, offset: int, fields: dict[str, Any], code: ErrorCode
) -> None:
    (found,) = await fetch(connection, "t", (0, offset), **fields)
    assert (found.error_code, fast(node)) == (code, 0)


async def test_only_the_active_segment_is_read_so(
    node: Node, connection: BrokerConnection, topic: PartitionLog
) -> None:
    topic.roll(0)
    await produce(connection, "t", (0, ONE))
    assert values(await fetch(connection, "t", (0, 0))) == [ONE[61:]]
    assert fast(node) == 0
    assert values(await fetch(connection, "t", (0, 1))) == [ONE[61:]]
    assert fast(node) == 1


@pytest.mark.usefixtures("topic")
async def test_a_disk_is_not_waited_for(
    node: Node, connection: BrokerConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def waits(*_: object) -> int:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, "preadv", waits)
    assert values(await fetch(connection, "t", (0, 0))) == [ONE[61:]]
    assert fast(node) == 0


async def test_many_partitions_are_left_to_threads(
    node: Node, connection: BrokerConnection
) -> None:
    await create(node, "many", PARTITIONS_MAX + 1)
    for count in (PARTITIONS_MAX, PARTITIONS_MAX + 1):
        wanted = [(n, 0) for n in range(count)]
        assert len(await fetch(connection, "many", *wanted, min_bytes=0)) == count
    assert fast(node) == 1


async def test_much_at_once_asks_for_room_first(
    node: Node, connection: BrokerConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lapse.broker.fast.fetch_look.HELD_BYTES_MAX", 2 * len(SHORT))
    await create(node, "t", 5)
    await produce(connection, "t", *[(n, SHORT) for n in range(4)], (4, LONG))
    assert len(await fetch(connection, "t", (0, 0), (1, 0), (2, 0), (4, 0))) == 4
    assert fast(node) == 0
    assert len(await fetch(connection, "t", (0, 0), (1, 0), (4, 0), (0, 1))) == 4
    assert fast(node) == 1


@pytest.mark.usefixtures("topic")
async def test_over_its_quota_a_client_gets_nothing_and_waits(
    node: Node, connection: BrokerConnection
) -> None:
    """It is the readable path that says so; until then what is given is counted."""
    per_second = float(len(ONE) + 1)  # over ten seconds and the one that has begun
    await node.services.quotas.alter(((CLIENT_ID, None),), {CONSUMER_BYTE_RATE: per_second})
    request = fetch_request("t", (0, 0))
    for n in range(1, 20):
        answer = await connection.request(request, FetchResponse, version=BY_NAME)
        if answer.throttle_time_ms:
            break
        assert values(answer.responses[0].partitions) == [ONE[61:]]
        assert fast(node) == n
    assert n > 5
    assert (fast(node), answer.responses) == (n - 1, ())


async def test_who_may_not_read_is_refused_from_the_next_request_on(disk_path: Path) -> None:
    async with running_node(disk_path, WITH_ACLS) as node:
        await create(node, "t")
        await set_acls(node, [allow(Operation.WRITE, ResourceType.TOPIC, "t")])
        async with await logged_in(node, "alice") as alice:
            await produce(alice, "t", (0, ONE))
            (refused,) = await fetch(alice, "t", (0, 0))
            assert refused.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
            await set_acls(node, [allow(Operation.READ, ResourceType.TOPIC, "t")])
            assert values(await fetch(alice, "t", (0, 0))) == [ONE[61:]]
            assert fast(node) == 1
            await node.services.access.delete_acls([AclFilter()])
            (refused,) = await fetch(alice, "t", (0, 0))
            assert refused.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
            assert fast(node) == 1


async def test_zstd_is_not_for_old_clients(node: Node, connection: BrokerConnection) -> None:
    await create(node, "z", compression_type="zstd")
    await produce(connection, "z", (0, ONE))
    for version, code in ((9, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE), (10, ErrorCode.NONE)):
        request = fetch_request("z", (0, 0))
        answer = await connection.request(request, FetchResponse, version=version)
        assert answer.responses[0].partitions[0].error_code == code
    assert fast(node) == 1


async def test_values_of_tombstones_are_not_for_all(
    node: Node, connection: BrokerConnection
) -> None:
    """KIP-87: null is sent to a client that knows no flag."""
    settings = {"cleanup.policy": "compact", "lapse.tombstone.values.enable": "true"}
    await create(node, "v", **settings)
    await produce(connection, "v", (0, build_batch([NewRecord(b"k", b"why", tombstone=True)])))
    (found,) = await fetch(connection, "v", (0, 0))
    assert b"why" not in bytes(found.records or b"")  # type: ignore[arg-type]
    assert fast(node) == 0


async def test_it_keeps_to_the_brokers_limit(disk_path: Path) -> None:
    async with running_node(disk_path, {"fetch.max.bytes": "1024"}) as node:
        await create(node, "t", 2)
        async with await connect(node) as connection:
            await produce(connection, "t", *[(n, batch_of(bytes(700))) for n in (0, 1)])
            found = await fetch(connection, "t", (0, 0), (1, 0))
            assert sum(len(p.records or b"") for p in found) == 1024  # type: ignore[arg-type]
            assert fast(node) == 1


async def test_a_long_answer_in_memory_is_counted(
    node: Node, connection: BrokerConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create(node, "t", 3)
    await produce(connection, "t", *[(n, batch_of(bytes(30_000))) for n in range(3)])
    answers, counted = node.services.answer_bytes, []
    begin = answers.begin

    def noted(connection: Any, size: int) -> None:
        counted.append(size)
        begin(connection, size)

    monkeypatch.setattr(answers, "begin", noted)
    await fetch(connection, "t", (0, 0), (1, 0))
    assert counted == []
    await fetch(connection, "t", (0, 0), (1, 0), (2, 0))
    assert [size > 90_000 for size in counted] == [True]
    assert fast(node) == 2


@pytest.mark.usefixtures("topic")
async def test_many_at_once_are_answered_in_order(node: Node) -> None:
    """Long answers, which are sent from the file, with what comes after them waiting."""
    reader, writer = await asyncio.open_connection("127.0.0.1", node.services.address.port)
    count = 60
    for n in range(count):
        request = fetch_request("t", (1, 0)) if n % 3 else fetch_request("t", (0, 0), (1, 0))
        writer.write(frame_of(request, 11, correlation_id=n))
    for n in range(count):
        size = struct.unpack(">i", await reader.readexactly(4))[0]
        answer = await reader.readexactly(size)
        assert struct.unpack_from(">i", answer)[0] == n
        assert LONG[61:] in answer
    writer.close()
    assert fast(node) == count
