"""Our tools on a directory of real Kafka: looking while it runs, cleaning once it has stopped.

DESIGN §4.10 and §4.12: looking needs no lock and changes nothing, cleaning in place is refused by
Kafka's own lock, policies come from Kafka's metadata log, and Kafka starts on what we cleaned.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.oracle.kafka import RealKafka

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


def write(bootstrap: str) -> dict[bytes, bytes]:
    """A compacted topic whose keys are overwritten many times; returns the last values."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    config = {"cleanup.policy": "compact", "segment.ms": "200", "min.cleanable.dirty.ratio": "0.01"}
    admin.create_topics([NewTopic(TOPIC, 1, 1, config=config)])[TOPIC].result(30)
    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": "lz4"})
    last: dict[bytes, bytes] = {}
    for update in range(UPDATES):
        for key in range(KEYS):
            name, value = b"key-%d" % key, b"value-%d-" % update + b"x" * 100
            producer.produce(TOPIC, value, name, timestamp=1_700_000_000_000 + 300 * update)
            last[name] = value
        assert producer.flush(30) == 0
    return last


def read(bootstrap: str) -> list[tuple[bytes, bytes]]:
    settings = {"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest", "enable.partition.eof": True})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    found = []
    while (message := consumer.poll(30)) is not None and message.error() is None:
        found.append((message.key(), message.value()))
    consumer.close()
    return found


def files(directory: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in directory.iterdir() if p.is_file()}


@pytest.mark.usefixtures("kafka_jars")
def test_plan_beside_a_running_kafka_and_clean_after_it(tmp_path: Path) -> None:
    with RealKafka(tmp_path / "kafka", {"log.cleaner.enable": "false"}) as kafka:
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
