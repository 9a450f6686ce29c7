"""Our tools on a directory of real Kafka: looking while it runs, cleaning once it has stopped.

ADR-10, ADR-12: looking needs no lock and changes nothing, cleaning in place is refused by
Kafka's own lock, policies come from Kafka's metadata log, and Kafka starts on what we cleaned.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetSpec,
)

from lapse.base.clock import SystemClock
from lapse.base.config import topic_config
from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition as Partition
from lapse.kernels.layout import CONTROL
from lapse.lifecycle.decide.select import LogInfo
from lapse.lifecycle.owner.directory import DirectoryOwner
from lapse.lifecycle.round.inline import InlineEngine
from lapse.lifecycle.round.run import receipts_of
from lapse.lifecycle.round.summarise import requests_of
from lapse.log.summary import Summary
from lapse.records.batch import records_of, scan_batches
from lapse.records.control import control_type
from tests.oracle.kafka import QUICK_FLAGS, RealKafka

TOPIC = "prices"
KEYS = 50
UPDATES = 40


def lapse(*words: object) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "lapse.cli.main", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def write(bootstrap: str, topic: str = TOPIC, **more: str) -> dict[bytes, bytes]:
    """A compacted topic whose keys are overwritten many times; returns the last values."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    config = {"cleanup.policy": "compact", "segment.ms": "200", "min.cleanable.dirty.ratio": "0.01"}
    config |= {name.replace("_", "."): value for name, value in more.items()}
    admin.create_topics([NewTopic(topic, 1, 1, config=config)])[topic].result(30)
    return update(bootstrap, topic)


def update(bootstrap: str, topic: str, time_ms: int = 1_700_000_000_000) -> dict[bytes, bytes]:
    """All keys, many times over, each time in a segment of its own."""
    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": "lz4"})
    last: dict[bytes, bytes] = {}
    for update in range(UPDATES):
        for key in range(KEYS):
            name, value = b"key-%d" % key, b"value-%d-" % update + b"x" * 100
            producer.produce(topic, value, name, timestamp=time_ms + 300 * update)
            last[name] = value
        assert producer.flush(30) == 0
    return last


def read(bootstrap: str, topic: str = TOPIC) -> list[tuple[bytes, bytes]]:
    settings = {"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = []
    while (message := consumer.poll(30)) is not None and message.error() is None:
        found.append((message.key(), message.value()))
    consumer.close()
    return found


def files(directory: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in directory.iterdir() if p.is_file()}


@pytest.mark.usefixtures("kafka_jars")
def test_plan_beside_a_running_kafka_and_clean_after_it(tmp_path: Path) -> None:
    with RealKafka(tmp_path / "kafka", {"log.cleaner.enable": "false"}, QUICK_FLAGS) as kafka:
        last = write(kafka.bootstrap)
        logs, partition = kafka.log_dir, kafka.log_dir / f"{TOPIC}-0"
        before = files(partition)
        code, out, err = lapse("plan", logs, "--json")
        lines = {line["partition"]: line for line in map(json.loads, out.splitlines())}
        assert code == 0, err
        assert lines[f"{TOPIC}-0"]["policy"] == "compact"  # known from __cluster_metadata-0
        assert lines[f"{TOPIC}-0"]["due"] == ["dirty ratio"]
        code, _, err = lapse("clean", logs, "--partition", f"{TOPIC}-0", "--engine", "inline")
        assert code == 3
        assert f"process {kafka.pid} holds" in err
        assert files(partition) == before
        kafka.stop()
        words = ("--partition", f"{TOPIC}-0", "--engine", "inline", "--json")
        code, out, err = lapse("clean", logs, *words)
        assert code == 0, err
        line = json.loads(out)
        assert line["outcome"] == "cleaned"
        assert line["records_written"] < line["records_read"] / 10
        kafka.start()
        found = read(kafka.bootstrap)
    assert dict(found) == last
    assert len(found) < KEYS * UPDATES / 5


# --- our summaries in Kafka's directory ----------------------------------------------------------


def transact(bootstrap: str, topic: str) -> None:
    """Two committed transactions and an aborted one, a record each; then a record that rolls."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "t"})
    producer.init_transactions(30)
    for n, end in enumerate(("commit", "abort", "commit")):
        producer.begin_transaction()
        producer.produce(topic, b"value", b"key-%d" % n)
        assert producer.flush(30) == 0
        getattr(producer, f"{end}_transaction")(30)
    until_decided(bootstrap, topic)
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, b"value", b"last", timestamp=SystemClock().now_ms() + 60_000)
    assert producer.flush(30) == 0


def until_decided(bootstrap: str, topic: str) -> None:
    """Wait for markers: a transaction has ended for its producer before they are written."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    where, until = TopicPartition(topic, 0), time.monotonic() + 30
    while True:
        ends = {
            next(iter(admin.list_offsets({where: OffsetSpec.latest()}, isolation_level=level)
                      .values())).result(30).offset
            for level in IsolationLevel
        }  # fmt: skip
        if len(ends) == 1:
            return
        assert time.monotonic() < until, f"{topic}: {ends}"
        time.sleep(0.1)


@contextmanager
def owned(logs: Path, *topics: str) -> Iterator[DirectoryOwner]:
    settings = topic_config({"cleanup.policy": "compact"})
    configs = {Partition(topic, 0): settings for topic in topics}
    with DirectoryOwner(logs, configs, RealFs(), SystemClock()) as owner:
        yield owner


def looked_through(owner: DirectoryOwner) -> dict[str, list[Summary]]:
    """Summaries of all sealed segments, those that were missing made and taken over."""
    engine = InlineEngine(RealFs(), SystemClock())
    requests = requests_of((info.facts for info in owner.logs()), records=True)
    receipts = list(receipts_of(engine.summarise(requests)))
    assert owner.adopt_summaries(receipts) == [None] * len(requests)
    return {
        info.facts.partition.topic: [s.summary for s in info.facts.segments[:-1] if s.summary]
        for info in owner.logs()
    }


def by_reading(partition: Path) -> list[tuple[int, int, int]]:
    """Records, commits and aborts in each sealed segment."""
    found = []
    for path in sorted(partition.glob("*.log"))[:-1]:
        data = path.read_bytes()
        rows = scan_batches(data, str(path))
        markers = [
            control_type(next(records_of(data, row, str(path))).key)
            for row in rows
            if row["attributes"] & CONTROL
        ]
        count = int(rows["count"].sum())
        found.append((count, markers.count("COMMIT"), markers.count("ABORT")))
    return found


def told(summaries: list[Summary]) -> list[tuple[int, int, int]]:
    return [(s.records, s.commits, s.aborts) for s in summaries]


@pytest.mark.usefixtures("kafka_jars")
def test_kafka_starts_on_uses_and_deletes_logs_that_hold_our_summaries(tmp_path: Path) -> None:
    """It never minds them, and what it changes they do not hide."""
    quick = {"log.cleaner.backoff.ms": 100, "file.delete.delay.ms": 100,
             "log.segment.delete.delay.ms": 100, "log.initial.task.delay.ms": 100}  # fmt: skip
    settings = {"transaction.state.log.min.isr": 1, "offsets.topic.replication.factor": 1,
                "transaction.state.log.replication.factor": 1, **quick}  # fmt: skip
    with RealKafka(tmp_path / "kafka", settings, QUICK_FLAGS) as kafka:
        write(kafka.bootstrap, min_cleanable_dirty_ratio="1", file_delete_delay_ms="100")
        write(kafka.bootstrap, "orders", min_cleanable_dirty_ratio="1", file_delete_delay_ms="100")
        transact(kafka.bootstrap, "orders")
        kafka.stop()
        logs = kafka.log_dir
        with owned(logs, TOPIC, "orders") as owner:
            for info in owner.logs():  # opened without a look at any segment
                assert all(s.lacks_summary for s in info.facts.segments[:-1])
            found = looked_through(owner)
        for topic in (TOPIC, "orders"):
            assert told(found[topic]) == by_reading(logs / f"{topic}-0")
            assert len(list((logs / f"{topic}-0" / ".lapse").glob("*.summary"))) >= 2
        assert sum(s.transactional for s in found["orders"]) == 3
        assert sum(s.commits for s in found["orders"]) == 2
        assert sum(s.aborts for s in found["orders"]) == 1
        kafka.start()
        last = update(kafka.bootstrap, TOPIC, 1_700_001_000_000)
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        make_kafka_clean(admin, TOPIC)
        wait_until(lambda: len(read(kafka.bootstrap)) < 3 * KEYS)
        assert dict(read(kafka.bootstrap)) == last
        kafka.stop()
        with owned(logs, TOPIC, "orders") as owner:
            [cleaned, _] = (info.facts for info in sorted(owner.logs(), key=by_topic, reverse=True))
            assert any(s.lacks_summary for s in cleaned.segments[:-1])
            found = looked_through(owner)
            assert told(found[TOPIC]) == by_reading(logs / f"{TOPIC}-0")
        kafka.start()
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        for future in admin.delete_topics([TOPIC, "orders"]).values():
            future.result(30)
        wait_until(lambda: not [p for p in logs.iterdir() if p.name.startswith((TOPIC, "orders"))])
        assert read_back(kafka.bootstrap)


def read_back(bootstrap: str) -> bool:
    """Whether it still takes and gives records."""
    last = write(bootstrap, "new")
    return dict(read(bootstrap, "new")) == last


def by_topic(info: LogInfo) -> str:
    return info.facts.partition.topic


def make_kafka_clean(admin: AdminClient, topic: str) -> None:
    entry = ConfigEntry("min.cleanable.dirty.ratio", "0.01",
                        incremental_operation=AlterConfigOpType.SET)  # fmt: skip
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(30)


def wait_until(done: Callable[[], bool], seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < until
        time.sleep(0.2)
