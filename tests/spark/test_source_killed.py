"""`kill -9` of a driver while its query runs and deletes what it has read: each record once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from lapse.base.clock import SystemClock
from lapse.spark import source
from lapse.spark.scan import place
from lapse.spark.scan.options import parse_options
from lapse.spark.session.session import OpenSession, SessionOptions, open_session
from lapse.spark.source.progress import CheckpointError, read_checkpoint
from lapse.testing.broker_process import BrokerProcess
from tests.support.java import QUICK_JAVA

SECONDS_MAX = 300
RECORDS = 200
TOPIC = "k"
MODULE = "tests.spark.test_source_killed"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {"auto.create.topics.enable": "true", "num.partitions": "2"}
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", settings) as process:
        yield process


def run(spark: SparkSession, bootstrap: str, sink: Path) -> None:
    """Read what is there now in small batches, delete what was read."""
    source.register(spark)
    checkpoint = str(sink / "checkpoint")
    options = {
        "kafka.bootstrap.servers": bootstrap, "subscribe": TOPIC, "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "40", "columns": "partition,offset", "deleteConsumed": "true",
        "deleteConsumedCheckpoint": checkpoint,
    }  # fmt: skip
    frame = spark.readStream.format("lapse").options(**options).load()
    writer = frame.writeStream.format("parquet").option("checkpointLocation", checkpoint)
    query = writer.trigger(availableNow=True).start(str(sink / "data"))
    assert query.awaitTermination(SECONDS_MAX)


def finished(sink: Path) -> int:
    """The last batch that is done, by the checkpoint; -1 before the first."""
    try:
        return read_checkpoint(sink / "checkpoint").batch_id
    except CheckpointError:
        return -1


def test_a_driver_that_is_killed(
    session: OpenSession,
    broker: BrokerProcess,
    tmp_path: Path,
    scaled: Callable[[int], int],
    seed: int,
) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for n in range(RECORDS):
        producer.produce(TOPIC, b"v%d" % n, b"k%d" % n)
    assert not producer.flush(SECONDS_MAX)
    log = parse_options({"kafka.bootstrap.servers": broker.bootstrap, "subscribe": TOPIC})
    clock, dice = SystemClock(), random.Random(seed)
    for _ in range(scaled(20)):
        child = subprocess.Popen(
            [sys.executable, "-m", MODULE, broker.bootstrap, str(tmp_path)],
            cwd=Path(__file__).parents[2], env={**os.environ, **QUICK_JAVA}, start_new_session=True,
        )  # fmt: skip
        try:
            before, deadline = finished(tmp_path), clock.monotonic() + SECONDS_MAX
            while finished(tmp_path) <= before + 1 and child.poll() is None:
                assert clock.monotonic() < deadline
                clock.sleep(0.01)
            clock.sleep(dice.random())
        finally:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        done = read_checkpoint(tmp_path / "checkpoint").offsets
        begins = {p: extent.start_offset for p, extent in place.extents(log).items()}
        assert all(begins[p] <= done[p] for p in begins)
    ends = {p: extent.end_offset for p, extent in place.extents(log).items()}
    run(session.spark, broker.bootstrap, tmp_path)
    rows = session.spark.read.parquet(str(tmp_path / "data")).collect()
    assert sorted((row.partition, row.offset) for row in rows) == [
        (p.partition, offset) for p in sorted(ends) for offset in range(ends[p])
    ]
    assert {p: extent.start_offset for p, extent in place.extents(log).items()} == ends


if __name__ == "__main__":
    run(open_session(SessionOptions(master="local[2]")).spark, sys.argv[1], Path(sys.argv[2]))
