"""A disk that is really full: a stock producer fails; health, metrics, a line tell of it."""

from __future__ import annotations

import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from lapse.metadata.sqlite import SqliteStore
from lapse.metadata.store import TopicRecord
from lapse.testing.broker_process import BrokerProcess
from tests.compat.conftest import create_topic

SECONDS_MAX = 30


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "lapse-test", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def page(broker: BrokerProcess, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{broker.http}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode()


def until(true: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + SECONDS_MAX
    while not true():
        assert time.monotonic() < end, what
        time.sleep(0.05)


def free(place: Path) -> int:
    return shutil.disk_usage(place).free


def fill(ballast: Path) -> None:
    """Leave no byte free."""
    with ballast.open("wb", buffering=0) as file:
        while True:
            try:
                if file.write(bytes(1 << 12)) < 1 << 12:
                    return
            except OSError:
                return


def test_a_full_disk_is_emptied(small_disk: Path) -> None:
    """By DeleteRecords and DeleteTopics, which note durably what goes before it goes."""
    quick = {"lapse.housekeeping.interval.ms": "100", "log.segment.delete.delay.ms": "0"}
    with BrokerProcess(small_disk / "data", quick) as broker:
        create_topic(broker, "t", "-c", "compression.type=producer", "-c", "segment.bytes=1048576")
        producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})
        for _ in range(40):
            producer.produce("t", bytes(100_000), partition=0)
            assert producer.flush(SECONDS_MAX) == 0
        fill(small_disk / "ballast")
        assert free(small_disk) == 0
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        (future,) = admin.delete_records([TopicPartition("t", 0, 25)]).values()
        assert future.result(SECONDS_MAX).low_watermark == 25
        until(lambda: free(small_disk) > 1_500_000, "nothing was freed")
        fill(small_disk / "more")
        assert free(small_disk) == 0
        admin.delete_topics(["t"])["t"].result(SECONDS_MAX)
        until(lambda: free(small_disk) > 1_000_000, "nothing was freed")


def test_a_deletion_has_room_wherever_the_store_has_got_to(small_disk: Path) -> None:
    for changes in range(12):
        store = SqliteStore(small_disk / f"{changes}.sqlite", lambda: "cluster")
        topic = TopicRecord("t", uuid4(), 1, {})
        store.create_topics([topic])
        store.close()
        store = SqliteStore(store.path, lambda: "cluster")
        for partitions in range(changes):
            before, topic = topic, replace(topic, partitions=partitions + 2)
            store.change_topic(topic, before)
        ballast = small_disk / "ballast"
        fill(ballast)
        assert free(small_disk) == 0
        store.start_deletion(topic.topic_id)
        store.finish_deletion(topic.topic_id)
        assert (store.topics(), store.deletions()) == ([], [])
        ballast.unlink()
        store.close()


def test_a_full_disk_is_seen(small_disk: Path) -> None:
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, _message: object) -> None:
        if error is not None:
            failed.append(error)

    with BrokerProcess(small_disk / "data", {"lapse.housekeeping.interval.ms": "100"}) as broker:
        create_topic(broker, "t", "-c", "compression.type=producer")
        assert page(broker, "/health") == (200, "serving\n")
        ballast = small_disk / "ballast"
        fill(ballast)
        ask = {"bootstrap.servers": broker.bootstrap, "message.timeout.ms": 2000, "linger.ms": 0}
        producer = Producer(ask)
        for _ in range(20):
            producer.produce("t", bytes(100_000), partition=0, on_delivery=delivered)
        producer.flush(SECONDS_MAX)
        assert failed
        status, body = page(broker, "/health")
        assert status == 503
        assert body.startswith(f"degraded\n1 log in {small_disk / 'data'} takes no writes: t-0: ")
        assert "No space left on device (since 20" in body
        lines = page(broker, "/metrics")[1].splitlines()
        assert any(line.startswith("lapse_log_directory_free_bytes{") for line in lines)
        counted = 'lapse_failed_appends_total{reason="disk_full"} '
        assert any(line.startswith(counted) for line in lines)
        said = [line for line in broker.log().splitlines() if "is not appended (disk_full" in line]
        assert len(said) == 1
        ballast.unlink()  # and nobody writes any more
        until(lambda: page(broker, "/health") == (200, "serving\n"), "still degraded")
        failed.clear()
        producer.produce("t", b"fine", on_delivery=delivered)
        producer.flush(SECONDS_MAX)
        assert not failed
