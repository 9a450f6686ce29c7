"""`read_arrow`: the rows of `format("lapse")`, in as many tasks, and its errors."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from lapse.base.errors import ConfigError
from lapse.records.column_spec import TYPES
from lapse.spark import read_arrow
from lapse.spark.session.session import OpenSession

ALL = ",".join(TYPES)


@pytest.fixture
def spark(session: OpenSession) -> SparkSession:
    return session.spark


def by_source(spark: SparkSession, **options: str) -> DataFrame:
    return spark.read.format("lapse").options(**options).load()


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"columns": ALL},
        {"includeHeaders": "true"},
        {"columns": "offset"},
        {"subscribe": "a", "startingOffsets": '{"a":{"0":17,"1":-2}}', "minPartitions": "5"},
        {"columns": "value", "endingOffsets": '{"a":{"0":0,"1":0}}'},
        {"columns": "value", "where": "partition = 1 AND offset >= 250 AND key > 'k0'"},
    ],
)
def test_rows_and_types_are_those_of_the_source(
    given: dict[str, str], spark: SparkSession, logs: Path
) -> None:
    options = {"path": str(logs), **given}
    here, there = read_arrow(spark, options), by_source(spark, **options)
    assert here.schema == there.schema
    assert sorted(here.collect(), key=repr) == sorted(there.collect(), key=repr)
    assert here.rdd.getNumPartitions() == there.rdd.getNumPartitions()


def test_keywords_are_options(spark: SparkSession, logs: Path) -> None:
    rows = read_arrow(spark, {"columns": "key"}, path=str(logs), columns="partition,offset")
    assert rows.columns == ["partition", "offset"]
    assert rows.where("partition = 1 and offset < 10").count() == 10


def test_conditions_leave_out_records_and_tasks(spark: SparkSession, logs: Path) -> None:
    given = {"path": str(logs), "columns": "offset", "minPartitions": "8"}
    rows = read_arrow(spark, given, where="partition = 1 AND offset >= 290 AND offset != 295")
    assert sorted(row.offset for row in rows.collect()) == [*range(290, 295), *range(296, 300)]
    assert rows.rdd.getNumPartitions() < read_arrow(spark, given).rdd.getNumPartitions()


def test_where_it_ends_is_settled_when_it_is_called(spark: SparkSession, tmp_path: Path) -> None:
    from tests.support.log.logs import NOW, append, batch, open_log  # noqa: PLC0415

    log = open_log(tmp_path / "a-0")
    append(log, batch(timestamp=NOW))
    rows = read_arrow(spark, path=str(tmp_path), columns="offset")
    before = rows.count()
    append(log, batch(timestamp=NOW))
    assert rows.count() == before
    assert read_arrow(spark, path=str(tmp_path), columns="offset").count() == 2 * before


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"columns": "nonsense"}, "option columns"),
        ({"subscribe": "none"}, "there is no topic none"),
        ({"nonsense": "1"}, "unknown option nonsense"),
        ({"where": "offset"}, "option where='offset': at 7"),
        ({"maxOffsetsPerTrigger": "1"}, "maxOffsetsPerTrigger"),
    ],
)
def test_what_is_wrong_is_said_when_it_is_called(
    given: dict[str, str], said: str, spark: SparkSession, logs: Path
) -> None:
    with pytest.raises(ConfigError, match=said):
        read_arrow(spark, path=str(logs), **given)
