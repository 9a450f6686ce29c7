"""Transactions by stock clients: exactly once in, exactly once out, whoever dies in between."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import aiokafka
import pytest
from aiokafka.errors import ProducerFenced
from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

with warnings.catch_warnings():  # kafka-python reads its schemas by a deprecated call
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka

from lapse.testing.broker_process import BrokerProcess
from tests.compat.conftest import create_topic

pytestmark = pytest.mark.filterwarnings("ignore:read_text is deprecated:DeprecationWarning")

# Only those who would wait for ever wait so long. The restarts of one test have taken a minute and
# a half on a busy machine: a transaction that is to outlive them must not time out meanwhile.
SECONDS = 120
TIMEOUT_MS = 600_000
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
}
COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("transactions") / "data", SETTINGS) as running:
        yield running
        assert "ended by an error of ours" not in running.log()
        assert "Traceback" not in running.log()


@pytest.fixture
def source(broker: BrokerProcess, topic: str) -> str:
    """What is read where `topic` is written."""
    create_topic(broker, f"{topic}-source")
    return f"{topic}-source"


def transactional(broker: BrokerProcess, name: str, timeout_ms: int = TIMEOUT_MS) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "transactional.id": name,
            "transaction.timeout.ms": timeout_ms,
        }
    )
    producer.init_transactions(SECONDS)
    return producer


def write(producer: Producer, topic: str, *values: bytes) -> None:
    """In the open transaction, to both partitions in turn; all are with the broker at the end."""
    errors: list[KafkaError] = []
    for n, value in enumerate(values):
        producer.produce(
            topic, value=value, partition=n % 2,
            on_delivery=lambda error, _: errors.append(error) if error else None,
        )  # fmt: skip
    assert producer.flush(SECONDS) == 0
    assert errors == []


def read(broker: BrokerProcess, topic: str, isolation: str) -> list[bytes]:
    """What a reader of that kind gets to the end of both partitions, sorted."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "readers",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(topic, n, 0) for n in range(2)])
    values, ended = [], set()
    deadline = time.monotonic() + SECONDS
    while len(ended) < 2:
        assert time.monotonic() < deadline
        message = consumer.poll(1.0)
        if message is None:
            continue
        error = message.error()
        if error is None:
            values.append(message.value())
        else:
            assert error.code() == KafkaError._PARTITION_EOF, error
            ended.add(message.partition())
    consumer.close()
    return sorted(values)


def wait_for(what: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not what():
        assert time.monotonic() < end
        time.sleep(0.1)


def test_commit_and_abort(broker: BrokerProcess, topic: str) -> None:
    producer = transactional(broker, topic)
    for n in range(6):
        producer.begin_transaction()
        write(producer, topic, b"%d a" % n, b"%d b" % n, b"%d c" % n)
        if n % 2:
            producer.abort_transaction(SECONDS)
        else:
            producer.commit_transaction(SECONDS)
    producer.begin_transaction()
    write(producer, topic, b"open", b"open")
    all_of = [b"%d %s" % (n, x) for n in range(6) for x in (b"a", b"b", b"c")]
    assert read(broker, topic, UNCOMMITTED) == sorted([*all_of, b"open", b"open"])
    assert read(broker, topic, COMMITTED) == [v for v in all_of if int(v[:1]) % 2 == 0]
    producer.commit_transaction(SECONDS)
    assert read(broker, topic, COMMITTED)[-2:] == [b"open"] * 2


def test_nothing_is_seen_until_the_commit(broker: BrokerProcess, topic: str) -> None:
    producer, other = (transactional(broker, f"{topic}-{n}") for n in range(2))
    for open_one in (producer, other):
        open_one.begin_transaction()
        write(open_one, topic, b"v", b"v")
    producer.commit_transaction(SECONDS)
    assert len(read(broker, topic, COMMITTED)) == 2  # the other one began after it
    producer.begin_transaction()
    write(producer, topic, b"w", b"w")
    producer.commit_transaction(SECONDS)
    wait_for(lambda: len(read(broker, topic, UNCOMMITTED)) == 6)
    assert len(read(broker, topic, COMMITTED)) == 2  # held back by the other one
    other.abort_transaction(SECONDS)
    wait_for(lambda: read(broker, topic, COMMITTED) == [b"v", b"v", b"w", b"w"])


def test_a_second_producer_fences_the_first(broker: BrokerProcess, topic: str) -> None:
    first = transactional(broker, topic)
    first.begin_transaction()
    write(first, topic, b"lost")
    second = transactional(broker, topic)
    second.begin_transaction()
    write(second, topic, b"kept")
    with pytest.raises(KafkaException) as refused:
        first.commit_transaction(SECONDS)
    error = refused.value.args[0]
    assert error.fatal()
    assert error.code() in {KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH}
    second.commit_transaction(SECONDS)
    assert read(broker, topic, COMMITTED) == [b"kept"]


def test_a_transaction_that_takes_too_long_is_aborted(broker: BrokerProcess, topic: str) -> None:
    producer = transactional(broker, topic, timeout_ms=1_000)
    producer.begin_transaction()
    write(producer, topic, b"lost", b"lost")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})

    def stable_at_end() -> bool:
        where = TopicPartition(topic, 0)
        found = admin.list_offsets(
            {where: OffsetSpec.latest()}, isolation_level=IsolationLevel.READ_COMMITTED
        )
        return found[where].result(SECONDS).offset == 2  # the record and a marker

    wait_for(stable_at_end)
    assert read(broker, topic, COMMITTED) == []
    with pytest.raises(KafkaException):
        producer.commit_transaction(SECONDS)


def move(
    broker: BrokerProcess, source: str, target: str, group: str, *, commits: bool, most: int
) -> int:
    """Consume, transform, produce: one transaction; how many records were moved."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": COMMITTED,
        }
    )
    consumer.subscribe([source])
    producer = transactional(broker, f"mover-{group}")
    producer.begin_transaction()
    moved, idle = 0, 0
    while moved < most and idle < 30:
        message = consumer.poll(0.1)
        idle += message is None and bool(consumer.assignment())
        if message is not None:
            assert message.error() is None, message.error()
            producer.produce(target, value=message.value().upper(), partition=message.partition())
            moved += 1
    positions = consumer.position(consumer.assignment())
    producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), SECONDS)
    if commits:
        producer.commit_transaction(SECONDS)
    else:
        producer.abort_transaction(SECONDS)
    consumer.close()
    return moved


def test_consume_transform_produce(broker: BrokerProcess, source: str, topic: str) -> None:
    target = topic
    values = [b"v%02d" % n for n in range(40)]
    producer = transactional(broker, source)
    producer.begin_transaction()
    write(producer, source, *values)
    producer.commit_transaction(SECONDS)
    assert move(broker, source, target, topic, commits=False, most=10) == 10
    assert move(broker, source, target, topic, commits=True, most=15) == 15
    assert move(broker, source, target, topic, commits=False, most=40) == 25
    assert move(broker, source, target, topic, commits=True, most=40) == 25
    assert move(broker, source, target, topic, commits=True, most=1) == 0
    assert read(broker, target, COMMITTED) == [value.upper() for value in values]


def test_a_broker_that_dies_in_the_middle(tmp_path: Path) -> None:
    """At any moment: what was committed is there once, what was not is not."""
    with BrokerProcess(tmp_path / "data", SETTINGS) as broker:
        create_topic(broker, "t")
        producer = transactional(broker, "x")
        producer.begin_transaction()
        write(producer, "t", b"v a", b"v b")
        producer.commit_transaction(SECONDS)  # its markers may be under way
        committed = [b"v a", b"v b"]
        broker.kill()
        broker.start()
        producer.begin_transaction()
        write(producer, "t", b"x a", b"x b")
        broker.kill()
        broker.start()
        wait_for(lambda: read(broker, "t", COMMITTED) == committed)
        producer.commit_transaction(SECONDS)  # still open, in its log
        committed += [b"x a", b"x b"]
        wait_for(lambda: read(broker, "t", COMMITTED) == committed)
        producer.begin_transaction()
        write(producer, "t", b"y a", b"y b")
        broker.kill()
        broker.start()
        transactional(broker, "x")  # whoever comes next aborts it
        assert read(broker, "t", COMMITTED) == committed
        assert read(broker, "t", UNCOMMITTED) == [*committed, b"y a", b"y b"]
        assert "Traceback" not in broker.log()


async def test_aiokafka(broker: BrokerProcess, source: str, topic: str) -> None:
    at = aiokafka.TopicPartition(source, 0)
    producers = [
        aiokafka.AIOKafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id=topic)
        for _ in range(2)
    ]
    await asyncio.wait_for(producers[0].start(), SECONDS)
    for n in itertools.count(1):
        async with producers[0].transaction():
            await producers[0].send_and_wait(topic, b"kept %d" % n, partition=0)
            await producers[0].send_offsets_to_transaction({at: n}, f"g-{topic}")
        if n == 3:
            break
    await producers[0].begin_transaction()
    await producers[0].send_and_wait(topic, b"lost", partition=0)
    await producers[0].send_offsets_to_transaction({at: 99}, f"g-{topic}")
    await producers[0].abort_transaction()
    await producers[0].begin_transaction()
    await producers[0].send_and_wait(topic, b"lost", partition=0)
    await asyncio.wait_for(producers[1].start(), SECONDS)
    with pytest.raises(ProducerFenced):
        await asyncio.wait_for(producers[0].commit_transaction(), SECONDS)
    for producer in producers:
        await producer.stop()
    consumer = aiokafka.AIOKafkaConsumer(
        topic, bootstrap_servers=broker.bootstrap, group_id=f"g-{topic}",
        auto_offset_reset="earliest", isolation_level=COMMITTED,
    )  # fmt: skip
    await asyncio.wait_for(consumer.start(), SECONDS)
    got = [(await asyncio.wait_for(consumer.getone(), SECONDS)).value for _ in range(3)]
    assert got == [b"kept 1", b"kept 2", b"kept 3"]
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(consumer.getone(), 2)
    assert await consumer.committed(at) == 3
    await consumer.stop()


def test_administration(broker: BrokerProcess, topic: str) -> None:
    """By kafka-python, which has the admin calls that confluent-kafka has not."""
    producer = transactional(broker, topic)
    producer.begin_transaction()
    write(producer, topic, b"a", b"b")
    where = kafka.TopicPartition(topic, 0)
    with contextlib.closing(kafka.KafkaAdminClient(bootstrap_servers=broker.bootstrap)) as admin:
        listed = [t for rows in admin.list_transactions().values() for t in rows]
        assert [t.state.value for t in listed if t.transactional_id == topic] == ["Ongoing"]
        assert where in admin.describe_transactions([topic])[topic].topic_partitions
        (state,) = admin.describe_producers([where])[where].active_producers
        assert state.current_transaction_start_offset == 0
    producer.abort_transaction(SECONDS)
    assert read(broker, topic, COMMITTED) == []
