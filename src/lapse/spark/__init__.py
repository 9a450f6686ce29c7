"""Lapse on Spark, through PySpark: the only package that knows Spark (ADR-9).

    from lapse.spark import actions, read_arrow, source

Rounds of the lifecycle service, the data source `format("lapse")`, what commands do as functions of
a session (`actions`), and records as a DataFrame (`read_arrow`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lapse.base.extras import needed_for

if TYPE_CHECKING:
    from lapse.spark.arrow import read_arrow

__all__ = ["read_arrow"]


def __getattr__(name: str) -> Any:
    """Spark is imported when the name is used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with needed_for("lapse.spark.read_arrow"):
        from lapse.spark.arrow import read_arrow  # noqa: PLC0415

    return read_arrow
