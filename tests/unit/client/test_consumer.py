"""Our consumer against our broker: positions, isolation, columns, and leaders that are unwell."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from lapse.base.errors import ConfigError, ErrorCode, KafkaError
from lapse.base.ids import TopicPartition
from lapse.broker.node import Node
from lapse.client.admin import Admin
from lapse.client.cluster import Address
from lapse.client.connection import ConnectionLost
from lapse.client.consumer import Consumer, ConsumerConfig
from lapse.client.offsets import EARLIEST, LATEST, list_offsets
from lapse.client.producer import Producer
from lapse.records.builder import NewRecord, build_batch
from lapse.testing.clock import ManualClock
from lapse.wire.schema.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from lapse.wire.schema.list_offsets import ListOffsetsRequest
from lapse.wire.schema.metadata import MetadataRequest
from tests.support.broker.running import create, running_node
from tests.support.client.peers import HANG_UP, Peer, in_turn, metadata, running_peers
from tests.unit.broker.api.test_fetch_committed import Coordinator

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
NOW_MS = 1_700_000_000_000
ANY_AGE = str((1 << 63) - 1)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with running_node(tmp_path) as running:
        await create(running, "t", partitions=2, message_timestamp_before_max_ms=ANY_AGE)
        yield running


def address(node: Node) -> str:
    return f"{node.services.address.host}:{node.services.address.port}"


async def fill(node: Node, count: int, partition: int = 0) -> None:
    async with Producer(address(node)) as producer:
        for n in range(count):
            await producer.send("t", b"k%d" % n, b"v", create_time=1000 * n, partition=partition)


async def test_a_refusal_of_an_offset_that_was_left_is_no_answer(node: Node) -> None:
    """A Fetch under way is for where the consumer was; a seek or an assignment comes before it."""
    await fill(node, 6)
    await fill(node, 3, partition=1)
    async with await Admin.open(address(node)) as admin:
        await admin.delete_records_before({T0: 4})
    async with Consumer(address(node)) as consumer:
        await consumer.assign({T0: 1})
        assert await consumer.poll(timeout_ms=0) == []
        await consumer.seek(T0, EARLIEST)
        assert [r.offset for r in await consumer.poll(timeout_ms=5000)] == [4, 5]
        await consumer.assign({T0: 1})
        assert await consumer.poll(timeout_ms=0) == []
        await consumer.assign({T1: 0})
        assert [r.offset for r in await consumer.poll(timeout_ms=5000)] == [0, 1, 2]
        await consumer.assign({T0: 1})
        with pytest.raises(KafkaError, match="t-0 at offset 1: OFFSET_OUT_OF_RANGE"):
            await consumer.poll(timeout_ms=5000)


def at(seconds: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)


async def read(consumer: Consumer, count: int) -> list[tuple[int, int]]:
    """So many (partition, offset)."""
    got: list[tuple[int, int]] = []
    async with asyncio.timeout(20):
        while len(got) < count:
            got += [(r.partition.partition, r.offset) for r in await consumer.poll()]
    return got


async def test_iterating_over_two_partitions(node: Node) -> None:
    await fill(node, 5)
    await fill(node, 3, partition=1)
    got = set()
    async with asyncio.timeout(20), Consumer(address(node)) as consumer:
        await consumer.assign({T0: EARLIEST, T1: 1})
        async for record in consumer:
            got.add((record.partition.partition, record.offset))
            if len(got) == 7:
                break
    assert got == {(0, n) for n in range(5)} | {(1, 1), (1, 2)}


async def test_places_times_and_positions(node: Node) -> None:
    await fill(node, 10)
    async with Consumer(address(node)) as consumer:
        assert await consumer.beginning_offsets([T0, T1]) == {T0: 0, T1: 0}
        assert await consumer.end_offsets([T0, T1]) == {T0: 10, T1: 0}
        times = await consumer.offsets_for_times({T0: at(3), T1: at(3)})
        assert times == {T0: 3, T1: None}
        ages = await consumer.offsets_by_age({T0: at(3), T1: at(3)})
        assert ages == {T0: 3, T1: 0}
        assert await consumer.offsets_by_age({T0: at(10)}) == {T0: 10}, "all is older"
        await consumer.assign({T0: at(7), T1: at(7)})
        assert (consumer.position(T0), consumer.position(T1)) == (7, 0)
        assert await read(consumer, 3) == [(0, 7), (0, 8), (0, 9)]
        assert consumer.position(T0) == 10
        await consumer.seek(T0, LATEST)
        assert await consumer.poll(timeout_ms=50) == []
        await consumer.seek(T0, 9)
        assert await read(consumer, 1) == [(0, 9)]
        with pytest.raises(ConfigError, match="t-5 is not assigned"):
            await consumer.seek(TopicPartition("t", 5), 0)
        with pytest.raises(KafkaError, match="there is no such partition"):
            await consumer.assign({TopicPartition("t", 5): EARLIEST})


async def test_what_was_asked_for_before_a_seek_is_not_handed_out(node: Node) -> None:
    await fill(node, 4)
    async with Consumer(address(node)) as consumer:
        await consumer.assign({T0: 0})
        assert await consumer.poll(timeout_ms=0) == []  # asked, and not waited for
        await consumer.seek(T0, 2)
        assert [r.offset for r in await consumer.poll(timeout_ms=5000)] == [2, 3]


async def test_outside_of_the_log(node: Node) -> None:
    await fill(node, 6)
    async with await Admin.open(address(node)) as admin:
        await admin.delete_records_before({T0: 4})
    async with Consumer(address(node)) as consumer:
        await consumer.assign({T0: 1})
        with pytest.raises(KafkaError, match="t-0 at offset 1: OFFSET_OUT_OF_RANGE") as refused:
            await consumer.poll()
        assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    async with Consumer(address(node), ConsumerConfig(auto_offset_reset="earliest")) as consumer:
        await consumer.assign({T0: 1})
        assert await read(consumer, 2) == [(0, 4), (0, 5)]
    with pytest.raises(ConfigError, match="auto_offset_reset=newest"):
        ConsumerConfig(auto_offset_reset="newest")


async def test_columns_both_ways(node: Node) -> None:
    settings = {"cleanup_policy": "compact", "lapse_tombstone_values_enable": "true"}
    await create(node, "c", message_timestamp_before_max_ms=ANY_AGE, **settings)
    sent = pa.table(
        {
            "key": pa.array([b"a", b"b", b"c"] * 5000),
            "value": pa.array([b"x" * 300, b"gone, and why", None] * 5000),
            "create_time": pa.array([at(5)] * 14_999 + [None], pa.timestamp("us", tz="UTC")),
            "is_tombstone": pa.array([None, True, True] * 5000),
        }
    )
    where = TopicPartition("c", 0)
    async with Producer(address(node)) as producer:
        done = await producer.send_arrow("c", sent, 0)
    assert len(done) > 1
    ends = np.cumsum([batch.count for batch in done]).tolist()
    assert [batch.base_offset for batch in done] == [0, *ends[:-1]]
    got: list[pa.RecordBatch] = []
    async with asyncio.timeout(20), Consumer(address(node)) as consumer:
        await consumer.assign({where: EARLIEST})
        while sum(map(len, got)) < 15_000:
            got += await consumer.fetch_arrow()
    table = pa.Table.from_batches(got)
    assert table["key"].to_pylist() == sent["key"].to_pylist()
    assert table["value"].to_pylist() == sent["value"].to_pylist()
    assert table["is_tombstone"].to_pylist() == [False, True, True] * 5000
    assert table["create_time"].to_pylist()[:-1] == [at(5)] * 14_999
    assert table["offset"].to_pylist() == list(range(15_000))


async def test_a_create_time_that_is_the_append_time_is_told(tmp_path: Path) -> None:
    """A producer that does not linger: only Kafka's cleaner makes them equal by force (L15)."""
    clock = ManualClock(NOW_MS)
    async with running_node(tmp_path, clock=clock) as node:
        await create(node, "l", message_timestamp_type="LogAppendTime")
        where = TopicPartition("l", 0)
        async with Producer(address(node)) as producer:
            await (await producer.send("l", b"k", b"v", create_time=NOW_MS))
        for _ in range(2):
            async with Consumer(address(node)) as consumer:
                await consumer.assign({where: EARLIEST})
                (record,) = await consumer.poll(timeout_ms=5000)
                await consumer.assign({where: EARLIEST})
                (table,) = await consumer.fetch_arrow(timeout_ms=5000)
            assert (record.create_time, record.append_time) == (NOW_MS, NOW_MS)
            assert table["create_time"].to_pylist() == [at(NOW_MS // 1000)]
            node.services.partitions.get(where).roll(NOW_MS)  # and of a sealed segment


async def test_both_times_of_a_create_time_topic(tmp_path: Path) -> None:
    """The append time is the broker's, to the second, of sealed segments and of the last one."""
    clock = ManualClock(NOW_MS)
    async with running_node(tmp_path, clock=clock) as node:
        await create(node, "b")
        where = TopicPartition("b", 0)
        async with Producer(address(node)) as producer:
            for n in range(4):
                await (await producer.send("b", b"k", b"v", create_time=NOW_MS - 7))
                clock.advance(400)
                if n == 2:
                    node.services.partitions.get(where).roll(NOW_MS)
        async with Consumer(address(node)) as consumer:
            await consumer.assign({where: EARLIEST})
            found = []
            while len(found) < 4:
                found += await consumer.poll(timeout_ms=5000)
            await consumer.assign({where: 3})
            (table,) = await consumer.fetch_arrow(timeout_ms=5000)
    assert [r.append_time for r in found] == [NOW_MS] * 3 + [NOW_MS + 1200]
    assert {(r.create_time, r.timestamp) for r in found} == {(NOW_MS - 7, NOW_MS - 7)}
    assert table["append_time"].cast("int64").to_pylist() == [1000 * (NOW_MS + 1200)]


async def test_read_committed_leaves_out_what_was_aborted(node: Node) -> None:
    """Two producers' transactions among each other, as coordinators leave them in a log."""
    transactions = Coordinator(node)
    transactions.send(7, b"aborted")
    transactions.send(8, b"committed")
    transactions.end(7, commit=False)
    transactions.send(7, b"committed, by who aborted before")
    transactions.end(8, commit=True)
    transactions.end(7, commit=True)
    transactions.send(8, b"open")
    all_values = [b"aborted", b"committed", b"committed, by who aborted before", b"open"]
    for committed, values, end in ((True, all_values[1:3], 6), (False, all_values, 7)):
        config = ConsumerConfig(read_committed=committed)
        async with Consumer(address(node), config) as consumer:
            assert await consumer.end_offsets([T0]) == {T0: end}
            await consumer.assign({T0: EARLIEST})
            got = [r.value for _ in range(3) for r in await consumer.poll(timeout_ms=200)]
            assert got == values
            assert consumer.position(T0) == end


# --- leaders that are unwell ----------------------------------------------------------------------


def answers(partition: int, *, code: int = 0) -> FetchResponse:
    data = build_batch([NewRecord(b"k", b"v")]) if not code else b""
    return FetchResponse(
        responses=(
            FetchableTopicResponse(
                topic="t",
                partitions=(
                    PartitionData(
                        partition_index=partition, error_code=code, high_watermark=1, records=data
                    ),
                ),
            ),
        )
    )


async def test_a_silent_leader_holds_up_its_own_partitions_only() -> None:
    silent, good = Peer({}), Peer({FetchRequest: lambda _: answers(1)})
    who = metadata({0: silent, 1: good}, {"t": [0, 1]})
    silent.script[MetadataRequest] = good.script[MetadataRequest] = who
    async with running_peers(silent, good), Consumer(good.address) as consumer:
        await consumer.assign({T0: 0, T1: 0})
        assert await read(consumer, 1) == [(1, 0)]
        async with asyncio.timeout(5):
            while not silent.of(FetchRequest):
                await consumer.poll(timeout_ms=50)
    assert len(silent.of(FetchRequest)) == 1
    assert silent.of(FetchRequest)[0].tombstone_values


async def test_a_connection_that_is_silent_is_not_looked_up_by_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(list_offsets.__kwdefaults__, "timeout_seconds", 0.2)
    one, connections = Peer({}), []
    one.script[MetadataRequest] = metadata({0: one}, {"t": [0]})
    config = ConsumerConfig(default_api_timeout_ms=2000)
    async with running_peers(one), Consumer(one.address, config) as consumer:

        def silent(_: object) -> None:
            connections.append(consumer._cluster._connections[Address("127.0.0.1", one.port)])

        one.script[ListOffsetsRequest] = silent
        with pytest.raises(ConnectionLost, match="did not answer"):
            await consumer.end_offsets([T0])
    assert len(connections) > 1
    assert len(set(connections)) == len(connections)


@pytest.mark.parametrize("first", [HANG_UP, answers(0, code=6)], ids=["gone", "not leader"])
async def test_a_leader_that_moved_is_looked_for(first: object) -> None:
    one = Peer({FetchRequest: in_turn(lambda _: first, lambda _: answers(0))})
    one.script[MetadataRequest] = metadata({0: one}, {"t": [0]})
    async with running_peers(one), Consumer(one.address) as consumer:
        await consumer.assign({T0: 0})
        assert await read(consumer, 1) == [(0, 0)]
    assert len(one.of(MetadataRequest)) == 2


async def test_one_partitions_error_does_not_take_the_others_records() -> None:
    def both(_: FetchRequest) -> FetchResponse:
        bad, good = answers(0, code=29), answers(1)
        ((b,), (g,)) = bad.responses[0].partitions, good.responses[0].partitions
        return FetchResponse(responses=(FetchableTopicResponse(topic="t", partitions=(b, g)),))

    one = Peer({FetchRequest: both})
    one.script[MetadataRequest] = metadata({0: one}, {"t": [0, 0]})
    async with running_peers(one), Consumer(one.address) as consumer:
        await consumer.assign({T0: 0, T1: 0})
        with pytest.raises(KafkaError, match="t-0 at offset 0: TOPIC_AUTHORIZATION_FAILED"):
            await consumer.poll()
        assert await read(consumer, 1) == [(1, 0)]
