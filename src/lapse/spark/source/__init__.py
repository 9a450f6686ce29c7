"""`format("lapse")`: logs and topics as a data source of Spark's, to read, to stream and to write.

spark.read.format("lapse").option("path", "/data").load()
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lapse.spark.source.format import SETTINGS, LapseSource, register

__all__ = ["SETTINGS", "LapseSource", "register"]


def __getattr__(name: str) -> Any:
    """Spark is imported when one of these names is used; `progress` does without it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from lapse.spark.source import format as of_spark  # noqa: PLC0415

    return getattr(of_spark, name)
