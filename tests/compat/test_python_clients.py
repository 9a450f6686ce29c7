"""The pure Python clients: kafka-python and aiokafka."""

from __future__ import annotations

import asyncio
import warnings

import aiokafka
import pytest

with warnings.catch_warnings():  # kafka-python reads its schemas by a deprecated call
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka

from lapse.testing.broker_process import BrokerProcess

pytestmark = pytest.mark.filterwarnings("ignore:read_text is deprecated:DeprecationWarning")

SECONDS = 20


def test_kafka_python_writes_and_reads(broker: BrokerProcess, topic: str) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=broker.bootstrap, compression_type="lz4")
    sent = [
        producer.send(topic, key=b"%d" % n, value=None if n % 10 == 0 else b"v", partition=0,
                      headers=[("h", b"x")])
        for n in range(100)
    ]  # fmt: skip
    assert [future.get(SECONDS).offset for future in sent] == list(range(100))
    producer.close()
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=broker.bootstrap, consumer_timeout_ms=1000 * SECONDS
    )
    partition = kafka.TopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek_to_beginning(partition)
    got = [next(consumer) for _ in range(100)]
    assert [record.offset for record in got] == list(range(100))
    assert [record.value is None for record in got] == [n % 10 == 0 for n in range(100)]
    assert list(got[0].headers) == [("h", b"x")]
    assert consumer.end_offsets([partition]) == {partition: 100}
    assert consumer.offsets_for_times({partition: 0})[partition].offset == 0
    consumer.close()


def test_kafka_python_reads_in_a_group(broker: BrokerProcess, topic: str) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=broker.bootstrap)
    producer.send(topic, b"v").get(SECONDS)
    producer.close()
    consumer = kafka.KafkaConsumer(
        topic, bootstrap_servers=broker.bootstrap, group_id=topic, auto_offset_reset="earliest",
        consumer_timeout_ms=1000 * SECONDS,
    )  # fmt: skip
    assert next(consumer).value == b"v"
    assert consumer.assignment() == {kafka.TopicPartition(topic, n) for n in range(2)}
    consumer.close()


async def test_aiokafka_writes_and_reads(broker: BrokerProcess, topic: str) -> None:
    async with aiokafka.AIOKafkaProducer(
        bootstrap_servers=broker.bootstrap, enable_idempotence=True, compression_type="gzip"
    ) as producer:
        for n in range(100):
            await producer.send(topic, b"v%d" % n, key=b"k", partition=1)
        await producer.flush()
    consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=broker.bootstrap)
    await consumer.start()
    partition = aiokafka.TopicPartition(topic, 1)
    consumer.assign([partition])
    await consumer.seek_to_beginning(partition)
    got = [await asyncio.wait_for(consumer.getone(), SECONDS) for _ in range(100)]
    await consumer.stop()
    assert [record.value for record in got] == [b"v%d" % n for n in range(100)]


async def test_aiokafka_reads_in_a_group(broker: BrokerProcess, topic: str) -> None:
    async with aiokafka.AIOKafkaProducer(bootstrap_servers=broker.bootstrap) as producer:
        await producer.send_and_wait(topic, b"v")
    async with aiokafka.AIOKafkaConsumer(
        topic, bootstrap_servers=broker.bootstrap, group_id=topic, auto_offset_reset="earliest"
    ) as consumer:
        assert (await asyncio.wait_for(consumer.getone(), SECONDS)).value == b"v"
        assert consumer.assignment() == {aiokafka.TopicPartition(topic, n) for n in range(2)}
