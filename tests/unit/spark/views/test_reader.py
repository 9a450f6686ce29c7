"""What filters leave out of a view, and what is refused; rows by Spark are in `tests/spark`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)
from pyspark.sql.types import IntegerType, StringType, StructType

from lapse.base.errors import ConfigError
from lapse.spark.source.format import LapseSource
from lapse.spark.views import SCHEMAS, ViewFilter
from lapse.spark.views.reader import FilteringViewReader, narrow, view_schema
from tests.support.spark.views.fleet import make_fleet

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NOON_MS = 1_767_268_800_000
MICRO = timedelta(microseconds=1)


@pytest.mark.parametrize(
    ("view", "filters", "expected"),
    [
        ("plan", [EqualTo(("topic",), "a")], ViewFilter(topics=("a",))),
        ("keys", [In(("topic",), ("b", "a", None))], ViewFilter(topics=("a", "b"))),
        ("plan", [In(("partition",), (1, 2)), EqualTo(("partition",), 2)],
         ViewFilter(partitions=(2,))),
        ("plan", [EqualTo(("topic",), "a"), EqualTo(("topic",), "b")], ViewFilter(topics=())),
        ("plan", [GreaterThanOrEqual(("deadline",), NOON)], ViewFilter(time_from_ms=NOON_MS)),
        ("plan", [GreaterThan(("deadline",), NOON)], ViewFilter(time_from_ms=NOON_MS + 1)),
        ("ledger", [GreaterThanOrEqual(("committed",), NOON + MICRO)],
         ViewFilter(time_from_ms=NOON_MS + 1)),
        ("keys", [LessThan(("timestamp",), NOON)], ViewFilter(time_until_ms=NOON_MS)),
        ("keys", [LessThan(("timestamp",), NOON + MICRO)], ViewFilter(time_until_ms=NOON_MS + 1)),
        ("keys", [LessThanOrEqual(("timestamp",), NOON)], ViewFilter(time_until_ms=NOON_MS + 1)),
        ("keys", [EqualTo(("timestamp",), NOON)],
         ViewFilter(time_from_ms=NOON_MS, time_until_ms=NOON_MS + 1)),
        # Not understood: nothing is left out.
        ("ledger", [In(("committed",), (NOON, NOON + MICRO))], ViewFilter()),
        ("plan", [StringStartsWith(("topic",), "a"), EqualTo(("kind",), "clean")], ViewFilter()),
        ("segments", [GreaterThan(("max_timestamp",), NOON)], ViewFilter()),
        ("plan", [GreaterThan(("until",), NOON)], ViewFilter()),
    ],
)  # fmt: skip
def test_filters_exclude_what_they_say(
    view: str, filters: list[Filter], expected: ViewFilter
) -> None:
    assert narrow(view, ViewFilter(), filters) == expected


def test_filters_narrow_what_is_subscribed() -> None:
    known = ViewFilter(topics=("a", "b"), time_from_ms=NOON_MS, time_until_ms=NOON_MS + 5)
    found = narrow(
        "plan", known,
        [In(("topic",), ("b", "c")), GreaterThan(("deadline",), NOON - timedelta(days=1)),
         LessThan(("deadline",), NOON + timedelta(days=1))],
    )  # fmt: skip
    assert found == ViewFilter(("b",), None, NOON_MS, NOON_MS + 5)


def test_a_reader_plans_and_reads(tmp_path: Path) -> None:
    given = {"view": "keys", "path": str(make_fleet(tmp_path / "data"))}
    schema = StructType().add("topic", StringType()).add("partition", IntegerType())
    reader = FilteringViewReader(given, schema)
    reader.pushFilters([EqualTo(("topic",), "b")])
    found = [row for unit in reader.partitions() for rows in reader.read(unit) for row in
             rows.to_pylist()]  # fmt: skip
    assert found == [{"topic": "b", "partition": 0}] * 3
    reader.pushFilters([EqualTo(("topic",), "c")])
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
    with pytest.raises(ConfigError, match="no column topic:int: there are log_dir string"):
        LapseSource(plan).reader(StructType().add("topic", IntegerType()))
    with pytest.raises(ConfigError, match="a view is no stream"):
        LapseSource(plan).streamReader(view_schema(plan))
