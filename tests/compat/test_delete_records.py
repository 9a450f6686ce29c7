"""`lapse delete-records` at a real Kafka: what would go is what then goes, and groups count."""

from __future__ import annotations

import json
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from lapse.cli.main import main
from tests.oracle.kafka import RealKafka

TOPIC = "clicks"
OLD_MS, NEW_MS = 1_600_000_000_000, 1_700_000_000_000


def told(
    capsys: pytest.CaptureFixture[str], kafka: RealKafka, *words: str
) -> tuple[int, dict[str, Any]]:
    """Exit code, and the row of the only partition."""
    argv = ["delete-records", "--bootstrap-server", kafka.bootstrap, "--topic", TOPIC, "--json"]
    code = main([*argv, "--before-time", str(NEW_MS), *words])
    out, err = capsys.readouterr()
    assert out, err
    return code, json.loads(out)


def test_a_dry_run_and_groups_of_a_real_kafka(
    real_kafka: RealKafka, capsys: pytest.CaptureFixture[str]
) -> None:
    producer = Producer({"bootstrap.servers": real_kafka.bootstrap, "linger.ms": 0})
    for n in range(10):
        producer.produce(TOPIC, b"v", b"k", 0, timestamp=(OLD_MS if n < 6 else NEW_MS) + n)
        producer.flush()
    group = Consumer({"bootstrap.servers": real_kafka.bootstrap, "group.id": "billing"})
    group.commit(offsets=[TopicPartition(TOPIC, 0, 4)], asynchronous=False)

    code, row = told(capsys, real_kafka, "--dry-run")
    assert code == 1
    assert (row["delete_before"], row["records"], row["groups"]) == (6, 6, {"billing": 4})
    assert (row["first_time"], row["last_time"]) == (OLD_MS, OLD_MS + 5)
    assert row["segments"] is None  # no ListOffsets v0 since 4.0

    code, row = told(capsys, real_kafka)
    assert (code, row["low_watermark"], row["error"]) == (1, -1, "POLICY_VIOLATION")
    group.commit(offsets=[TopicPartition(TOPIC, 0, 6)], asynchronous=False)
    code, row = told(capsys, real_kafka)
    assert (code, row["low_watermark"], row["error"]) == (0, 6, None)
    group.close()
