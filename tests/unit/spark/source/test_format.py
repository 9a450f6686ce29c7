"""What the page says of the source; reading through Spark is in `tests/spark`."""

from __future__ import annotations

from pathlib import Path

from lapse.records.columns import TYPES
from lapse.spark.scan.options import OPTIONS


def test_the_page_names_every_option_and_column() -> None:
    page = (Path(__file__).parents[4] / "docs" / "data-source.md").read_text()
    for name in (*OPTIONS, *TYPES):
        assert f"`{name}`" in page, name
