"""Consumer groups of the classic protocol: stock clients join, share, commit and come back."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import aiokafka
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

with warnings.catch_warnings():  # kafka-python reads its schemas by a deprecated call
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka

from lapse.testing.broker_process import BrokerProcess
from tests.compat.conftest import create_topic
from tests.compat.group_members import RECORDS, SECONDS, fill, member, read

pytestmark = pytest.mark.filterwarnings("ignore:read_text is deprecated:DeprecationWarning")

Tool = Callable[..., subprocess.CompletedProcess[str]]
SETTINGS = {"group.initial.rebalance.delay.ms": "200", "offsets.topic.num.partitions": "3"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("groups") / "data", SETTINGS) as running:
        yield running
        assert "ended by an error of ours" not in running.log()


def wait_for(what: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not what():
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_members_share_and_the_one_left_takes_over(
    broker: BrokerProcess, topic: str, strategy: str
) -> None:
    values = fill(broker, topic)
    settings = {"partition_assignment_strategy": strategy}
    one, two = (member(broker, f"g-{topic}", topic, **settings) for _ in range(2))

    def shared() -> bool:
        for consumer in (one, two):
            consumer.poll(0.05)
        return len(one.assignment()) == len(two.assignment()) == 1

    wait_for(shared)
    two.close()

    def taken_over() -> bool:
        one.poll(0.05)
        return len(one.assignment()) == 2

    wait_for(taken_over)
    one.close()
    again = member(broker, f"g-{topic}", topic, **settings)
    assert read([again], len(values)) == values  # nothing was committed
    again.commit(asynchronous=False)
    again.close()


def test_commits_outlive_members_and_the_broker(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", SETTINGS) as broker:
        create_topic(broker, "kept")
        first = fill(broker, "kept")
        consumer = member(broker, "g", "kept")
        assert read([consumer], RECORDS) == first
        consumer.commit(asynchronous=False)
        consumer.close()
        broker.kill()
        broker.start()
        second = fill(broker, "kept", RECORDS)
        consumer = member(broker, "g", "kept")
        assert read([consumer], RECORDS) == second
        committed = consumer.committed([TopicPartition("kept", n) for n in range(2)], SECONDS)
        assert [p.offset for p in committed] == [RECORDS // 2] * 2
        consumer.close()


def test_a_member_that_died_is_missed(broker: BrokerProcess, topic: str) -> None:
    values = fill(broker, topic)
    script = (
        "import sys, time; from confluent_kafka import Consumer\n"
        "c = Consumer({'bootstrap.servers': sys.argv[1], 'group.id': sys.argv[2],"
        " 'session.timeout.ms': 6000, 'auto.offset.reset': 'earliest'})\n"
        "c.subscribe([sys.argv[3]])\n"
        "while not c.assignment(): c.poll(0.1)\n"
        "print('in', flush=True); time.sleep(600)\n"
    )
    command = [sys.executable, "-c", script, broker.bootstrap, f"g-{topic}", topic]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as dying:
        assert dying.stdout is not None
        assert dying.stdout.readline() == "in\n"
        dying.kill()
    survivor = member(broker, f"g-{topic}", topic)
    assert read([survivor], len(values)) == values
    survivor.close()


def test_a_static_member_comes_back_to_its_part(broker: BrokerProcess, topic: str) -> None:
    fill(broker, topic)
    consumer = member(broker, f"g-{topic}", topic, group_instance_id="one")
    wait_for(lambda: consumer.poll(0.05) is not None)
    part = sorted(p.partition for p in consumer.assignment())
    consumer.close()  # a static member does not leave
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    told = admin.describe_consumer_groups([f"g-{topic}"])[f"g-{topic}"].result(SECONDS)
    assert [m.group_instance_id for m in told.members] == ["one"]
    again = member(broker, f"g-{topic}", topic, group_instance_id="one")
    wait_for(lambda: again.poll(0.05) is not None)
    assert sorted(p.partition for p in again.assignment()) == part
    again.close()


def test_administration(broker: BrokerProcess, topic: str) -> None:
    group = f"g-{topic}"
    values = fill(broker, topic)
    consumer = member(broker, group, topic)
    assert read([consumer], len(values)) == values
    consumer.commit(asynchronous=False)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    listed = admin.list_consumer_groups(request_timeout=SECONDS).result(SECONDS)
    assert group in {g.group_id for g in listed.valid}
    told = admin.describe_consumer_groups([group])[group].result(SECONDS)
    assert (told.state.name, len(told.members)) == ("STABLE", 1)
    with pytest.raises(Exception, match=r"NON_EMPTY_GROUP|not empty"):
        admin.delete_consumer_groups([group])[group].result(SECONDS)
    consumer.close()
    wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 7)])
    admin.alter_consumer_group_offsets([wanted])[group].result(SECONDS)
    asked = ConsumerGroupTopicPartitions(group)
    found = admin.list_consumer_group_offsets([asked])[group].result(SECONDS)
    assert sorted((p.partition, p.offset) for p in found.topic_partitions) == [
        (0, 7), (1, RECORDS // 2),
    ]  # fmt: skip
    admin.delete_consumer_groups([group])[group].result(SECONDS)
    listed = admin.list_consumer_groups(request_timeout=SECONDS).result(SECONDS)
    assert group not in {g.group_id for g in listed.valid}


def test_kafka_python(broker: BrokerProcess, topic: str) -> None:
    values = fill(broker, topic)

    def consumer() -> kafka.KafkaConsumer:
        return kafka.KafkaConsumer(
            topic, bootstrap_servers=broker.bootstrap, group_id=f"g-{topic}",
            auto_offset_reset="earliest", enable_auto_commit=False,
            consumer_timeout_ms=1000 * SECONDS,
        )  # fmt: skip

    with contextlib.closing(consumer()) as reader:
        assert {next(reader).value for _ in range(RECORDS)} == values
        reader.commit()
    second = fill(broker, topic, RECORDS)
    with contextlib.closing(consumer()) as reader:
        assert {next(reader).value for _ in range(RECORDS)} == second


async def test_aiokafka(broker: BrokerProcess, topic: str) -> None:
    values = fill(broker, topic)
    consumer = aiokafka.AIOKafkaConsumer(
        topic, bootstrap_servers=broker.bootstrap, group_id=f"g-{topic}",
        auto_offset_reset="earliest", enable_auto_commit=False,
    )  # fmt: skip
    await asyncio.wait_for(consumer.start(), SECONDS)
    got = {(await asyncio.wait_for(consumer.getone(), SECONDS)).value for _ in range(RECORDS)}
    assert got == values
    await consumer.commit()
    partition = aiokafka.TopicPartition(topic, 0)
    assert await consumer.committed(partition) == RECORDS // 2
    await consumer.stop()


def test_kafkas_console_consumer_and_group_command(
    kafka_tools: Tool, broker: BrokerProcess, topic: str
) -> None:
    values = fill(broker, topic)
    server = ["--bootstrap-server", broker.bootstrap]
    done = kafka_tools(
        "consumer.ConsoleConsumer",
        [*server, "--topic", topic, "--from-beginning", "--group", f"g-{topic}",
         "--max-messages", str(RECORDS), "--timeout-ms", "20000"],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.encode().split()) == values
    done = kafka_tools(
        "consumer.group.ConsumerGroupCommand", [*server, "--describe", "--group", f"g-{topic}"]
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if topic in line]
    assert sorted(row[3] for row in rows) == [str(RECORDS // 2)] * 2
