"""A stream to a broker under Spark's own speculation: two attempts at one task, each row once.

Both write at the same time. The first stands still in the middle of its transaction until Spark has
begun the task once more, on another host, and goes on then, or never does.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from lapse.base.clock import SystemClock
from lapse.client.admin import Admin
from lapse.client.producer import Producer
from lapse.spark import source
from lapse.spark.session.session import SessionOptions, open_session
from lapse.testing.broker_process import BrokerProcess
from tests.spark.standalone import Standalone, standalone
from tests.spark.test_speculation import HOSTS, SETTINGS
from tests.support.client.committed import committed_records
from tests.support.java import QUICK_JAVA

MODULE = "tests.spark.test_exactly_once_speculated"
HERE, PARTITIONS = "original", 3
CASES = STAYS, GOES_ON = "stays", "goes-on"
ROWS, STILL_AT = 600, 300
# So that rows of a task are sent before it stands still.
SMALL = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10",
    "spark.sql.execution.python.udf.maxRecordsPerBatch": "10",
}
SECONDS_MAX = 120


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with standalone(tmp_path_factory.mktemp("cluster"), *HOSTS, cores=PARTITIONS) as made:
        yield made


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as process:
        asyncio.run(fill(process.bootstrap))
        yield process


async def fill(bootstrap: str) -> None:
    async with await Admin.open(bootstrap) as admin:
        for topic in (HERE, *CASES):
            await admin.create_topic(topic, partitions=PARTITIONS)
    async with Producer(bootstrap) as producer:
        for n in range(ROWS):
            await producer.send(HERE, None, b"%d" % n, partition=n % PARTITIONS)


def test_each_row_is_there_once_whichever_attempt_wins(
    cluster: Standalone, broker: BrokerProcess, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", MODULE, cluster.url, broker.bootstrap, tmp_path],
        cwd=Path(__file__).parents[2], env={**os.environ, **QUICK_JAVA, **cluster.environment},
        capture_output=True, text=True, timeout=SECONDS_MAX, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    for case in CASES:
        assert (tmp_path / f"{case}.second").exists(), "the task was begun once only"
        records = asyncio.run(committed_records(broker.bootstrap, [case]))
        found = sorted((record.partition.partition, record.value) for record in records)
        assert found == sorted((n % PARTITIONS, b"%d" % n) for n in range(ROWS)), case


# --- the driver -----------------------------------------------------------------------------------


def main(master: str, bootstrap: str, folder: Path) -> None:
    """Copy what is there to a topic of each case, in one batch each."""
    spark = open_session(SessionOptions(master, settings={**SETTINGS, **SMALL})).spark
    source.register(spark)
    for case in CASES:
        copy(spark, bootstrap, case, folder)
    spark.stop()


def copy(spark: SparkSession, bootstrap: str, case: str, folder: Path) -> None:
    """The first attempt at a task waits for the second one's turn at the same row, or for ever."""
    second = folder / f"{case}.second"

    def stands_still(value: bytes) -> bytes:
        context = TaskContext.get()
        if int(value) == STILL_AT and context is not None:
            if context.attemptNumber():
                second.touch()
            else:
                while not (case == GOES_ON and second.exists()):
                    SystemClock().sleep(0.01)
        return value

    at = {"kafka.bootstrap.servers": bootstrap}
    begin = {"subscribe": HERE, "startingOffsets": "earliest", "minPartitions": str(PARTITIONS)}
    value = F.udf(stands_still, "binary", useArrow=False)("value").alias("value")
    rows = spark.readStream.format("lapse").options(**at, **begin).load().select(value, "partition")
    writer = rows.writeStream.format("lapse").options(**at, topic=case)
    writer = writer.option("checkpointLocation", str(folder / f"{case}.checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
