"""Paths as Spark's workers see them, who may be elsewhere than who names them."""

from __future__ import annotations

import os
from collections.abc import Sequence

from pyspark.sql import SparkSession

from lapse.base.bucket import is_bucket
from lapse.base.errors import ConfigError
from lapse.spark.session.folders import directory

PathLike = str | os.PathLike[str]


def path_in(
    spark: SparkSession, name: str, path: PathLike | None, *, may_be_uri: bool = False
) -> str | None:
    """A path as tasks see it, or a URI; Spark's `file:` before it is taken off.

    Raises ConfigError for one that means nothing there.
    """
    if path is None:
        return None
    text = os.fspath(path)
    if text.startswith("file:"):
        text = str(directory(text))
    if is_bucket(text) and not may_be_uri:
        raise ConfigError(f"{name}={text}: allowed is a path, as Spark's workers see it")
    if os.path.isabs(text) or is_bucket(text):
        return text
    if is_connected(spark):
        raise ConfigError(
            f"{name}={text}: allowed is an absolute path, as Spark's workers see it: this client "
            "may run elsewhere"
        )
    return os.path.abspath(text)


def paths_in(
    spark: SparkSession,
    name: str,
    paths: PathLike | Sequence[PathLike] | None,
    *,
    may_be_uri: bool = False,
) -> list[str]:
    """One path or several."""
    some = [paths] if isinstance(paths, (str, os.PathLike)) else paths or []
    found = (path_in(spark, name, path, may_be_uri=may_be_uri) for path in some)
    return [path for path in found if path is not None]


def is_connected(spark: SparkSession) -> bool:
    """Whether a session is a client of Spark Connect."""
    return not hasattr(spark, "_jsparkSession")
