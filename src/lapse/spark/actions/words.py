"""Keyword arguments as the words of a command line."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

from pyspark.sql import SparkSession

from lapse.base.errors import ConfigError

PathLike = str | os.PathLike[str]


def words_of(command: str, place: str | None, options: Mapping[str, object]) -> tuple[str, ...]:
    """A command, what it is about, and its options, by their names with underscores.

    None and False are options that are not given, True is one without a value, and one that may be
    repeated has a list; `-c` has a mapping.
    """
    found = [command]
    for name, value in options.items():
        found += _words(name, value)
    if place is not None:
        found += ["--", place]
    return tuple(found)


def _words(name: str, value: object) -> Iterable[str]:
    if name == "-c":
        assert isinstance(value, Mapping)
        return [f"-c{key}={_text(text)}" for key, text in value.items()]
    option = "--" + name.replace("_", "-")
    if value is None or value is False:
        return []
    if value is True:
        return [option]
    many = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    return [f"{option}={one}" for one in many]


def _text(value: object) -> str:
    """Python's words for yes and no are not Kafka's."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def path_in(spark: SparkSession, name: str, path: PathLike | None) -> str | None:
    """A path as tasks see it. Raises ConfigError for one that means nothing there."""
    if path is None:
        return None
    text = os.fspath(path)
    if os.path.isabs(text):
        return text
    if is_connected(spark):
        raise ConfigError(
            f"{name}={text}: allowed is an absolute path, as Spark's workers see it: this client "
            "may run elsewhere"
        )
    return os.path.abspath(text)


def paths_in(
    spark: SparkSession, name: str, paths: PathLike | Sequence[PathLike] | None
) -> list[str]:
    """One path or several."""
    some = [paths] if isinstance(paths, (str, os.PathLike)) else paths or []
    return [found for path in some if (found := path_in(spark, name, path)) is not None]


def is_connected(spark: SparkSession) -> bool:
    """Whether a session is a client of Spark Connect."""
    return not hasattr(spark, "_jsparkSession")
