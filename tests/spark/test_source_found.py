"""`format("lapse")` in a session in which nobody has registered it: Spark finds `pyspark_lapse`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from lapse.spark import source
from lapse.spark.session.session import OpenSession
from tests.spark.processes import daemon_pids, forget_workers, kill, needs_proc, worker_pids
from tests.support.java import QUICK_JAVA
from tests.support.up import until

PUSHED = "spark.sql.python.filterPushdown.enabled"


def offsets_below(spark: SparkSession, logs: Path, offset: int) -> int:
    rows = spark.read.format("lapse").load(str(logs))
    return rows.where(f"offset < {offset} and partition = 1").count()


def test_it_needs_no_register(session: OpenSession, logs: Path) -> None:
    """A new session has nothing of what others have registered."""
    spark = session.spark.newSession()
    assert offsets_below(spark, logs, 10) == 10
    spark.sql(f"CREATE TEMPORARY VIEW a USING lapse OPTIONS (path '{logs}', columns 'offset')")
    assert spark.sql("SELECT count(*), max(offset) FROM a").collect() == [(600, 299)]
    segments = spark.read.format("lapse").option("view", "segments").load(str(logs))
    assert segments.where("topic = 'a'").count() == segments.count() > 1


def test_it_may_be_registered(session: OpenSession, logs: Path) -> None:
    """Once or again; settings of the session are left alone."""
    spark = session.spark.newSession()
    assert offsets_below(spark, logs, 10) == 10
    for pushed in ("false", "true"):
        spark.conf.set(PUSHED, pushed)
        source.register(spark)
        assert spark.conf.get(PUSHED) == pushed
        assert offsets_below(spark, logs, 20) == 20
    segments = spark.read.format("lapse").option("view", "segments").load(str(logs))
    assert segments.where("topic = 'b'").count() == 0
    other = session.spark.newSession()
    assert offsets_below(other, logs, 10) == 10


def test_conditions_leave_tasks_out(session: OpenSession, logs: Path) -> None:
    def tasks(**where: str) -> int:
        rows = spark.read.format("lapse").options(minPartitions="4", **where).load(str(logs))
        none_of_them = rows.where("topic = 'b'")
        assert none_of_them.count() == 0
        return none_of_them.rdd.getNumPartitions()

    spark = session.spark.newSession()
    assert tasks() >= 4
    assert tasks(where="topic = 'b'") == 1


def test_without_arrow_other_sources_go_on() -> None:
    """Spark imports every `pyspark_…` that is installed, for anybody's source in Python."""
    look = (
        "import sys; sys.modules['pyarrow'] = None; import pyspark_lapse; "
        "print(hasattr(pyspark_lapse, 'DefaultSource'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", look], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "False"
    assert "it needs the extra lapse[spark]" in done.stderr


@needs_proc
def test_other_tests_may_kill_daemons(session: OpenSession, logs: Path) -> None:
    """With more idle workers than a task has tries; who does so asks for `mended`."""
    rows = session.spark.read.format("lapse").option("columns", "offset").load(str(logs))
    for _ in range(4):
        rows = rows.mapInArrow(lambda some: some, rows.schema)
    for _ in range(3):
        assert rows.count() == 600
        kill(pids := worker_pids() | daemon_pids())
        until(lambda: not pids & (worker_pids() | daemon_pids()), "they live")
        forget_workers(session.spark)


def test_workers_of_another_python_are_told_of_before_a_query_fails(tmp_path: Path) -> None:
    python = tmp_path / "python3"
    python.write_text("#!/bin/sh\necho \"No module named 'lapse'\" >&2; exit 1\n")
    python.chmod(0o755)
    driver = (
        "from pyspark.sql import SparkSession; from lapse.spark import source; "
        "source.register(SparkSession.builder.master('local[1]').getOrCreate())"
    )
    environment = {**os.environ, **QUICK_JAVA, "PYSPARK_PYTHON": str(python)}
    done = subprocess.run(
        [sys.executable, "-c", driver], capture_output=True, text=True, check=False, timeout=120,
        env=environment,
    )  # fmt: skip
    assert done.returncode == 1
    assert f"Spark's workers run {python}: No module named 'lapse'" in done.stderr
    assert f"PYSPARK_PYTHON={sys.executable}" in done.stderr
