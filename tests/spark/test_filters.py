"""The option `where`: the same rows as where Spark applies such conditions itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from lapse.spark import read_arrow, source
from lapse.spark.session.session import OpenSession
from lapse.testing.broker_process import BrokerProcess
from tests.support.log.logs import NOW

JUDGED = (
    "key = X'6B31'",
    "key <=> X'6B31'",
    "key in (X'6B31', X'6B39', X'')",
    "key is null",
    "value is null",
    "value is not null and headers is null",
    "key != X'6B31'",
    "key not in (X'6B31', X'6B39')",
    "key > X'6B35' and key <= X'6B3939'",
    "topic = 'txn-compact-lz4'",
    "topic like 'txn-%'",
    "topic like '%lz4'",
    "topic not like '%-compact-%'",
    "partition = 0 and offset >= 10 and offset <= 400",
    "offset in (1, 5, 10000)",
    "timestamp < timestamp '2024-01-01 00:00:00Z'",
    "timestamp >= timestamp '1970-01-01 00:00:00.001Z'",
    "timestamp <= timestamp '9999-12-31 23:59:59.999999Z'",
    "create_time is null",
    "append_time is not null",
    "is_tombstone = true",
    "is_tombstone <> true",
    "producer_id > 0",
    "timestampType <> 0",
    "horizon is not null",
)
SECONDS_MAX = 60


@pytest.fixture(scope="module")
def spark(session: OpenSession) -> SparkSession:
    source.register(session.spark)
    session.spark.conf.set("spark.sql.session.timeZone", "UTC")
    return session.spark


def read(spark: SparkSession, **options: str) -> DataFrame:
    return spark.read.format("lapse").options(**options).load()


def rows(spark: SparkSession, goldens: Path, **options: str) -> DataFrame:
    path = str(goldens / "golden-clean-shutdown")
    return read(spark, path=path, includeHeaders="true", **options)


def digest(frame: DataFrame) -> DataFrame:
    every = ", ".join(f"`{name}`" for name in frame.columns)
    return frame.selectExpr("count(*)", f"bit_xor(xxhash64({every}))")


@pytest.fixture(scope="module")
def by_spark(spark: SparkSession, goldens: Path) -> DataFrame:
    """All rows, which Spark has in its memory."""
    return rows(spark, goldens).cache()


@pytest.mark.parametrize("where", JUDGED)
def test_the_rows_are_those_that_spark_would_keep(
    spark: SparkSession, goldens: Path, by_spark: DataFrame, where: str
) -> None:
    asked = digest(rows(spark, goldens, where=where))
    assert asked.collect() == digest(by_spark.where(where)).collect()


def test_some_of_the_conditions_find_something(by_spark: DataFrame) -> None:
    """Else the comparison says little."""
    counts = by_spark.selectExpr(*(f"count_if({where})" for where in JUDGED)).collect()[0]
    assert sum(count > 0 for count in counts) > 15
    assert sum(0 < count < by_spark.count() for count in counts) > 10


def test_a_column_that_is_not_given_out_may_be_judged_by(
    spark: SparkSession, goldens: Path, by_spark: DataFrame
) -> None:
    given = {"path": str(goldens / "golden-clean-shutdown"), "where": "key is null"}
    expected = digest(by_spark.where("key is null").select("offset")).collect()
    for frame in (
        read(spark, **given, columns="offset"),
        spark.read.format("lapse").schema("offset bigint").options(**given).load(),
        read_arrow(spark, given, columns="offset"),
    ):
        assert frame.columns == ["offset"]
        assert digest(frame).collect() == expected


def test_a_table_of_sql_has_it_too(spark: SparkSession, goldens: Path, by_spark: DataFrame) -> None:
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW judged USING lapse "
        f"OPTIONS (path '{goldens / 'golden-clean-shutdown'}', includeHeaders 'true', "
        "where \"topic = 'txn-compact-lz4' AND offset < 9\")"
    )
    expected = digest(by_spark.where("topic = 'txn-compact-lz4' and offset < 9")).collect()
    assert digest(spark.table("judged")).collect() == expected


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("key = X'6B31' or offset < 3", "at 15: or is not AND"),
        ("offset % 7 = 3", "at 8: % 7 = 3 is no word"),
        ("partition in (0, null)", "at 18: partition is compared with a whole number"),
        ("create_time > timestamp '2024-01-01 00:00:00'", "does not say its zone"),
    ],
)
def test_what_might_mean_something_else_is_refused(
    spark: SparkSession, goldens: Path, where: str, said: str
) -> None:
    with pytest.raises(PySparkException, match=f"option where=.*{said}.*understood are conditions"):
        rows(spark, goldens, where=where).count()


# --- from a broker --------------------------------------------------------------------------------


def test_from_a_broker_likewise(spark: SparkSession, tmp_path: Path) -> None:
    """And of what cannot be wanted there are no tasks."""
    with BrokerProcess(tmp_path / "data", {"num.partitions": "2"}) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap, "compression.type": "lz4"})
        for n in range(400):
            key = b"k%d" % (n % 10) if n % 4 else None
            producer.produce("b", b"v%d" % n, key, partition=n % 2, timestamp=NOW + n)
        assert not producer.flush(SECONDS_MAX)
        given = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "b"}
        everything = read(spark, **given).cache()
        assert everything.count() == 400
        for where, count in (
            ("key is null", 100),
            ("key in ('k1', 'k3') and partition = 1", 80),
            ("offset >= 150 and offset < 160", 20),
            ("timestamp >= timestamp '2023-11-14T22:13:20.390Z'", 10),
            ("topic = 'c'", 0),
        ):
            found = read(spark, **given, where=where)
            assert found.count() == count, where
            assert digest(found).collect() == digest(everything.where(where)).collect()
        few = read(spark, **given, minPartitions="6", where="partition = 1 and offset >= 199")
        assert few.rdd.getNumPartitions() == 1
        assert read(spark, **given, minPartitions="6").rdd.getNumPartitions() == 6
