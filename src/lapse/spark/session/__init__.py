"""Spark sessions: the Java runtime, the master, the secret, and the error text when one ends.

    from lapse.spark import session

    spark = session.open_session(session.SessionOptions(app_name="mine")).spark

These names are looked up when they are used: other modules here serve commands that start
no Spark, and by the set-up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lapse.spark.session.session import OpenSession, SessionOptions, open_session

__all__ = ["OpenSession", "SessionOptions", "open_session"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from lapse.spark.session import session  # noqa: PLC0415

    return getattr(session, name)
