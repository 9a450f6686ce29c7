"""KIP-32's rolling migration, walked through with clients from before 0.11 beside current ones.

kafka-python still speaks as to a broker of a version that it is told, librdkafka as to one of 0.9
that knows no ApiVersions: Produce 0-2 and Fetch 0-3 with messages of format v0 and v1, and
ListOffsets v0. The real Java clients of then are `test_java_programs`' suite `vintage`. The topic
begins in the oldest format, takes each newer one and then LogAppendTime, as an operator would do
it; all the while an old client writes and reads on one side and a current one on the other.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

with warnings.catch_warnings():  # kafka-python reads its schemas by a deprecated call
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka

from lapse.cli.main import main
from lapse.records.batch import scan_batches
from lapse.testing.broker_process import BrokerProcess

pytestmark = pytest.mark.filterwarnings("ignore:read_text is deprecated:DeprecationWarning")

SECONDS = 30
COUNT = 20
TIME = 1_700_000_000_000
NO_TIME, CREATE_TIME, APPEND_TIME = 0, 1, 2  # as librdkafka numbers them
STEPS = [("0.9.0", 0), ("0.10.2", 1), ("3.0", 2)]


class Seen(NamedTuple):
    """A record as all clients show it."""

    offset: int
    key: bytes | None
    value: bytes | None


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Groups do not wait for more members."""
    settings = {"group.initial.rebalance.delay.ms": "0"}
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", settings) as running:
        yield running
        assert "ended by an error of ours" not in running.log()


# --- clients --------------------------------------------------------------------------------------


class Librdkafka:
    """As it speaks today, or as it spoke to brokers of 0.9."""

    def __init__(self, broker: BrokerProcess, *, old: bool = False) -> None:
        self._settings: dict[str, object] = {"bootstrap.servers": broker.bootstrap, "log_level": 0}
        if old:
            self._settings |= {"api.version.request": "false", "broker.version.fallback": "0.9.0"}

    def send(self, topic: str, prefix: str, codec: str) -> None:
        producer = Producer({**self._settings, "compression.type": codec, "linger.ms": 50})
        errors: list[object] = []
        for n in range(COUNT):
            producer.produce(
                topic, f"{prefix} {n} ".encode() * 9, b"%d" % n, timestamp=TIME + n, partition=0,
                on_delivery=lambda error, _: errors.append(error) if error else None,
            )  # fmt: skip
        assert producer.flush(SECONDS) == 0
        assert errors == []

    def consumer(self, topic: str) -> Consumer:
        consumer = Consumer({**self._settings, "group.id": "none", "enable.auto.commit": "false"})
        consumer.assign([TopicPartition(topic, 0, 0)])
        return consumer

    def group(self, topic: str, count: int) -> list[int]:
        """A member of a group, from the earliest offset; reads, commits and leaves."""
        settings = {"group.id": f"of-{topic}", "auto.offset.reset": "earliest"}
        consumer = Consumer({**self._settings, **settings, "enable.auto.commit": "false"})
        consumer.subscribe([topic])
        got = self._polled(consumer, count)
        consumer.commit(asynchronous=False)
        consumer.close()
        return [message.offset() for message in got]

    def ends(self, topic: str) -> tuple[int, int]:
        consumer = self.consumer(topic)
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), SECONDS)
        consumer.close()
        return low, high

    def messages(self, topic: str, count: int) -> list[Message]:
        consumer = self.consumer(topic)
        got = self._polled(consumer, count)
        consumer.close()
        return got

    def _polled(self, consumer: Consumer, count: int) -> list[Message]:
        got: list[Message] = []
        deadline = time.monotonic() + SECONDS
        while len(got) < count and time.monotonic() < deadline:
            message = consumer.poll(1)
            if message is not None:
                assert message.error() is None, message.error()
                got.append(message)
        assert consumer.poll(0.3) is None
        return got

    def read(self, topic: str, count: int) -> list[Seen]:
        return [Seen(m.offset(), m.key(), m.value()) for m in self.messages(topic, count)]


class KafkaPython:
    """As to a broker of that version."""

    def __init__(self, broker: BrokerProcess, version: tuple[int, ...]) -> None:
        self._settings = {"bootstrap_servers": broker.bootstrap, "api_version": version}

    def send(self, topic: str, prefix: str, codec: str) -> None:
        kind = None if codec == "none" else codec  # all but gzip need packages
        producer = kafka.KafkaProducer(
            **self._settings, compression_type=kind, linger_ms=50, acks=1,
            enable_idempotence=False,
        )  # fmt: skip
        sent = [
            producer.send(
                topic, f"{prefix} {n} ".encode() * 9, b"%d" % n, timestamp_ms=TIME + n, partition=0
            )
            for n in range(COUNT)
        ]
        for future in sent:
            future.get(SECONDS)
        producer.close()

    def read(self, topic: str, count: int) -> list[Seen]:
        consumer = kafka.KafkaConsumer(
            **self._settings, consumer_timeout_ms=1000 * SECONDS, group_id=None
        )
        partition = kafka.TopicPartition(topic, 0)
        consumer.assign([partition])
        consumer.seek_to_beginning(partition)
        got = [next(consumer) for _ in range(count)]
        consumer.close()
        return [Seen(r.offset, r.key, r.value) for r in got]

    def group(self, topic: str, count: int) -> list[int]:
        """A member of a group, from the earliest offset; reads, commits and leaves."""
        consumer = kafka.KafkaConsumer(
            topic, **self._settings, group_id=f"of-{topic}", auto_offset_reset="earliest",
            enable_auto_commit=False, consumer_timeout_ms=1000 * SECONDS,
        )  # fmt: skip
        got = [next(consumer).offset for _ in range(count)]
        consumer.commit()
        consumer.close()
        return got

    def ends(self, topic: str) -> tuple[int, int]:
        consumer = kafka.KafkaConsumer(**self._settings)
        partition = kafka.TopicPartition(topic, 0)
        (low,) = consumer.beginning_offsets([partition]).values()
        (high,) = consumer.end_offsets([partition]).values()
        consumer.close()
        return low, high


OLD: dict[str, Callable[[BrokerProcess], Librdkafka | KafkaPython]] = {
    "librdkafka as to 0.9": lambda broker: Librdkafka(broker, old=True),
    "kafka-python as to 0.9": lambda broker: KafkaPython(broker, (0, 9)),
    "kafka-python as to 0.10": lambda broker: KafkaPython(broker, (0, 10, 0)),
    "kafka-python as to 0.10.2": lambda broker: KafkaPython(broker, (0, 10, 2)),
}


# --- the walk -------------------------------------------------------------------------------------


def alter(broker: BrokerProcess, topic: str, **settings: str) -> None:
    entries = [
        ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(SECONDS)


def create(broker: BrokerProcess, name: str, **settings: str) -> None:
    pairs = [f"-c{key.replace('_', '.')}={value}" for key, value in settings.items()]
    assert main(["topic", "create", name, "-p", "1", *pairs, "-cretention.ms=-1",
                 "--bootstrap-server", broker.bootstrap]) == 0  # fmt: skip


def magics_on_disk(broker: BrokerProcess, topic: str) -> list[int]:
    """In the order in which they first come."""
    data = (broker.data / f"{topic}-0" / f"{0:020d}.log").read_bytes()
    return list(dict.fromkeys(int(row["magic"]) for row in scan_batches(data, topic)))


@pytest.mark.parametrize(
    ("name", "codec"),
    [
        ("librdkafka as to 0.9", "none"),
        ("librdkafka as to 0.9", "gzip"),
        ("librdkafka as to 0.9", "snappy"),
        ("librdkafka as to 0.9", "lz4"),
        ("kafka-python as to 0.9", "none"),
        ("kafka-python as to 0.10", "gzip"),
        ("kafka-python as to 0.10.2", "none"),
    ],
)
def test_the_migration(broker: BrokerProcess, name: str, codec: str) -> None:
    """T-9: Kafka 4 would serve none of the old ones."""
    topic = f"{name}-{codec}".replace(" ", "-")
    create(broker, topic, message_format_version=STEPS[0][0])
    old, current = OLD[name](broker), Librdkafka(broker)
    sent: list[Seen] = []
    kinds: list[int] = []

    def walk(step: str, kind: int) -> None:
        for client, who in ((old, "old"), (current, "current")):
            client.send(topic, f"{step} {who}", codec)
            first = len(sent)
            sent.extend(
                Seen(first + n, b"%d" % n, f"{step} {who} {n} ".encode() * 9) for n in range(COUNT)
            )
            kinds.extend([kind] * COUNT)
        assert old.read(topic, len(sent)) == sent
        assert current.read(topic, len(sent)) == sent

    for version, magic in STEPS:
        alter(broker, topic, message_format_version=version)
        walk(version, CREATE_TIME if magic else NO_TIME)
        assert magics_on_disk(broker, topic) == list(range(magic + 1))
    alter(broker, topic, message_timestamp_type="LogAppendTime")
    walk("append time", APPEND_TIME)
    _times_are_right(current.messages(topic, len(sent)), kinds, tells_time="0.9" not in name)


def _times_are_right(
    messages: Sequence[Message], kinds: Sequence[int], *, tells_time: bool
) -> None:
    """Stored in v0 a record has no time; one that a client of 0.9 sent never had one.

    librdkafka shows 0 for the one and -1 for the other.
    """
    for n, (message, kind) in enumerate(zip(messages, kinds, strict=True)):
        told, ms = message.timestamp()
        by_old = n // COUNT % 2 == 0
        if kind == APPEND_TIME:
            assert told == kind
            assert ms > TIME + COUNT
        elif kind == NO_TIME or (by_old and not tells_time):
            assert ms <= 0
        else:
            assert (told, ms) == (kind, TIME + n % COUNT)


@pytest.mark.parametrize("name", OLD)
def test_a_group_goes_on_and_both_ends_are_found(
    broker: BrokerProcess, name: str, tmp_path: Path
) -> None:
    topic = f"group-{name}".replace(" ", "-")
    create(broker, topic)
    old = OLD[name](broker)
    assert old.ends(topic) == (0, 0)
    for first in (0, COUNT):
        old.send(topic, "v", "none")
        assert old.group(topic, COUNT) == list(range(first, first + COUNT))
    assert old.ends(topic) == (0, 2 * COUNT)
    offsets = tmp_path / "offsets.json"
    offsets.write_text(json.dumps({"partitions": [{"topic": topic, "partition": 0, "offset": 7}]}))
    assert main(["delete-records", "--offset-json-file", str(offsets),
                 "--bootstrap-server", broker.bootstrap]) == 0  # fmt: skip
    assert old.ends(topic) == (7, 2 * COUNT)


def test_headers_and_producers_are_dropped_for_old_readers(broker: BrokerProcess) -> None:
    create(broker, "headed")
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
    for n in range(COUNT):
        producer.produce("headed", b"v%d" % n, b"k", partition=0, headers=[("h", b"x" * 50)])
    assert producer.flush(SECONDS) == 0
    expected = [Seen(n, b"k", b"v%d" % n) for n in range(COUNT)]
    for make in OLD.values():
        assert make(broker).read("headed", COUNT) == expected
    (first, *_) = Librdkafka(broker).messages("headed", COUNT)
    assert first.headers() == [("h", b"x" * 50)]


def test_zstd_is_refused_to_old_readers(broker: BrokerProcess) -> None:
    create(broker, "zstd")
    Librdkafka(broker).send("zstd", "packed", "zstd")
    consumer = Librdkafka(broker, old=True).consumer("zstd")
    message = consumer.poll(SECONDS)
    consumer.close()
    assert message is not None
    assert message.error().code() == KafkaError.UNSUPPORTED_COMPRESSION_TYPE
