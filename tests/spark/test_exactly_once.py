"""A stream to a broker: each row once, though tasks die and batches are repeated."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark import TaskContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from lapse.base.clock import SystemClock
from lapse.client.cluster import Cluster, parse_bootstrap
from lapse.client.groups import group_ids
from lapse.testing.broker_process import BrokerProcess
from tests.support.up import until

ROWS, PARTITIONS = 600, 3


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {"auto.create.topics.enable": "true", "num.partitions": str(PARTITIONS)}
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", settings) as process:
        yield process


def send(spark: SparkSession, broker: BrokerProcess, topic: str, first: int = 0) -> None:
    rows = spark.range(first, first + ROWS, numPartitions=2).select(
        F.col("id").cast("string").alias("value"),
        (F.col("id") % PARTITIONS).cast("int").alias("partition"),
    )
    rows.write.format("lapse").mode("append").options(**at(broker), topic=topic).save()


def at(broker: BrokerProcess) -> dict[str, str]:
    return {"kafka.bootstrap.servers": broker.bootstrap}


def stream(spark: SparkSession, broker: BrokerProcess, topic: str) -> DataFrame:
    begin = {"subscribe": topic, "startingOffsets": "earliest", "minPartitions": str(PARTITIONS)}
    return spark.readStream.format("lapse").options(**at(broker), **begin).load()


def run(frame: DataFrame, broker: BrokerProcess, checkpoint: Path, **options: str) -> str:
    """To its end; returns the query's id."""
    writer = frame.writeStream.format("lapse").options(**at(broker), **options)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    finally:
        query.stop()
    return str(query.id)


def read(spark: SparkSession, broker: BrokerProcess, topic: str) -> Counter[int]:
    """How often each row is there for who reads what is committed."""
    options = {**at(broker), "subscribe": topic, "kafka.isolation.level": "read_committed"}
    rows = spark.read.format("lapse").options(**options).load().select("value").collect()
    return Counter(int(bytes(row.value)) for row in rows)


async def groups(bootstrap: str) -> list[str]:
    async with Cluster(parse_bootstrap(bootstrap)) as cluster:
        return await group_ids(cluster)


def once(first: int, until: int) -> Counter[int]:
    return Counter(range(first, until))


def test_a_task_that_dies_midway_writes_nothing_twice(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    def dies_once(value: bytes) -> bytes:
        context = TaskContext.get()
        if int(value) == ROWS - 2 and context is not None and context.attemptNumber() == 0:
            raise RuntimeError("dies")
        return value

    send(spark, broker, "dies-in")
    frame = stream(spark, broker, "dies-in")
    value = F.udf(dies_once, "binary", useArrow=False)("value").alias("value")
    query = run(frame.select(value, "partition"), broker, tmp_path / "c", topic="dies-out")
    assert read(spark, broker, "dies-out") == once(0, ROWS)
    assert {name for name in asyncio.run(groups(broker.bootstrap)) if query in name} == {
        f"lapse-sink.{query}.{task}" for task in range(PARTITIONS)
    }


def test_a_broker_that_is_killed_under_the_sink_costs_no_row_and_doubles_none(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    """In the midst of a task's transaction: its rows are sent, or not, or in doubt."""
    sent, killed = tmp_path / "sent", tmp_path / "killed"

    def waits_once(value: bytes) -> bytes:
        if int(value) == ROWS - PARTITIONS and not killed.exists():
            sent.touch()
            clock = SystemClock()
            while not killed.exists():
                clock.sleep(0.05)
        return value

    send(spark, broker, "under-in")
    value = F.udf(waits_once, "binary", useArrow=False)("value").alias("value")
    frame = stream(spark, broker, "under-in").select(value, "partition")
    settings = {"auto.create.topics.enable": "true", "num.partitions": str(PARTITIONS)}
    with BrokerProcess(tmp_path / "frail", settings) as frail:

        def kill() -> None:
            until(sent.exists, "rows are sent")
            frail.kill()
            killed.touch()
            frail.start()

        with ThreadPoolExecutor(1) as threads:
            killing = threads.submit(kill)
            run(frame, frail, tmp_path / "c", topic="under-out")
            killing.result()
        assert read(spark, frail, "under-out") == once(0, ROWS)
        send(spark, broker, "under-in", ROWS)
        run(frame, frail, tmp_path / "c", topic="under-out")
        assert read(spark, frail, "under-out") == once(0, 2 * ROWS)


def test_a_batch_that_is_repeated_writes_what_is_missing(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    """As after a driver that died before it had noted the batch: Spark runs it again."""
    checkpoint, given = tmp_path / "c", {"topic": "again-out"}
    send(spark, broker, "again-in")
    frame = stream(spark, broker, "again-in").select("value")
    run(frame, broker, checkpoint, **given)
    send(spark, broker, "again-in", ROWS)
    for _ in range(2):
        run(frame, broker, checkpoint, **given)
        assert read(spark, broker, "again-out") == once(0, 2 * ROWS)
        newest = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
        newest.unlink()
        (checkpoint / "commits" / f".{newest.name}.crc").unlink(missing_ok=True)
    other = frame.select(F.concat("value", F.lit("0").cast("binary")).alias("value"))
    with pytest.raises(StreamingQueryException, match="rows of it are there, now it has"):
        run(other, broker, checkpoint, **given)
    assert read(spark, broker, "again-out") == once(0, 2 * ROWS)
    run(frame, broker, checkpoint, **given, exactlyOnce="false")
    twice = once(0, ROWS) + once(ROWS, 2 * ROWS) + once(ROWS, 2 * ROWS)
    assert read(spark, broker, "again-out") == twice


def test_an_older_checkpoint_is_refused(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "c"
    frame = stream(spark, broker, "old-in").select("value")
    for first in (0, ROWS):
        send(spark, broker, "old-in", first)
        run(frame, broker, checkpoint, topic="old-out")
    for folder in ("commits", "offsets"):
        for path in (checkpoint / folder).iterdir():
            if path.name.strip(".").split(".")[0] != "0":
                path.unlink()
    (checkpoint / "commits" / "0").unlink()
    (checkpoint / "commits" / ".0.crc").unlink(missing_ok=True)
    with pytest.raises(StreamingQueryException, match="batch 1 is there already"):
        run(frame, broker, checkpoint, topic="old-out")
    assert read(spark, broker, "old-out") == once(0, 2 * ROWS)


def test_a_batch_job_says_that_it_writes_at_least_once(
    spark: SparkSession, broker: BrokerProcess
) -> None:
    rows = spark.range(1).select(F.lit("x").alias("value"))
    writer = rows.write.format("lapse").mode("append").options(**at(broker), topic="batch")
    with pytest.raises(Exception, match="a batch job writes at least once"):
        writer.option("exactlyOnce", "true").save()
