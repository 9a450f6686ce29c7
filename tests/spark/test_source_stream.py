"""Streams of `format("lapse")` in a real session: from files and from a broker, with checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from lapse.log.partition_log import PartitionLog
from lapse.spark import source
from lapse.spark.session import OpenSession
from lapse.testing.broker_process import BrokerProcess
from tests.unit.log.logs import NOW, append, batch, open_log

SECONDS_MAX = 60
RECORDS = 3  # of a batch


@pytest.fixture(scope="module")
def spark(session: OpenSession) -> SparkSession:
    source.register(session.spark)
    return session.spark


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as process:
        yield process


def stream(spark: SparkSession, **options: str) -> DataFrame:
    given = {"startingOffsets": "earliest", "columns": "topic,partition,offset", **options}
    return spark.readStream.format("lapse").options(**given).load()


def run(frame: DataFrame, sink: Path) -> StreamingQuery:
    """All that is there now, in batches; the sink is idempotent by batch, like any file sink."""
    query = (
        frame.writeStream.format("parquet")
        .option("checkpointLocation", str(sink / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(sink / "data"))
    )
    assert query.awaitTermination(SECONDS_MAX)
    return query


def written(spark: SparkSession, sink: Path) -> list[str]:
    rows = spark.read.parquet(str(sink / "data")).collect()
    return sorted(f"{row.topic}-{row.partition}:{row.offset:04}" for row in rows)


def of(partition: str, count: int) -> list[str]:
    return [f"{partition}:{n:04}" for n in range(count)]


def grow(log: PartitionLog, batches: int) -> None:
    for n in range(batches):
        append(log, batch(timestamp=NOW + n))


def test_each_record_counts_once_across_restarts(spark: SparkSession, tmp_path: Path) -> None:
    logs, sink = tmp_path / "logs", tmp_path / "sink"
    log = open_log(logs / "a-0")
    grow(log, 40)
    limited = {"path": str(logs), "maxOffsetsPerTrigger": "50"}
    query = run(stream(spark, **limited), sink)
    assert len([p for p in query.recentProgress if p["numInputRows"]]) == 3  # 50 + 50 + 20
    grow(log, 10)
    grow(open_log(logs / "b-1"), 2)  # it is new
    run(stream(spark, **limited), sink)
    run(stream(spark, **limited), sink)  # nothing is new
    assert written(spark, sink) == of("a-0", 50 * RECORDS) + of("b-1", 2 * RECORDS)


def test_what_was_lost_fails_the_query(spark: SparkSession, tmp_path: Path) -> None:
    logs, sink = tmp_path / "logs", tmp_path / "sink"
    log = open_log(logs / "a-0")
    grow(log, 5)
    run(stream(spark, path=str(logs)), sink)
    grow(log, 30)
    log.delete_records(60)
    with pytest.raises(PySparkException, match=r"offset 15 is not in \[60, 105\]"):
        run(stream(spark, path=str(logs)), sink)
    run(stream(spark, path=str(logs), failOnDataLoss="false"), sink)
    assert written(spark, sink) == of("a-0", 15) + of("a-0", 105)[60:]


def test_a_stream_from_a_broker(spark: SparkSession, broker: BrokerProcess, tmp_path: Path) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "s"}
    for until in (100, 250):
        for n in range(until - 100 if until == 100 else 100, until):
            producer.produce("s", b"v%d" % n, b"k%d" % n)
        assert not producer.flush(SECONDS_MAX)
        run(stream(spark, **options), tmp_path)
    assert written(spark, tmp_path) == of("s-0", 250)


def test_a_batch_from_a_broker_is_the_same_as_from_its_files(
    spark: SparkSession, broker: BrokerProcess
) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "compression.type": "zstd"})
    for n in range(1000):
        producer.produce("b", b"v%d" % n, b"k%d" % n, headers=[("h", b"x")], timestamp=NOW + n)
    assert not producer.flush(SECONDS_MAX)
    asked = {"subscribe": "b", "includeHeaders": "true"}
    where = {"kafka.bootstrap.servers": broker.bootstrap}, {"path": str(broker.data)}
    over, beside = (
        spark.read.format("lapse").options(**asked, **one).load().orderBy("offset").collect()
        for one in where
    )
    assert over == beside
    assert len(over) == 1000
