"""Filters that the source takes from Spark: the same rows as where Spark applies them itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from lapse.spark import source
from lapse.spark.session.session import OpenSession

FILTERS = "spark.sql.python.filterPushdown.enabled"
TAKEN = (
    "key = X'6B31'",
    "key <=> X'6B31'",
    "key in (X'6B31', X'6B39', X'')",
    "key is null",
    "value is null",
    "value is not null and headers is null",
    "not (key = X'6B31')",
    "not (key in (X'6B31', X'6B39'))",
    "key > X'6B35' and key <= X'6B3939'",
    "topic = 'txn-compact-lz4'",
    "topic like 'txn-%'",
    "topic like '%lz4' or false",
    "topic like '%-compact-%'",
    "partition = 0 and offset between 10 and 400",
    "offset in (1, 5, 10000)",
    "timestamp < timestamp '2024-01-01 00:00:00'",
    "timestamp >= timestamp '1970-01-01 00:00:00.001'",
    "timestamp <= timestamp '9999-12-31 23:59:59.999999'",
    "create_time is null",
    "append_time is not null",
    "is_tombstone",
    "not is_tombstone",
    "producer_id > 0",
    "timestampType <> 0",
    "horizon is not null",
)
LEFT = (
    "key = X'6B31' or offset < 3",
    "offset % 7 = 3",
    "key is null and length(value) > 10",
    "partition in (0, null)",
)


@pytest.fixture(scope="module")
def spark(session: OpenSession) -> SparkSession:
    source.register(session.spark)
    session.spark.conf.set("spark.sql.session.timeZone", "UTC")
    return session.spark


def rows(spark: SparkSession, path: Path) -> DataFrame:
    return spark.read.format("lapse").option("includeHeaders", "true").load(str(path))


def digest(frame: DataFrame) -> DataFrame:
    every = ", ".join(f"`{name}`" for name in frame.columns)
    return frame.selectExpr("count(*)", f"bit_xor(xxhash64({every}))")


def has_filter(frame: DataFrame) -> bool:
    return "Filter " in frame._jdf.queryExecution().executedPlan().toString()


@pytest.fixture(scope="module")
def by_spark(spark: SparkSession, goldens: Path) -> DataFrame:
    """All rows, where Spark reads them from Parquet and no source of ours sees a filter."""
    return rows(spark, goldens / "golden-clean-shutdown").cache()


@pytest.mark.parametrize("where", TAKEN)
def test_a_filter_that_is_taken_is_not_applied_again(
    spark: SparkSession, goldens: Path, by_spark: DataFrame, where: str
) -> None:
    asked = digest(rows(spark, goldens / "golden-clean-shutdown").where(where))
    assert not has_filter(asked)
    assert asked.collect() == digest(by_spark.where(where)).collect()


@pytest.mark.parametrize("where", LEFT)
def test_what_is_not_taken_spark_applies(
    spark: SparkSession, goldens: Path, by_spark: DataFrame, where: str
) -> None:
    asked = digest(rows(spark, goldens / "golden-clean-shutdown").where(where))
    assert has_filter(asked)
    assert asked.collect() == digest(by_spark.where(where)).collect()


def test_some_of_the_filters_find_something(by_spark: DataFrame) -> None:
    """Else the comparison says little."""
    counts = by_spark.selectExpr(*(f"count_if({where})" for where in TAKEN)).collect()[0]
    assert sum(count > 0 for count in counts) > 15
    assert sum(0 < count < by_spark.count() for count in counts) > 10


def test_a_column_that_is_not_asked_for_may_not_be_filtered_by(
    spark: SparkSession, goldens: Path
) -> None:
    """Spark itself says so: the source has the columns of its option."""
    frame = spark.read.format("lapse").option("columns", "offset")
    with pytest.raises(Exception, match="UNRESOLVED_COLUMN"):
        frame.load(str(goldens / "golden-clean-shutdown")).where("key is null").count()
