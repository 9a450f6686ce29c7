"""Pages that say how to do something: their commands are run, and print what the pages say."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from lapse.cli.main import main
from lapse.testing.broker_process import BrokerProcess
from tests.compat.rounds_beside import rounds_beside
from tests.support.pages import Place, follow

# Pages let Spark clean and search, as users do; here the same rounds in one process.
INLINE = {
    "lapse clean ": "lapse clean --engine inline ",
    "lapse erase ": "lapse erase --engine inline ",
}
KAFKAS = "/var/lib/kafka/data"
OURS = "/var/lib/lapse"
QUICK = {"lapse.housekeeping.interval.ms": "20"}
SOON = {
    "cleanup.policy": "compact", "delete.retention.ms": "300", "file.delete.delay.ms": "100",
    "lapse.tombstone.removal.max.lag.ms": "100",
}  # fmt: skip
SECONDS_MAX = 60
_LOGS = "users-0, users-1\n"
_FOUND = f"/mnt/broker1/kafka: {_LOGS}/mnt/broker2/kafka: {_LOGS}"


@pytest.fixture
def kafka_directory(goldens: Path, tmp_path: Path) -> Path:
    """Of a Kafka that was stopped."""
    there = tmp_path / "kafka"
    without = shutil.ignore_patterns("*.dump.*")
    shutil.copytree(goldens / "golden-clean-shutdown", there, ignore=without)
    return there


@pytest.mark.parametrize("page", ["README.md", "docs/offline.md", "docs/size.md"])
def test_on_kafkas_own_directory(page: str, kafka_directory: Path, tmp_path: Path) -> None:
    later = "lapse clean --engine inline cleaned "  # than the topic's delete.retention.ms
    here = {KAFKAS: str(kafka_directory), **INLINE}
    follow(page, Place(tmp_path, stands_for=here, again=(later,)))


@contextmanager
def served(data: Path) -> Iterator[BrokerProcess]:
    """A broker whose rounds come soon."""
    with BrokerProcess(data, QUICK) as broker, rounds_beside(data):
        yield broker


def create(broker: BrokerProcess, topic: str, partitions: int, settings: Mapping[str, str]) -> None:
    words = [word for name, text in settings.items() for word in ("-c", f"{name}={text}")]
    at = ("--bootstrap-server", broker.bootstrap)
    assert main(["topic", "create", topic, "-p", str(partitions), *words, *at]) == 0


def produce(broker: BrokerProcess, topic: str, partition: int, keys: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for key in keys:
        producer.produce(topic, b"value of " + key, key, partition=partition)
    assert producer.flush(SECONDS_MAX) == 0


def test_delete_consumed(tmp_path: Path) -> None:
    """Two groups and a streaming query, of which one has read less than the others."""
    with BrokerProcess(tmp_path / "data", QUICK) as broker:
        create(broker, "orders", 2, {})
        for partition, begins in ((0, 1200), (1, 1180)):
            produce(broker, "orders", partition, [b"k"] * 6000)
            delete(broker, partition, begins)
        commit(broker, "billing", {0: 5310, 1: 5102})
        commit(broker, "search", {0: 5290})
        for name, text in (
            ("offsets", '{"batchWatermarkMs":0}\n{"orders":{"0":5000,"1":4870}}'),
            ("commits", '{"nextBatchWatermarkMs":0}'),
        ):
            (tmp_path / "lake" / name).mkdir(parents=True)
            (tmp_path / "lake" / name / "0").write_text(f"v1\n{text}")
        here = {"/ckpt/lake": str(tmp_path / "lake")}
        blocked = {"lapse delete-consumed": 1}
        follow("docs/delete-consumed.md", Place(tmp_path, broker.bootstrap, here, blocked))


def delete(broker: BrokerProcess, partition: int, before: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    [done] = admin.delete_records([TopicPartition("orders", partition, before)]).values()
    assert done.result(SECONDS_MAX).low_watermark == before


def commit(broker: BrokerProcess, group: str, offsets: Mapping[int, int]) -> None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    consumer.commit(
        offsets=[TopicPartition("orders", *one) for one in offsets.items()], asynchronous=False
    )
    consumer.close()


@pytest.mark.parametrize("page", ["docs/erase.md", "docs/prove-erased.md"])
def test_erasure(page: str, tmp_path: Path) -> None:
    with served(tmp_path / "data") as broker:
        create(broker, "users", 2, SOON)
        for partition, keys in enumerate(([b"u-1", b"stays"], [b"u-2", b"u-3"])):
            produce(broker, "users", partition, keys)
        (tmp_path / "gone.csv").write_text("key\nu-1\nu-2\nu-3\n")
        two = "--replica /mnt/broker1/kafka --replica /mnt/broker2/kafka"
        here = {two: f"--replica {broker.data}", _FOUND: f"{broker.data}: {_LOGS}", **INLINE}
        follow(page, Place(tmp_path, broker.bootstrap, here, shows_errors=True))


def test_back_up(tmp_path: Path) -> None:
    """And what was erased since the backup is erased again after it was put back."""
    data = tmp_path / "lapse"
    with BrokerProcess(data) as broker:
        create(broker, "users", 1, SOON)
        produce(broker, "users", 0, [b"u-1", b"u-2", b"stays"])
    (tmp_path / "gone.csv").write_text("key\nu-1\nu-2\n")
    here = {OURS: str(data), **INLINE}
    page = "docs/back-up.md"
    follow(page, Place(tmp_path, stands_for=here), until="lapse erase")
    assert (tmp_path / "lost" / "users-0").is_dir()
    with served(data) as broker:
        follow(page, Place(tmp_path, broker.bootstrap, here), since="lapse erase")


def test_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "server.properties").write_text(
        "log.dirs=data\nnum.network.threads=3\nlog.retention.ms=abc\nlapse.http.prot=1\n"
    )
    with BrokerProcess(tmp_path / "data") as broker:
        create(broker, "users", 1, {})
        here = {"/data": str(broker.data), "DATA": str(broker.data)}
        codes = {"lapse config check": 1}
        follow("docs/command-line.md", Place(tmp_path, broker.bootstrap, here, codes))


def test_copy(tmp_path: Path) -> None:
    with (
        BrokerProcess(tmp_path / "from") as source,
        BrokerProcess(tmp_path / "to") as target,
    ):
        create(source, "orders", 2, {"cleanup.policy": "compact"})
        for partition in range(2):
            produce(source, "orders", partition, [b"%d" % n for n in range(50)])
        here = {
            "kafka:9092": source.bootstrap, "127.0.0.1:9092": target.bootstrap, OURS: str(tmp_path),
            "lapse copy ": "lapse copy --master local[1] ",
        }  # fmt: skip
        follow("docs/copy.md", Place(tmp_path, target.bootstrap, here))
