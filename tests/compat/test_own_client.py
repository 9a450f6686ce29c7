"""Our client with a stock one on the other side: what one sends the other reads, both times."""

from __future__ import annotations

import asyncio
import time

import pytest
from confluent_kafka import Consumer as StockConsumer
from confluent_kafka import Producer as StockProducer
from confluent_kafka import TopicPartition as StockPartition

from lapse.base.ids import TopicPartition
from lapse.client.admin import Admin
from lapse.client.consumer import Consumer
from lapse.client.offsets import EARLIEST
from lapse.client.partitioner import partition_of
from lapse.client.producer import Producer, ProducerConfig
from lapse.client.record import ConsumerRecord
from lapse.records.layout import Codec
from lapse.testing.broker_process import BrokerProcess
from tests.compat.conftest import create_topic

RECORDS = 500
SECONDS = 30
NOW_MS = time.time_ns() // 1_000_000
HEADERS = [("h", b"1"), ("n", None)]


def stock_read(broker: BrokerProcess, topic: str, count: int) -> list[tuple[object, ...]]:
    consumer = StockConsumer({"bootstrap.servers": broker.bootstrap, "group.id": "reads"})
    consumer.assign([StockPartition(topic, n, 0) for n in range(2)])
    got: list[tuple[object, ...]] = []
    end = time.monotonic() + SECONDS
    while len(got) < count:
        assert time.monotonic() < end, f"only {len(got)} of {count}"
        message = consumer.poll(0.2)
        if message is not None:
            assert message.error() is None, message.error()
            got.append(
                (message.partition(), message.key(), message.value(), message.timestamp()[1],
                 message.headers())
            )  # fmt: skip
    consumer.close()
    return got


@pytest.mark.parametrize("codec", Codec)
async def test_a_stock_consumer_reads_what_we_send(
    broker: BrokerProcess, topic: str, codec: Codec
) -> None:
    async with Producer(broker.bootstrap, ProducerConfig(compression=codec)) as producer:
        for n in range(RECORDS):
            value = None if n % 10 == 0 else b"v%d" % n
            await producer.send(topic, b"k%d" % n, value, create_time=NOW_MS + n, headers=HEADERS)
    got = await asyncio.to_thread(stock_read, broker, topic, RECORDS)
    assert sorted(got, key=lambda row: row[3]) == [
        (
            partition_of(b"k%d" % n, 2), b"k%d" % n, None if n % 10 == 0 else b"v%d" % n,
            NOW_MS + n, HEADERS,
        )
        for n in range(RECORDS)
    ]  # fmt: skip


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_we_read_what_a_stock_producer_sends(
    broker: BrokerProcess, topic: str, codec: str
) -> None:
    stock = StockProducer(
        {
            "bootstrap.servers": broker.bootstrap,
            "compression.type": codec,
            "enable.idempotence": True,
            "partitioner": "murmur2",  # Kafka's own
        }
    )
    for n in range(RECORDS):
        stock.produce(topic, key=b"k%d" % n, value=b"v%d" % n, timestamp=NOW_MS + n,
                      headers=HEADERS)  # fmt: skip
    assert await asyncio.to_thread(stock.flush, SECONDS) == 0
    got = []
    async with asyncio.timeout(SECONDS), Consumer(broker.bootstrap) as consumer:
        await consumer.assign({TopicPartition(topic, n): EARLIEST for n in range(2)})
        while len(got) < RECORDS:
            got += await consumer.poll()
    got.sort(key=lambda record: record.timestamp)
    for n, record in enumerate(got):
        assert (record.key, record.value) == (b"k%d" % n, b"v%d" % n)
        assert (record.create_time, record.timestamp) == (NOW_MS + n, NOW_MS + n)
        assert record.append_time is not None
        assert list(record.headers) == HEADERS
        assert record.partition.partition == partition_of(b"k%d" % n, 2)


async def test_a_stock_consumer_gets_no_value_of_a_tombstone(
    broker: BrokerProcess, topic: str
) -> None:
    name = f"{topic}-c"
    await asyncio.to_thread(create_topic, broker, name, "-c", "cleanup.policy=compact",
                 "-c", "lapse.tombstone.values.enable=true")  # fmt: skip
    async with Producer(broker.bootstrap) as producer:
        await producer.send(name, b"k", b"live", partition=0, create_time=NOW_MS)
        await producer.send(name, b"k", b"why", True, NOW_MS, partition=0)
    got = await asyncio.to_thread(stock_read, broker, name, 2)
    assert [(key, value) for _, key, value, *_ in got] == [(b"k", b"live"), (b"k", None)]


async def test_an_append_time_beside_the_stock_producers_time(
    broker: BrokerProcess, topic: str
) -> None:
    name = f"{topic}-l"
    await asyncio.to_thread(
        create_topic, broker, name, "-c", "message.timestamp.type=LogAppendTime"
    )
    stock = StockProducer({"bootstrap.servers": broker.bootstrap})
    stock.produce(name, key=b"k", value=b"v", timestamp=NOW_MS - 5000, partition=0)
    assert await asyncio.to_thread(stock.flush, SECONDS) == 0
    async with Consumer(broker.bootstrap) as consumer:
        await consumer.assign({TopicPartition(name, 0): EARLIEST})
        (record,) = await consumer.poll(timeout_ms=5000)
    assert record.create_time == NOW_MS - 5000
    assert record.append_time is not None
    assert record.append_time >= NOW_MS
    assert record.timestamp == record.append_time


async def test_a_stock_producer_that_does_not_linger_loses_no_create_time(
    broker: BrokerProcess, topic: str
) -> None:
    """Most of its records are created in the millisecond in which they are appended (L15)."""
    name = f"{topic}-n"
    await asyncio.to_thread(
        create_topic, broker, name, "-c", "message.timestamp.type=LogAppendTime"
    )
    stock = StockProducer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})
    for n in range(100):
        stock.produce(name, key=b"k%d" % n, value=b"v", partition=0)
        assert await asyncio.to_thread(stock.flush, SECONDS) == 0
    async with Consumer(broker.bootstrap) as consumer:
        await consumer.assign({TopicPartition(name, 0): EARLIEST})
        found: list[ConsumerRecord] = []
        async with asyncio.timeout(SECONDS):
            while len(found) < 100:
                found += await consumer.poll(timeout_ms=5000)
    assert all(r.create_time is not None for r in found)
    assert any(r.create_time == r.append_time for r in found)


async def test_a_stock_consumer_does_not_see_what_we_deleted(
    broker: BrokerProcess, topic: str
) -> None:
    async with Producer(broker.bootstrap) as producer:
        for n in range(10):
            await producer.send(topic, b"k", b"%d" % n, partition=n % 2)
    async with await Admin.open(broker.bootstrap) as admin:
        done = await admin.delete_records_before(
            {TopicPartition(topic, 0): 3, TopicPartition(topic, 1): -1}
        )
    assert [result.low_watermark for result in done.values()] == [3, 5]
    consumer = StockConsumer({"bootstrap.servers": broker.bootstrap, "group.id": "reads"})
    for partition, bounds in ((0, (3, 5)), (1, (5, 5))):
        asked = StockPartition(topic, partition)
        found = await asyncio.to_thread(consumer.get_watermark_offsets, asked, SECONDS)
        assert found == bounds
    consumer.close()
