"""Fetch: bounds, limits, the long poll, and long slices through sendfile."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace

import pytest

from lapse.base.errors import ErrorCode
from lapse.base.ids import TopicPartition
from lapse.broker.api.fetch import SENDFILE_BYTES_MIN
from lapse.broker.node import Node
from lapse.client.admin import Admin
from lapse.client.connection import BrokerConnection
from lapse.metadata.partition_states import Away, PartitionState
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
)

LONG_MS = 60_000


async def test_gives_batches_and_bounds(node: Node, connection: BrokerConnection) -> None:
    await create(node, "t")
    for value in (b"a", b"b", b"c"):
        await produce(connection, "t", (0, batch_of(value)))
    (got,) = await fetch(connection, "t", (0, 1))
    assert offsets(got.records) == [1, 2]
    assert (got.high_watermark, got.last_stable_offset, got.log_start_offset) == (3, 3, 0)
    assert got.aborted_transactions is None
    (committed,) = await fetch(connection, "t", (0, 0), isolation_level=1)
    assert committed.aborted_transactions == ()


async def test_begins_with_the_batch_that_holds_the_offset(
    node: Node, connection: BrokerConnection
) -> None:
    """Y-1."""
    await create(node, "t")
    await produce(connection, "t", (0, batch_of(b"a", b"b", b"c")))
    (got,) = await fetch(connection, "t", (0, 2))
    assert offsets(got.records) == [0]


@pytest.mark.parametrize("offset", [-1, 2])
async def test_out_of_range(node: Node, connection: BrokerConnection, offset: int) -> None:
    """Y-2, told at once however long the client would wait."""
    await create(node, "t")
    await produce(connection, "t", (0, batch_of(b"a")))
    (got,) = await fetch(connection, "t", (0, offset), max_wait_ms=LONG_MS)
    assert got.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    (end,) = await fetch(connection, "t", (0, 1))
    assert (end.error_code, end.records) == (0, b"")


async def test_unknown_partition_does_not_wait(node: Node, connection: BrokerConnection) -> None:
    await create(node, "t")
    known, unknown = await fetch(connection, "t", (0, 0), (1, 0), max_wait_ms=LONG_MS)
    assert known.error_code == 0
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_long_slices_come_whole(node: Node, connection: BrokerConnection) -> None:
    """Through sendfile, between bytes of the same frame, short ones beside them."""
    await create(node, "t", 3)
    long, short = batch_of(b"x" * 500_000), batch_of(b"y")
    assert len(short) < SENDFILE_BYTES_MIN < len(long)
    for _ in range(3):
        await produce(connection, "t", (0, long), (1, short), (2, long))
    got = await fetch(connection, "t", (0, 0), (1, 0), (2, 1), partition_max_bytes=1 << 22)
    assert [offsets(p.records) for p in got] == [[0, 1, 2], [0, 1, 2], [1, 2]]
    assert node.services.counters.topics["t"].bytes_out == sum(len(p.records or b"") for p in got)


async def test_limits_cut_but_the_first_batch_is_whole(
    node: Node, connection: BrokerConnection
) -> None:
    await create(node, "t", 2)
    size = len(batch_of(b"x" * 1000))
    for _ in range(3):
        await produce(connection, "t", (0, batch_of(b"x" * 1000)), (1, batch_of(b"x" * 1000)))
    small = {"partition_max_bytes": 10}
    first, second = await fetch(connection, "t", (0, 0), (1, 0), **small)
    assert [len(p.records or b"") for p in (first, second)] == [size, 10]
    first, second = await fetch(connection, "t", (0, 0), (1, 0), max_bytes=size + 100)
    assert [len(p.records or b"") for p in (first, second)] == [size + 100, 0]


async def test_waits_for_an_append(node: Node, connection: BrokerConnection) -> None:
    await create(node, "t")
    async with await connect(node) as other:
        waiting = asyncio.create_task(fetch(connection, "t", (0, 0), max_wait_ms=LONG_MS))
        await until_waiting(node)
        await produce(other, "t", (0, batch_of(b"a")))
        (got,) = await waiting
    assert offsets(got.records) == [0]
    assert node.services.purgatory.waiting == 0


async def test_waits_for_min_bytes_over_all_partitions(
    node: Node, connection: BrokerConnection
) -> None:
    await create(node, "t", 2)
    size = len(batch_of(b"a"))
    async with await connect(node) as other:
        waiting = asyncio.create_task(
            fetch(connection, "t", (0, 0), (1, 0), max_wait_ms=LONG_MS, min_bytes=2 * size)
        )
        await until_waiting(node)
        await produce(other, "t", (0, batch_of(b"a")))
        assert node.services.purgatory.waiting == 1
        await produce(other, "t", (1, batch_of(b"b")))
        got = await waiting
    assert [len(p.records or b"") for p in got] == [size, size]


async def test_time_ends_the_wait_with_what_there_is(
    node: Node, connection: BrokerConnection
) -> None:
    await create(node, "t")
    await produce(connection, "t", (0, batch_of(b"a")))
    (got,) = await fetch(connection, "t", (0, 0), max_wait_ms=20, min_bytes=1 << 20)
    assert offsets(got.records) == [0]


async def test_deleting_the_topic_ends_the_wait(node: Node, connection: BrokerConnection) -> None:
    await create(node, "t")
    async with await connect(node) as other:
        waiting = asyncio.create_task(fetch(connection, "t", (0, 0), max_wait_ms=LONG_MS))
        await until_waiting(node)
        await Admin(other).delete_topic("t")
        (got,) = await waiting
    assert got.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_client_that_leaves_is_not_waited_for(node: Node) -> None:
    await create(node, "t")
    leaving = await connect(node)
    waiting = asyncio.create_task(fetch(leaving, "t", (0, 0), max_wait_ms=LONG_MS))
    await until_waiting(node)
    leaving.close()
    async with asyncio.timeout(10):
        while node.services.purgatory.waiting:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    (failed,) = await asyncio.gather(waiting, return_exceptions=True)
    assert isinstance(failed, Exception)


async def test_topics_by_id(node: Node, connection: BrokerConnection) -> None:
    await create(node, "t")
    await produce(connection, "t", (0, batch_of(b"a")))
    asked = (FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20),)
    known = node.services.topics.image.topics["t"].topic_id
    request = FetchRequest(
        max_wait_ms=LONG_MS,
        min_bytes=1,
        topics=tuple(FetchTopic(topic_id=i, partitions=asked) for i in (known, uuid.uuid4())),
    )
    answer = await connection.request(request, FetchResponse)
    first, second = answer.responses
    assert first.topic_id == known
    assert offsets(first.partitions[0].records) == [0]
    assert second.partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize(("epoch", "error"), [(0, 0), (1, ErrorCode.UNKNOWN_LEADER_EPOCH), (-1, 0)])
async def test_leader_epoch(
    node: Node, connection: BrokerConnection, epoch: int, error: int
) -> None:
    await create(node, "t")
    asked = FetchPartition(
        partition=0, current_leader_epoch=epoch, fetch_offset=0, partition_max_bytes=1
    )
    request = FetchRequest(
        max_wait_ms=0, min_bytes=1, topics=(FetchTopic(topic="t", partitions=(asked,)),)
    )
    answer = await connection.request(request, FetchResponse, version=12)
    assert answer.responses[0].partitions[0].error_code == error


async def test_a_slow_reader_gets_every_byte(node: Node) -> None:
    """More than socket buffers hold, read late: writing pauses and goes on."""
    await create(node, "t")
    async with await connect(node) as connection:
        for _ in range(20):
            await produce(connection, "t", (0, batch_of(b"x" * 900_000)))
        request = fetch_request("t", (0, 0), partition_max_bytes=1 << 26, max_bytes=1 << 26)
        connection._wire.transport.pause_reading()
        waiting = asyncio.create_task(connection.request(request, FetchResponse, version=12))
        await asyncio.sleep(0.05)
        connection._wire.transport.resume_reading()
        answer = await waiting
    assert offsets(answer.responses[0].partitions[0].records) == list(range(20))


async def test_a_follower_gets_nothing_before_its_replica_is_known_and_counts(
    node: Node, connection: BrokerConnection
) -> None:
    """L3: nobody would wait for it with tombstones."""
    await create(node, "t")
    await produce(connection, "t", (0, batch_of(b"a")))
    partition = TopicPartition("t", 0)

    async def fetched_by(broker: int) -> tuple[int, int]:
        asked = replace(fetch_request("t", (0, 0)), replica_id=broker)
        answer = await connection.request(asked, FetchResponse, version=BY_NAME)
        [found] = answer.responses[0].partitions
        return found.error_code, len(found.records or b"")

    me = node.services.config.node_id
    state = PartitionState((me, 2), (me,), me, 0, away=(Away(2, 0, counted=False),))
    node.services.partitions.set_state(partition, state)
    assert await fetched_by(3) == (ErrorCode.UNKNOWN_LEADER_EPOCH, 0)
    assert await fetched_by(2) == (ErrorCode.UNKNOWN_LEADER_EPOCH, 0)
    node.services.partitions.set_state(partition, replace(state, away=()))
    code, size = await fetched_by(2)
    assert code == ErrorCode.NONE
    assert size > 0


async def test_consumers_read_from_a_follower_only_while_it_is_in_sync(
    node: Node, connection: BrokerConnection
) -> None:
    """KIP-392. What one that is not in sync has may be of before a deletion."""
    await create(node, "t")
    await produce(connection, "t", (0, batch_of(b"a")))
    me = node.services.config.node_id
    state = PartitionState((me, 2), (me, 2), 2, 0)
    node.services.partitions.set_state(TopicPartition("t", 0), state)

    async def read(offset: int, version: int = BY_NAME) -> tuple[int, int]:
        asked = fetch_request("t", (0, offset))
        answer = await connection.request(asked, FetchResponse, version=version)
        [found] = answer.responses[0].partitions
        return found.error_code, len(found.records or b"")

    code, size = await read(0)
    assert (code, size > 0) == (ErrorCode.NONE, True)
    assert await read(1) == (ErrorCode.NONE, 0)
    assert await read(2) == (ErrorCode.OFFSET_NOT_AVAILABLE, 0)  # the leader may have it
    assert await read(0, version=10) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, 0)
    lags = replace(state, isr=(2,))
    node.services.partitions.set_state(TopicPartition("t", 0), lags)
    assert await read(0) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, 0)
