"""Writing by `format("lapse")` in a real session, to a broker in a process of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from lapse.base.clock import SystemClock
from lapse.spark.scan import place
from lapse.spark.scan.options import parse_options
from lapse.spark.scan.plan import Extent
from lapse.testing.broker_process import BrokerProcess

ROWS = 1000
SETTINGS = {
    "auto.create.topics.enable": "true", "num.partitions": "3",
    "lapse.tombstone.values.enable": "true",
    "log.retention.ms": "-1",  # records have times of long ago
}  # fmt: skip


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", SETTINGS) as process:
        yield process


def write(frame: DataFrame, broker: BrokerProcess, **options: str) -> None:
    where = {"kafka.bootstrap.servers": broker.bootstrap}
    frame.write.format("lapse").mode("append").options(**where, **options).save()


def read(spark: SparkSession, broker: BrokerProcess, topic: str) -> DataFrame:
    where = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic}
    return spark.read.format("lapse").options(**where, includeHeaders="true").load()


def test_rows_are_read_as_they_were_written(spark: SparkSession, broker: BrokerProcess) -> None:
    key = F.concat(F.lit("k"), F.col("id").cast("string"))
    rows = spark.range(ROWS, numPartitions=2).select(
        F.lit("w").alias("topic"),
        key.alias("key"),
        F.when(F.col("id") % 5 > 0, key.cast("binary")).alias("value"),
        F.array(F.struct(F.lit("h").alias("key"), key.cast("binary").alias("value"))).alias(
            "headers"
        ),
        F.timestamp_millis(F.lit(1_700_000_000_000) + F.col("id")).alias("timestamp"),
        F.when(F.col("id") % 7 == 0, F.lit(True)).alias("is_tombstone"),
    )
    given = {"kafka.compression.type": "zstd", "lapse.tombstone.values.enable": "true"}
    write(rows, broker, **given)
    found = read(spark, broker, "w").withColumn("key", F.col("key").cast("string"))
    names = ["key", "headers", "timestamp"]
    assert sorted(found.select(*names).collect()) == sorted(rows.select(*names).collect())
    dead = {r.key: r.value for r in found.where("is_tombstone").collect()}
    assert {key: value is None for key, value in dead.items()} == {
        f"k{n}": n % 5 == 0 for n in range(ROWS) if n % 5 == 0 or n % 7 == 0
    }
    assert found.select("partition").distinct().count() == 3


def test_a_task_that_is_repeated_writes_its_rows_again_and_nothing_is_missing(
    spark: SparkSession, broker: BrokerProcess
) -> None:
    """At least once: what the first attempt had written stays, and the second writes all."""
    where = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "twice"}

    def dies_once(n: int) -> str:
        context = TaskContext.get()
        if n == ROWS - 1 and context is not None and context.attemptNumber() == 0:
            clock = SystemClock()
            while sum(e.end_offset for e in _extents(where)) <= ROWS // 2:
                clock.sleep(0.05)  # the other task's are there, and some of this one
            raise RuntimeError("dies")
        return f"{n} {'.' * 2000}"  # more than the pipes between Spark's processes hold

    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(name)
    spark.conf.set(name, "50")
    try:
        value = F.udf(dies_once, "string", useArrow=False)("id")
        write(
            spark.range(ROWS, numPartitions=2).select(value.alias("value")), broker, topic="twice"
        )
    finally:
        spark.conf.set(name, before or "")
    rows = read(spark, broker, "twice").collect()
    found = Counter(int(bytes(r.value).split()[0]) for r in rows)
    assert found.keys() == set(range(ROWS))
    twice = {n for n, count in found.items() if count > 1}
    assert twice
    assert min(twice) >= ROWS // 2  # of the task that died
    assert max(found.values()) == 2


def _extents(where: dict[str, str]) -> list[Extent]:
    return list(place.extents(parse_options(where), lenient=True).values())


def test_what_is_refused(spark: SparkSession, broker: BrokerProcess) -> None:
    null = F.lit(None).cast("binary").alias("value")
    row = spark.range(1).select(F.lit("k").alias("key"), null, F.lit(False).alias("is_tombstone"))
    with pytest.raises(PySparkException, match=r"is_tombstone is false and the value is null"):
        write(row, broker, topic="w")
    with pytest.raises(PySparkException, match="no column 'id'"):
        write(spark.range(1), broker, topic="w")
    nobody = "topic no where is not there to be written to, at .*lapse topic create"
    with pytest.raises(PySparkException, match=nobody) as refused:
        write(row, broker, topic="no where")  # which this broker cannot make
    assert "Task" not in str(refused.value), "told before anything runs"
