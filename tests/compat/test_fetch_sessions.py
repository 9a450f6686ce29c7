"""Stock clients in fetch sessions (KIP-227): kafka-python, and the Java client by Kafka's tool.

librdkafka and aiokafka know none: they ask for everything each time.
"""

from __future__ import annotations

import re
import subprocess
import time
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from lapse.cli.main import main
from lapse.testing.broker_process import BrokerProcess
from tests.oracle import kafka as oracle

with warnings.catch_warnings():  # kafka-python reads its schemas by a deprecated call
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka

PARTITIONS = 60
ROUNDS = 5
SECONDS = 40
NOTHING_NEW = (0, PARTITIONS)
SESSION_LOG = "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.clients.FetchSessionHandler=debug"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {"group.initial.rebalance.delay.ms": "0"}
    with BrokerProcess(tmp_path_factory.mktemp("sessions") / "data", settings) as running:
        yield running


def create(broker: BrokerProcess, name: str) -> None:
    assert main(["topic", "create", name, "-p", str(PARTITIONS),
                 "--bootstrap-server", broker.bootstrap]) == 0  # fmt: skip


def write(broker: BrokerProcess, topic: str, *partitions: int) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for n in partitions:
        producer.produce(topic, b"%d" % n, partition=n)
    assert producer.flush(SECONDS) == 0


def metric(broker: BrokerProcess, name: str) -> float:
    with urllib.request.urlopen(f"http://{broker.http}/metrics", timeout=SECONDS) as answer:
        text = answer.read().decode()
    found = re.search(rf"^kafka_server_fetchsessioncache_{name} (\S+)$", text, re.MULTILINE)
    assert found is not None
    return float(found[1])


def test_kafka_python(broker: BrokerProcess) -> None:
    """Read in turns of one partition and of another: each record once, in one session."""
    create(broker, "python")
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=broker.bootstrap, consumer_timeout_ms=1000 * SECONDS
    )
    consumer.assign([kafka.TopicPartition("python", n) for n in range(PARTITIONS)])
    consumer.seek_to_beginning()
    before = metric(broker, "numincrementalfetchsessions")
    for n in range(ROUNDS):
        write(broker, "python", n, 7 * n + 3)
        got = [next(consumer) for _ in range(2)]
        assert sorted(int(r.value) for r in got) == sorted([n, 7 * n + 3])
        assert metric(broker, "numincrementalfetchsessions") == before + 1
    assert metric(broker, "numincrementalfetchpartitionscached") >= PARTITIONS
    consumer.close()


def test_the_java_client(broker: BrokerProcess, tmp_path: Path) -> None:
    """It checks itself that a session is what it thinks, and says what answers hold.

    A full fetch of all partitions is answered by all, each later one by those with news.
    """
    create(broker, "java")
    wanted = range(0, PARTITIONS, 3)
    write(broker, "java", *wanted)
    log = tmp_path / "log"
    with log.open("w") as to, subprocess.Popen(
        oracle.command(
            "org.apache.kafka.tools.consumer.ConsoleConsumer",
            ["--bootstrap-server", broker.bootstrap, "--topic", "java", "--from-beginning",
             "--max-messages", str(len(wanted) + 1)],
            flags=(*oracle.TOOL_FLAGS, SESSION_LOG),
        ),
        stdout=subprocess.PIPE, stderr=to, text=True,
    ) as consumer:  # fmt: skip
        try:
            until(lambda: NOTHING_NEW in increments(log.read_text()), consumer)
            write(broker, "java", PARTITIONS - 1)  # which ends it
            got, _ = consumer.communicate(timeout=SECONDS)
        finally:
            consumer.kill()
    assert sorted(map(int, got.split())) == [*wanted, PARTITIONS - 1]
    said = log.read_text()
    assert "Node 0 sent a full fetch response that created a new incremental fetch session" in said
    for told, implied in increments(said):
        assert told + implied == PARTITIONS


def increments(said: str) -> list[tuple[int, int]]:
    """Of each later answer: partitions it tells of, and those it does not."""
    found = re.findall(r" with (\d+) response partition\(s\), (\d+) implied partition", said)
    return [(int(told), int(implied)) for told, implied in found]


def until(holds: Callable[[], bool], consumer: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert consumer.poll() is None, "it ended early"
        assert time.monotonic() < deadline, "it never asked again"
        time.sleep(0.02)
