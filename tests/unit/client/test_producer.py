"""Our producer against our broker, and against a peer that answers as it is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lapse.base.errors import ConfigError, ErrorCode, KafkaError
from lapse.base.ids import TopicPartition
from lapse.broker.node import Node
from lapse.client.connection import ConnectionLost
from lapse.client.consumer import Consumer
from lapse.client.delivery import UnsupportedFeature
from lapse.client.offsets import EARLIEST
from lapse.client.partitioner import partition_of
from lapse.client.producer import Producer, ProducerConfig
from lapse.client.record import ConsumerRecord
from lapse.records.layout import Codec
from tests.support.broker.running import create, running_node


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with running_node(tmp_path) as running:
        yield running


def address(node: Node) -> str:
    return f"{node.services.address.host}:{node.services.address.port}"


async def read(node: Node, topic: str, partitions: int, count: int) -> list[ConsumerRecord]:
    """So many records from the start."""
    got: list[ConsumerRecord] = []
    async with asyncio.timeout(20), Consumer(address(node)) as consumer:
        await consumer.assign({TopicPartition(topic, n): EARLIEST for n in range(partitions)})
        while len(got) < count:
            got += await consumer.poll()
    return got


async def test_a_topic_is_made_only_for_who_wants_that(node: Node) -> None:
    """`auto.create.topics.enable` is set by default, as in Kafka."""
    async with Producer(address(node), ProducerConfig(allow_auto_create_topics=False)) as producer:
        with pytest.raises(KafkaError, match="UNKNOWN_TOPIC"):
            await producer.send("new", b"k", b"v")
    assert not node.services.topics.image.topics
    async with Producer(address(node)) as producer:
        await (await producer.send("new", b"k", b"v"))
    assert list(node.services.topics.image.topics) == ["new"]


async def test_what_is_sent_is_there_with_key_headers_and_times(node: Node) -> None:
    await create(node, "t", partitions=3)
    async with Producer(address(node)) as producer:
        sent = [
            await producer.send("t", b"k%d" % n, b"v%d" % n, create_time=1000 + n,
                                headers=[("h", b"%d" % n), ("n", None)])
            for n in range(50)
        ]  # fmt: skip
        places = await asyncio.gather(*sent)
    got = await read(node, "t", 3, 50)
    assert {(r.partition, r.offset): r.key for r in got} == {
        (place.partition, place.offset): b"k%d" % n for n, place in enumerate(places)
    }
    one = next(r for r in got if r.key == b"k7")
    assert (one.value, one.headers, one.create_time, one.timestamp) == (
        b"v7", (("h", b"7"), ("n", None)), 1007, 1007,
    )  # fmt: skip
    assert one.append_time is not None  # to the second, and the broker's
    assert one.partition.partition == partition_of(b"k7", 3)


@pytest.mark.parametrize("codec", Codec)
async def test_order_and_batches_in_every_codec(node: Node, codec: Codec) -> None:
    await create(node, "t")
    config = ProducerConfig(compression=codec, batch_size=2000, linger_ms=0)
    async with Producer(address(node), config) as producer:
        for n in range(500):
            await producer.send("t", None, b"%d" % n)
    got = await read(node, "t", 1, 500)
    assert [int(r.value or b"") for r in got] == list(range(500))
    assert [r.offset for r in got] == list(range(500))


async def test_records_without_a_key_go_round_batch_by_batch(node: Node) -> None:
    await create(node, "t", partitions=2)
    async with Producer(address(node), ProducerConfig(linger_ms=20)) as producer:
        first = [await producer.send("t", None, b"v") for _ in range(5)]
        await producer.flush()
        second = [await producer.send("t", None, b"v") for _ in range(5)]
        await producer.flush()
    assert {(await one).partition for one in first} == {TopicPartition("t", 0)}
    assert {(await one).partition for one in second} == {TopicPartition("t", 1)}


async def test_a_tombstone_with_a_value_and_one_without(node: Node) -> None:
    await create(node, "t", cleanup_policy="compact", lapse_tombstone_values_enable="true")
    async with Producer(address(node)) as producer:
        await producer.send("t", b"a", b"live")
        await producer.send("t", b"b", b"gone, and why", tombstone=True)
        await producer.send("t", b"c", None)
        await producer.send("t", b"d", b"live", tombstone=False)
        await (await producer.send("t", b"e", None, tombstone=True))
        with pytest.raises(KafkaError, match="tombstone=False with a null value") as refused:
            await producer.send("t", b"f", None, tombstone=False)
    assert refused.value.code is ErrorCode.INVALID_RECORD
    got = await read(node, "t", 1, 5)
    assert [(r.key, r.value, r.is_tombstone) for r in got] == [
        (b"a", b"live", False), (b"b", b"gone, and why", True), (b"c", None, True),
        (b"d", b"live", False), (b"e", None, True),
    ]  # fmt: skip


async def test_refusals_are_the_records_and_the_next_ones_go_on(node: Node) -> None:
    await create(node, "t", cleanup_policy="compact", max_message_bytes="5000")
    async with Producer(address(node)) as producer:
        bad = await producer.send("t", None, b"keyless")
        with pytest.raises(KafkaError, match="record 0 of the batch") as refused:
            await bad
        assert refused.value.code is ErrorCode.INVALID_RECORD
        large = await producer.send("t", b"k", bytes(9000))
        with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
            await large
        good = await (await producer.send("t", b"k", b"v"))
        with pytest.raises(KafkaError, match="max_request_size"):
            await producer.send("t", b"k", bytes(2 << 20))
        with pytest.raises(KafkaError, match="there is no such partition"):
            await producer.send("t", b"k", b"v", partition=1)
    assert good.offset == 0


async def test_acks_0_and_1(node: Node) -> None:
    await create(node, "t")
    for acks in (0, 1):
        config = ProducerConfig(acks=acks, enable_idempotence=False)
        async with Producer(address(node), config) as producer:
            place = await (await producer.send("t", b"k", b"v"))
        assert place.offset == (-1 if acks == 0 else 1)
        await read(node, "t", 1, acks + 1)


def test_settings_that_contradict_each_other() -> None:
    for wrong, words in (
        ({"acks": 2}, "acks=2"),
        ({"acks": 1}, "enable_idempotence"),
        ({"buffer_memory": 5}, "buffer_memory=5"),
    ):
        with pytest.raises(ConfigError, match=words):
            ProducerConfig(**wrong)  # type: ignore[arg-type]


async def test_log_append_time_keeps_both_times(node: Node) -> None:
    await create(node, "t", message_timestamp_type="LogAppendTime")
    async with Producer(address(node)) as producer:
        place = await (await producer.send("t", b"k", b"v", create_time=5))
    (record,) = await read(node, "t", 1, 1)
    assert place.append_time is not None
    assert (record.create_time, record.append_time) == (5, place.append_time)
    assert record.timestamp == place.append_time


async def test_memory_is_bounded_and_given_back(node: Node) -> None:
    await create(node, "t")
    config = ProducerConfig(
        buffer_memory=10_000, max_request_size=10_000, linger_ms=60_000, max_block_ms=300,
        batch_size=1 << 20,
    )  # fmt: skip
    async with Producer(address(node), config) as producer:
        for _ in range(2):
            await producer.send("t", b"k", bytes(4000))
        with pytest.raises(KafkaError, match="buffer_memory"):
            await producer.send("t", b"k", bytes(4000))
        await producer.flush()
        await producer.send("t", b"k", bytes(4000))
    assert len(await read(node, "t", 1, 3)) == 3


async def test_a_closed_producer_takes_nothing_and_fails_what_waited(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        await create(node, "t")
        producer = Producer(address(node), ProducerConfig(linger_ms=60_000))
        waiting = await producer.send("t", b"k", b"v")
        await producer.close(timeout_ms=0)
        # Flushed or failed, never neither: what was under way may have arrived.
        assert waiting.done()
        with pytest.raises(ConnectionLost, match="closed"):
            await producer.send("t", b"k", b"v")
    with pytest.raises(ConnectionLost, match="cannot connect"):
        async with Producer(address(node)) as late:
            await late.send("t", b"k", b"v")


async def test_a_broker_that_comes_back_gets_each_record_once(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        await create(node, "t")
        bootstrap, port = address(node), node.services.address.port
        producer = Producer(bootstrap, ProducerConfig(linger_ms=0))
        await (await producer.send("t", b"k", b"0"))
    sent = [await producer.send("t", b"k", b"%d" % n) for n in range(1, 20)]
    await asyncio.sleep(0.3)
    async with running_node(tmp_path, {"listeners": f"PLAINTEXT://127.0.0.1:{port}"}) as node:
        places = await asyncio.gather(*sent)
        assert [place.offset for place in places] == list(range(1, 20))
        got = await read(node, "t", 1, 20)
        await producer.close()
    assert [int(r.value or b"") for r in got] == list(range(20))


def test_unsupported_feature_is_told_apart() -> None:
    assert not issubclass(UnsupportedFeature, ConnectionLost)
