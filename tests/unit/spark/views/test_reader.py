"""A view's reader, and what is refused; rows by Spark are in `tests/spark`."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql.types import IntegerType, StringType, StructType

from lapse.base.errors import ConfigError
from lapse.spark.source.format import LapseSource
from lapse.spark.views import SCHEMAS
from lapse.spark.views.reader import ViewReader, view_schema
from tests.support.spark.views.fleet import make_fleet


def test_a_reader_plans_and_reads(tmp_path: Path) -> None:
    given = {"view": "keys", "path": str(make_fleet(tmp_path / "data")), "subscribe": "b"}
    schema = StructType().add("topic", StringType()).add("partition", IntegerType())
    reader = ViewReader(given, schema)
    found = [row for unit in reader.partitions() for rows in reader.read(unit) for row in
             rows.to_pylist()]  # fmt: skip
    assert found == [{"topic": "b", "partition": 0}] * 3
    (tmp_path / "empty").mkdir()
    reader = ViewReader({"view": "keys", "path": str(tmp_path / "empty")}, schema)
    assert [list(reader.read(unit)) for unit in reader.partitions()] == [[]]


@pytest.mark.parametrize("view", SCHEMAS)
def test_columns_say_what_they_mean(view: str) -> None:
    schema = view_schema({"view": view, "path": "/a"})
    assert schema.fieldNames() == SCHEMAS[view].names
    assert all(field.metadata["comment"] for field in schema.fields)


def test_what_is_refused() -> None:
    plan = {"view": "plan", "path": "/a"}
    with pytest.raises(ConfigError, match="option view='plans'"):
        LapseSource({**plan, "view": "plans"}).schema()
    with pytest.raises(ConfigError, match="nosuchoption"):
        LapseSource({**plan, "nosuchoption": "1"}).schema()
    with pytest.raises(ConfigError, match="option where: is of records, and a view has none"):
        LapseSource({**plan, "where": "topic = 'a'"}).schema()
    with pytest.raises(ConfigError, match="no column topic:int: there are log_dir string"):
        LapseSource(plan).reader(StructType().add("topic", IntegerType()))
    with pytest.raises(ConfigError, match="a view is no stream"):
        LapseSource(plan).streamReader(view_schema(plan))
