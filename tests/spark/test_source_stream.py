"""Streams of `format("lapse")` in a real session: files and a broker, with checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming import StreamingQuery

from lapse.log.partition_log import PartitionLog
from lapse.spark.scan import place
from lapse.spark.scan.options import parse_options
from lapse.testing.broker_process import BrokerProcess
from tests.support.log.logs import NOW, append, batch, open_log

SECONDS_MAX = 60
RECORDS = 3  # of a batch


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {"auto.create.topics.enable": "true", "log.retention.ms": "-1"}
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", settings) as process:
        yield process


def stream(spark: SparkSession, **options: str) -> DataFrame:
    given = {"startingOffsets": "earliest", "columns": "topic,partition,offset", **options}
    return spark.readStream.format("lapse").options(**given).load()


def start(frame: DataFrame, sink: Path) -> StreamingQuery:
    """All that is there now, in batches; the sink is idempotent by batch, like any file sink."""
    return (
        frame.writeStream.format("parquet")
        .option("checkpointLocation", str(sink / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(sink / "data"))
    )


def run(frame: DataFrame, sink: Path) -> StreamingQuery:
    query = start(frame, sink)
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


def test_each_record_counts_once_across_deaths(spark: SparkSession, tmp_path: Path) -> None:
    """In the middle of a batch, and between the sink's commit and Spark's."""
    logs, sink = tmp_path / "logs", tmp_path / "sink"
    log = open_log(logs / "a-0")
    grow(log, 40)
    limited = {"path": str(logs), "maxOffsetsPerTrigger": "50"}
    dies = F.when(F.col("offset") == 75, F.raise_error("dies")).otherwise(F.lit(True))
    with pytest.raises(PySparkException, match="dies"):
        run(stream(spark, **limited).where(dies), sink)
    assert written(spark, sink) == of("a-0", 50)
    query = run(stream(spark, **limited), sink)
    assert [p["numInputRows"] for p in query.recentProgress if p["numInputRows"]] == [50, 20]
    commits = sink / "checkpoint" / "commits"
    for name in ("2", ".2.crc"):
        (commits / name).unlink()
    grow(log, 10)
    grow(open_log(logs / "b-1"), 2)  # it is new
    run(stream(spark, **limited), sink)
    assert written(spark, sink) == of("a-0", 50 * RECORDS) + of("b-1", 2 * RECORDS)


def test_tasks_drop_what_conditions_leave_out(spark: SparkSession, tmp_path: Path) -> None:
    """Batches are ranges of offsets still, those of dropped records among them."""
    logs, sink = tmp_path / "logs", tmp_path / "sink"
    grow(open_log(logs / "a-0"), 20)
    grow(open_log(logs / "b-0"), 2)
    where = "offset >= 4 AND offset NOT IN (7, 30) AND offset < 40 AND key IS NOT NULL"
    query = run(stream(spark, path=str(logs), maxOffsetsPerTrigger="33", where=where), sink)
    assert len([1 for done in query.recentProgress if done["numInputRows"]]) == 2
    left = [name for n, name in enumerate(of("a-0", 40)) if n >= 4 and n not in (7, 30)]
    assert written(spark, sink) == [*left, *of("b-0", 6)[4:]]


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


def test_from_topic_to_topic_and_what_was_read_is_deleted(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    """Batches end at 100, 200 and 250. Spark never commits the last one: the next start tells."""
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for n in range(250):
        producer.produce("s", b"v%d" % n, b"k%d" % n, headers=[("h", b"x")], timestamp=NOW + n)
    assert not producer.flush(SECONDS_MAX)
    where = {"kafka.bootstrap.servers": broker.bootstrap}
    read = {**where, "subscribe": "s", "maxOffsetsPerTrigger": "100", "deleteConsumed": "true"}
    given = {**read, "startingOffsets": "earliest", "includeHeaders": "true"}
    frame = spark.readStream.format("lapse").options(**given).load().drop("topic")
    for low_watermark in (200, 250):
        query = (
            frame.writeStream.format("lapse")
            .options(**where, topic="copy", checkpointLocation=str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(SECONDS_MAX)
        (extent,) = place.extents(parse_options({**where, "subscribe": "s"})).values()
        assert (extent.start_offset, extent.end_offset) == (low_watermark, 250)
    copy = spark.read.format("lapse").options(**where, subscribe="copy", includeHeaders="true")
    rows = copy.load().orderBy("offset").collect()
    assert [(bytes(r.key), bytes(r.value), r.headers[0].key) for r in rows] == [
        (b"k%d" % n, b"v%d" % n, "h") for n in range(250)
    ]
    assert [round(r.create_time.timestamp() * 1000) for r in rows] == [NOW + n for n in range(250)]


def test_a_batch_from_a_broker_is_the_same_as_from_its_files(
    spark: SparkSession, broker: BrokerProcess
) -> None:
    """But for append times: of the active segment files tell where the last entry begins alone."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "compression.type": "zstd"})
    for n in range(1000):
        producer.produce("b", b"v%d" % n, b"k%d" % n, headers=[("h", b"x")], timestamp=NOW + n)
        if n % 400 == 399:  # three batches or more
            assert not producer.flush(SECONDS_MAX)
    assert not producer.flush(SECONDS_MAX)
    asked = {"subscribe": "b", "includeHeaders": "true"}
    where = {"kafka.bootstrap.servers": broker.bootstrap}, {"path": str(broker.data)}
    frames = [spark.read.format("lapse").options(**asked, **one).load() for one in where]
    over, beside = (frame.drop("append_time").orderBy("offset").collect() for frame in frames)
    assert len(over) == len(beside) == 1000
    assert [(one, other) for one, other in zip(over, beside, strict=True) if one != other] == []
    asked_of, kept = (
        {row.offset: row.append_time for row in frame.select("offset", "append_time").collect()}
        for frame in frames
    )
    assert None not in asked_of.values()
    known = {offset: time for offset, time in kept.items() if time is not None}
    assert known == {offset: asked_of[offset] for offset in known}
