"""Topics that are kept in an old format (`message.format.version`): KIP-32's migration, by clients.

What stock producers send today is stored as v1 or v0 and read back by all; what the old formats
cannot say is refused with UNSUPPORTED_FOR_MESSAGE_FORMAT.
"""

from __future__ import annotations

import asyncio
import warnings

import aiokafka
import aiokafka.errors
import pytest
from confluent_kafka import KafkaError, Producer

with warnings.catch_warnings():  # kafka-python reads its schemas by a deprecated call
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka

from lapse.cli.main import main
from lapse.records.batch import scan_batches
from lapse.records.layout import Codec
from lapse.testing.broker_process import BrokerProcess
from tests.compat.test_librdkafka import read_all

pytestmark = pytest.mark.filterwarnings("ignore:read_text is deprecated:DeprecationWarning")

SECONDS = 20
COUNT = 50
TIME = 1_700_000_000_000
MAGICS = {"0.9.0": 0, "0.10.2": 1}
CODECS = ("none", "gzip", "snappy", "lz4")
KAFKA_PYTHON_LACKS = {("0.9.0", "lz4"), ("0.9.0", "snappy"), ("0.10.2", "snappy")}
AIOKAFKA_CANNOT = {("0.9.0", "lz4")}


def old_topic(broker: BrokerProcess, version: str, name: str) -> str:
    """A topic in the format of that Kafka."""
    topic = f"{name}-{version}"
    assert main(["topic", "create", topic, "-p", "1", f"-cmessage.format.version={version}",
                 "-cretention.ms=-1", "--bootstrap-server", broker.bootstrap]) == 0  # fmt: skip
    return topic


def send(broker: BrokerProcess, topic: str, **settings: object) -> list[int]:
    """By librdkafka; the error codes."""
    named = {name.replace("_", "."): value for name, value in settings.items()}
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap, "linger.ms": 50, "log_level": 0, **named}
    )
    errors: list[int] = []
    for n in range(COUNT):
        producer.produce(
            topic, b"value %d " % n * 9, b"%d" % n, timestamp=TIME + n, partition=0,
            on_delivery=lambda error, _: errors.append(error.code()) if error else None,
        )  # fmt: skip
    assert producer.flush(SECONDS) == 0
    return errors


async def read_by_aiokafka(broker: BrokerProcess, topic: str) -> list[tuple[bytes, bytes]]:
    consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=broker.bootstrap)
    await consumer.start()
    partition = aiokafka.TopicPartition(topic, 0)
    consumer.assign([partition])
    await consumer.seek_to_beginning(partition)
    got = [await asyncio.wait_for(consumer.getone(), SECONDS) for _ in range(COUNT)]
    await consumer.stop()
    return [(r.key, r.value) for r in got]


def read_by_kafka_python(broker: BrokerProcess, topic: str) -> list[tuple[bytes, bytes]]:
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=broker.bootstrap, consumer_timeout_ms=1000 * SECONDS
    )
    partition = kafka.TopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek_to_beginning(partition)
    got = [next(consumer) for _ in range(COUNT)]
    consumer.close()
    return [(r.key, r.value) for r in got]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("version", MAGICS)
async def test_stored_in_the_old_format_and_read_by_all(
    broker: BrokerProcess, version: str, codec: str
) -> None:
    topic = await asyncio.to_thread(old_topic, broker, version, codec)
    assert await asyncio.to_thread(lambda: send(broker, topic, compression_type=codec)) == []
    sent = [(b"%d" % n, b"value %d " % n * 9) for n in range(COUNT)]
    path = broker.data / f"{topic}-0" / f"{0:020d}.log"
    rows = scan_batches(path.read_bytes(), topic)
    assert {int(row["magic"]) for row in rows} == {MAGICS[version]}
    assert {int(row["attributes"]) for row in rows} == {Codec[codec.upper()]}
    messages = await asyncio.to_thread(read_all, broker, topic, COUNT)
    assert [(m.key(), m.value()) for m in messages] == sent
    assert [m.offset() for m in messages] == list(range(COUNT))
    if MAGICS[version]:
        assert [m.timestamp()[1] for m in messages] == [TIME + n for n in range(COUNT)]
    if (version, codec) not in KAFKA_PYTHON_LACKS:  # packages: see test_reads_everything
        assert await asyncio.to_thread(read_by_kafka_python, broker, topic) == sent
    if (version, codec) not in AIOKAFKA_CANNOT:
        assert await read_by_aiokafka(broker, topic) == sent


@pytest.mark.parametrize("version", MAGICS)
@pytest.mark.parametrize(
    "settings",
    [{"enable_idempotence": True}, {"compression_type": "zstd"}],
    ids=["idempotent", "zstd"],
)
def test_what_it_cannot_say_is_refused(
    broker: BrokerProcess, version: str, settings: dict[str, object]
) -> None:
    topic = old_topic(broker, version, next(iter(settings)))
    assert send(broker, topic, **settings) == [KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT] * COUNT
    read_all(broker, topic, 0)


async def test_headers_are_refused_not_lost(broker: BrokerProcess) -> None:
    topic = await asyncio.to_thread(old_topic, broker, "0.10.2", "headers")
    async with aiokafka.AIOKafkaProducer(bootstrap_servers=broker.bootstrap) as producer:
        with pytest.raises(aiokafka.errors.UnsupportedForMessageFormatError):
            await producer.send_and_wait(topic, b"v", partition=0, headers=[("h", b"x")])
        sent = await producer.send_and_wait(topic, b"v", partition=0)
    assert (sent.offset, sent.timestamp_type) == (0, 0)
