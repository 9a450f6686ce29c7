"""A directory of ours that a real Kafka has for a while: what it removes is not called missing.

Lapse writes to the logs of a Kafka that has stopped, and remembers what they should have. Kafka
then owns the directory: it appends, rolls, cleans, deletes records and a topic. Ours again, all
that is there opens, what went is told, and whatever goes by itself later is held offline as ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition as Where
from confluent_kafka.admin import AdminClient, NewTopic

from lapse.base.clock import SystemClock
from lapse.base.config import topic_config
from lapse.base.errors import MissingData
from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition
from lapse.log.directory import LogDirectory
from lapse.log.env import LogEnv
from lapse.log.partition_log import PartitionLog
from lapse.log.repair import look
from tests.compat.test_beside_kafka import (
    KEYS,
    UPDATES,
    make_kafka_clean,
    read,
    update,
    wait_until,
)
from tests.oracle.kafka import QUICK_FLAGS, RealKafka
from tests.support.lifecycle.rounds import records_in, write

PRICES, ORDERS, GONE = (TopicPartition(topic, 0) for topic in ("prices", "orders", "gone"))
ALL = (PRICES, ORDERS, GONE)
QUICK = {
    "log.cleaner.backoff.ms": 100, "file.delete.delay.ms": 100, "log.initial.task.delay.ms": 100,
    "log.segment.delete.delay.ms": 100, "log.retention.check.interval.ms": 200,
}  # fmt: skip
OURS = topic_config({"cleanup.policy": "compact", "internal.segment.bytes": "400"})


@contextmanager
def owned(logs: Path, *, clean: bool = True) -> Iterator[LogDirectory]:
    directory = LogDirectory.open(logs, LogEnv(RealFs(), SystemClock()))
    try:
        yield directory
    finally:
        directory.close(clean=clean)


def write_ours(logs: Path, *, clean: bool) -> dict[TopicPartition, int]:
    """Segments of ours in each log, all synced and remembered; how many files each has then."""
    with owned(logs, clean=clean) as directory:
        opened = [directory.open_log(partition, OURS) for partition in ALL]
        for log in opened:
            pairs = [(f"k{n % 4}", f"v{n}" + "." * 30) for n in range(40)]
            write(log, pairs, SystemClock().now_ms())
            log.roll(SystemClock().now_ms())
            log.flush(force=True)
        directory.checkpoint()
        return {log.partition: len(log.segments) for log in opened}


def have_kafka_work(kafka: RealKafka, segments: dict[TopicPartition, int]) -> None:
    """It appends and cleans, deletes records with their segments, and a whole topic."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    update(kafka.bootstrap, PRICES.topic)
    make_kafka_clean(admin, PRICES.topic)
    where = Where(ORDERS.topic, 0, 30)
    admin.delete_records([where])[where].result(30)
    admin.delete_topics([GONE.topic])[GONE.topic].result(30)
    logs = kafka.log_dir
    wait_until(lambda: not (logs / str(GONE)).exists())
    wait_until(lambda: not (logs / str(ORDERS) / f"{0:020d}.log").exists())
    wait_until(lambda: len(read(kafka.bootstrap, PRICES.topic)) < UPDATES * KEYS / 2)
    assert len(list((logs / str(ORDERS)).glob("*.log"))) < segments[ORDERS]


@pytest.mark.usefixtures("kafka_jars")
@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
def test_what_kafka_removed_is_not_missing_and_what_goes_later_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, clean: bool
) -> None:
    """Whether both stopped in order, or both were killed, Kafka before its first checkpoint."""
    with RealKafka(tmp_path / "kafka", QUICK, QUICK_FLAGS) as kafka:
        logs = kafka.log_dir
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        config = {"cleanup.policy": "compact", "segment.ms": "200"}
        config["min.cleanable.dirty.ratio"] = "1"
        topics = [NewTopic(p.topic, 1, 1, config=config) for p in (PRICES, GONE)]
        topics.append(NewTopic(ORDERS.topic, 1, 1, config={"cleanup.policy": "delete"}))
        for future in admin.create_topics(topics).values():
            future.result(30)
        kafka.stop()
        segments = write_ours(logs, clean=clean)
        kafka.start()
        have_kafka_work(kafka, segments)
        if clean:
            kafka.stop()
        else:
            kafka.kill()
    assert look(logs) == []
    before = {partition: records_in(logs / str(partition)) for partition in (PRICES, ORDERS)}
    with owned(logs) as directory:
        opened: list[PartitionLog] = [directory.open_log(p, OURS) for p in (PRICES, ORDERS)]
        assert opened[1].log_start_offset == 30
        assert str(GONE) in caplog.text
        assert "another owner has used the directory" in caplog.text
        for log in opened:
            assert records_in(log.dir) == before[log.partition]
            write(log, [("last", "of ours")], SystemClock().now_ms())
            log.roll(SystemClock().now_ms())
    last = sorted((logs / str(ORDERS)).glob("*.log"))[-2]
    last.unlink()
    [found] = look(logs)
    assert (found.partition, found.is_offline) == (ORDERS, True)
    with owned(logs, clean=False) as directory, pytest.raises(MissingData, match="is gone"):
        directory.open_log(ORDERS, OURS)
