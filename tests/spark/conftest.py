"""One Spark session for all tests of this folder (it takes seconds to start)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lapse.base.clock import SystemClock
from lapse.spark.engine import SparkEngine
from lapse.spark.session import OpenSession, SessionOptions, open_session


@pytest.fixture(scope="session")
def session() -> Iterator[OpenSession]:
    opened = open_session(SessionOptions(master="local[2]", app_name="lapse tests"))
    yield opened
    opened.spark.stop()


@pytest.fixture(scope="session")
def engine(session: OpenSession) -> SparkEngine:
    made = SparkEngine(session.spark, SystemClock())
    made.warm_up()
    return made
