"""Paths as Spark's workers see them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from lapse.base.errors import ConfigError
from lapse.spark.session.paths import path_in, paths_in


class Classic:
    _jsparkSession = None  # noqa: N815  (as PySpark has it)


CLASSIC: Any = Classic()
CONNECTED: Any = object()


def test_a_path_is_as_tasks_see_it() -> None:
    assert path_in(CLASSIC, "path", None) is None
    assert path_in(CLASSIC, "path", "data") == f"{os.getcwd()}/data"
    assert path_in(CONNECTED, "path", Path("/data")) == "/data"
    assert paths_in(CLASSIC, "replica", "/a") == paths_in(CLASSIC, "replica", ["/a"]) == ["/a"]
    assert paths_in(CONNECTED, "replica", ()) == []
    for text in ("file:/data", "file:///data"):  # as Spark and format("lapse") take it
        assert path_in(CLASSIC, "path", text) == path_in(CONNECTED, "path", text) == "/data"
    with pytest.raises(ConfigError, match="replica=b: allowed is an absolute path"):
        paths_in(CONNECTED, "replica", ["/a", "b"])


@pytest.mark.parametrize("spark", [CLASSIC, CONNECTED])
def test_a_uri_is_for_tables_alone(spark: Any) -> None:
    """A task would take it for a folder's name, below wherever it runs."""
    assert path_in(spark, "to", "s3://lake/t", may_be_uri=True) == "s3://lake/t"
    assert paths_in(spark, "table", ["s3://lake/t"], may_be_uri=True) == ["s3://lake/t"]
    with pytest.raises(ConfigError, match="replica=s3://lake/t: allowed is a path"):
        paths_in(spark, "replica", ["s3://lake/t"])
