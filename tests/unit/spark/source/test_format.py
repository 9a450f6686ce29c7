"""What the page says of the source, and readers; reading through Spark is in `tests/spark`."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from pyspark.sql.datasource import DataSourceReader

from lapse.records.columns import TYPES
from lapse.spark.scan.options import OPTIONS
from lapse.spark.scan.plan import Slice
from lapse.spark.source.format import LapseReader, LapseSource
from lapse.spark.views.reader import ViewReader
from tests.support.log.logs import TP, append, batch, open_log


def test_the_page_names_every_option_and_column() -> None:
    page = (Path(__file__).parents[4] / "docs" / "data-source.md").read_text()
    for name in (*OPTIONS, *TYPES):
        assert f"`{name}`" in page, name


@pytest.mark.parametrize("reader", [LapseReader, ViewReader])
def test_spark_pushes_no_filters_down(reader: type[DataSourceReader]) -> None:
    """It keeps them with a `load()`, of which there may be several scans."""
    assert reader.pushFilters is DataSourceReader.pushFilters


def test_a_reader_travels_with_its_conditions(tmp_path: Path) -> None:
    log = open_log(tmp_path / str(TP))
    for _ in range(10):
        append(log, batch())
    source = LapseSource({"path": str(tmp_path), "columns": "offset", "where": "offset IN (7, 9)"})
    reader = source.reader(source.schema())
    assert isinstance(reader, LapseReader)
    (split,) = reader.partitions()
    (part,) = split.value
    assert isinstance(part, Slice)
    assert (part.offset_from, part.offset_until) == (7, 10)
    travelled = pickle.loads(pickle.dumps(reader))
    found = [offset for rows in travelled.read(split) for offset in rows["offset"].to_pylist()]
    assert found == [7, 9]
