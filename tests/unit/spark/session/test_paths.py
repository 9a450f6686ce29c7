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
    assert path_in(CLASSIC, "to", "s3://lake/t") == "s3://lake/t"
    assert path_in(CONNECTED, "to", "s3://lake/t") == "s3://lake/t"
    with pytest.raises(ConfigError, match="replica=b: allowed is an absolute path"):
        paths_in(CONNECTED, "replica", ["/a", "b"])
