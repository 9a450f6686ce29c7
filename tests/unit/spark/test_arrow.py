"""What `read_arrow` makes of its options before a task sees them."""

from __future__ import annotations

from typing import Any

import pytest

from lapse.spark import arrow
from lapse.spark.scan.options import parse_options
from tests.unit.spark.session.test_paths import CLASSIC, CONNECTED


@pytest.mark.parametrize("spark", [CLASSIC, CONNECTED])
@pytest.mark.parametrize("text", ["file:/data, /more", "file:///data,/more,"])
def test_paths_mean_what_they_mean_to_the_data_source(spark: Any, text: str) -> None:
    paths = arrow._paths(spark, text)
    assert paths == "/data,/more"
    assert parse_options({"path": paths}).paths == parse_options({"path": text}).paths
