"""One `load()`, asked several times: each query has its own rows, whatever the others ask.

Spark 4.2 keeps the filters that it has pushed down to a source in Python with the `load()`, not
with the scan, and the last ones hold for all. So the source takes none.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from lapse.spark import source
from lapse.spark.session.session import OpenSession
from tests.support.log.logs import NOW, append, batch, open_log

PUSHED = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture(scope="module")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Offsets 0 to 29 of `orders`, and of `others` 0 to 2."""
    root = tmp_path_factory.mktemp("topics")
    log = open_log(root / "orders-0")
    for n in range(10):
        append(log, batch(timestamp=NOW + 10 * n))
    append(open_log(root / "others-0"), batch())
    return root


@pytest.fixture(scope="module", params=["false", "true"], ids=["registered", "with pushdown"])
def spark(request: pytest.FixtureRequest, session: OpenSession) -> SparkSession:
    """A session that has registered the source, and one that pushes filters down besides."""
    spark = session.spark.newSession()
    source.register(spark)
    assert spark.conf.get(PUSHED) == "false"
    spark.conf.set(PUSHED, request.param)
    return spark


@pytest.fixture
def orders(spark: SparkSession, topics: Path) -> DataFrame:
    return load(spark, topics)


def load(spark: SparkSession, topics: Path, **options: str) -> DataFrame:
    given = {"subscribe": "orders", "columns": "offset", **options}
    return spark.read.format("lapse").options(**given).load(str(topics))


def offsets(frame: DataFrame) -> list[int]:
    return sorted(row.offset for row in frame.collect())


def test_all_rows_after_some(orders: DataFrame) -> None:
    assert orders.where("offset < 5").count() == 5
    assert orders.count() == 30
    assert orders.where("offset >= 5").count() == 25


def test_some_rows_and_all_in_one_query(orders: DataFrame) -> None:
    assert offsets(orders.where("offset < 5").union(orders)) == sorted([*range(5), *range(30)])
    assert orders.where("offset < 5").exceptAll(orders).count() == 0


def test_two_filters_in_one_query(orders: DataFrame) -> None:
    first, last = orders.where("offset < 5"), orders.where("offset >= 20")
    assert offsets(first.union(last)) == [*range(5), *range(20, 30)]
    middle = orders.where("offset >= 3 and offset < 10")
    assert offsets(first.join(middle, "offset")) == [3, 4]


def test_what_is_planned_first_runs_last(orders: DataFrame) -> None:
    first, last = orders.where("offset < 5"), orders.where("offset >= 5")
    for frame in (first, last):
        frame.explain()
    assert (offsets(last), offsets(first)) == ([*range(5, 30)], [*range(5)])


def test_conditions_of_the_option_are_one_loads_own(spark: SparkSession, topics: Path) -> None:
    first, last = (load(spark, topics, where=where) for where in ("offset < 5", "offset >= 20"))
    assert offsets(first.union(last)) == [*range(5), *range(20, 30)]
    assert offsets(first.where("offset > 2").union(first)) == sorted([3, 4, *range(5)])
    assert offsets(load(spark, topics).intersect(last)) == [*range(20, 30)]


def test_a_table_of_sql(spark: SparkSession, topics: Path) -> None:
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW orders USING lapse "
        f"OPTIONS (path '{topics}', subscribe 'orders')"
    )
    asked = ("offset < 5", "offset >= 5", "true")
    counts = ", ".join(f"(SELECT count(*) FROM orders WHERE {one})" for one in asked)
    assert spark.sql(f"SELECT {counts}").collect() == [(5, 25, 30)]


@pytest.mark.parametrize("view", ["segments", "keys"])
def test_a_view(spark: SparkSession, topics: Path, view: str) -> None:
    rows = spark.read.format("lapse").option("view", view).load(str(topics))
    some, others = rows.where("topic = 'orders'"), rows.where("topic = 'others'")
    found = some.count(), others.count(), rows.count()
    assert found[0] > 0 < found[1]
    assert found[0] + found[1] == found[2] == some.union(others).count()
