"""Racks: replicas are spread over them (KIP-36), and consumers read where they are (KIP-392)."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import NewPartitions

from lapse.base.replication_settings import RACK_AWARE
from lapse.testing.zookeeper_process import ZooKeeperProcess
from tests.support.broker.cluster import WAIT_SECONDS, Brokers, produced, running

Tool = Callable[..., subprocess.CompletedProcess[str]]
SELECTOR = {"replica.selector.class": RACK_AWARE}


@contextmanager
def in_racks(path: Path, shared: ZooKeeperProcess, more: dict[str, str]) -> Iterator[Brokers]:
    """Three brokers, each in a rack that is called like it: r1, r2, r3."""
    racks = {n: {"broker.rack": f"r{n}"} for n in (1, 2, 3)}
    with running(path, shared, more, own=racks) as brokers:
        yield brokers


def sent(brokers: Brokers, n: int) -> float:
    """Bytes of `t` that a broker has given to consumers and followers."""
    with urlopen(f"http://{brokers.processes[n].http}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found = re.findall(r'bytesout_total\{[^}]*topic="t"[^}]*\} (\S+)', text)
    return sum(map(float, found))


def read(brokers: Brokers, rack: str, count: int, isolation: str) -> list[int]:
    consumer = Consumer(
        {"bootstrap.servers": brokers.bootstrap, "group.id": "g", "client.rack": rack,
         "enable.auto.commit": False, "log_level": 0, "isolation.level": isolation,
         "topic.metadata.refresh.interval.ms": 1000}
    )  # fmt: skip
    consumer.assign([TopicPartition("t", 0, 0)])
    found = []
    while len(found) < count:
        message = consumer.poll(WAIT_SECONDS)
        assert message is not None
        assert message.error() is None, message.error()
        found.append(int(message.value()))
    consumer.close()
    return found


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_a_consumer_reads_from_the_in_sync_replica_in_its_rack(
    tmp_path: Path, shared: ZooKeeperProcess, isolation: str
) -> None:
    with in_racks(tmp_path, shared, SELECTOR) as brokers:
        brokers.create_at("t", 1, 2)
        values = produced(brokers, "t", range(1000))
        assert sent(brokers, 2) == 0
        assert read(brokers, "r2", len(values), isolation) == values
        assert sent(brokers, 2) > 0
        before = sent(brokers, 2)
        assert read(brokers, "r3", len(values), isolation) == values  # where no replica is
        assert sent(brokers, 2) == before


def test_javas_consumer_does_too(
    tmp_path: Path, shared: ZooKeeperProcess, kafka_tools: Tool
) -> None:
    with in_racks(tmp_path, shared, SELECTOR) as brokers:
        brokers.create_at("t", 1, 2)
        produced(brokers, "t", range(100))
        done = kafka_tools(
            "consumer.ConsoleConsumer",
            ["--bootstrap-server", brokers.bootstrap, "--topic", "t", "--from-beginning",
             "--max-messages", "100", "--command-property", "client.rack=r2"],
        )  # fmt: skip
        assert done.stdout.split() == list(map(str, range(100))), done.stderr
        assert sent(brokers, 2) > 0


def test_replicas_are_spread_over_racks(tmp_path: Path, shared: ZooKeeperProcess) -> None:
    """KIP-36: the third broker stands alone, and has a replica of each partition."""
    racks = {1: {"broker.rack": "a"}, 2: {"broker.rack": "a"}, 3: {"broker.rack": "b"}}
    with running(tmp_path, shared, own=racks) as brokers:
        brokers.create("t", partitions=6, replicas=2)
        assert all(3 in p.replicas for p in brokers.topic("t").partitions.values())
        admin = brokers.admin()
        brokers.until_ok(lambda: admin.create_partitions([NewPartitions("t", 12)])["t"].result(30))
        brokers.until(lambda: len(brokers.topic("t").partitions) == 12, "the new partitions")
        assert all(3 in p.replicas for p in brokers.topic("t").partitions.values())
        found = admin.describe_cluster().result(30)
        assert {node.id: node.rack for node in found.nodes} == {1: "a", 2: "a", 3: "b"}


def test_it_reads_on_from_the_leader_when_that_one_dies(
    tmp_path: Path, shared: ZooKeeperProcess
) -> None:
    with in_racks(tmp_path, shared, SELECTOR) as brokers:
        brokers.create_at("t", 1, 2)
        values = produced(brokers, "t", range(100))
        consumer = Consumer(
            {"bootstrap.servers": brokers.bootstrap, "group.id": "g", "client.rack": "r2",
             "enable.auto.commit": False, "log_level": 0, "auto.offset.reset": "error"}
        )  # fmt: skip
        consumer.assign([TopicPartition("t", 0, 0)])

        def more(count: int) -> list[int]:
            messages = [consumer.poll(WAIT_SECONDS) for _ in range(count)]
            return [int(m.value()) for m in messages if m is not None and m.error() is None]

        assert more(100) == values
        assert sent(brokers, 2) > 0
        brokers.processes[2].kill()
        values = produced(brokers, "t", range(100, 200))
        assert more(100) == values
        consumer.close()


def test_without_a_selector_it_reads_from_the_leader(
    tmp_path: Path, shared: ZooKeeperProcess
) -> None:
    with in_racks(tmp_path, shared, {}) as brokers:
        brokers.create_at("t", 1, 2)
        values = produced(brokers, "t", range(100))
        assert read(brokers, "r2", len(values), "read_uncommitted") == values
        assert sent(brokers, 2) == 0


def test_a_follower_hears_at_once_of_what_its_consumers_wait_for(
    tmp_path: Path, shared: ZooKeeperProcess
) -> None:
    """Its fetch, which has all records, is held for ten minutes else."""
    patient = {"replica.fetch.wait.max.ms": "600000", "replica.lag.time.max.ms": "1800000"}
    with in_racks(tmp_path, shared, {**SELECTOR, **patient}) as brokers:
        brokers.create_at("t", 1, 2)
        values = produced(brokers, "t", range(10))
        assert read(brokers, "r2", len(values), "read_uncommitted") == values
        assert sent(brokers, 2) > 0
