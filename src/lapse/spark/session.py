"""A Spark session as lean as rounds allow: no pages, one small JVM, workers that begin warm.

Called by `lapse lifecycle`, `lapse clean --engine spark` and the tests. Only plans and receipts
cross the JVM, so it needs little memory; the work is done by Python workers that fork from our own
daemon. Rounds use the RDD API alone; only the data source (`spark.source`) needs pyarrow.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lapse.base.errors import LapseError
from lapse.base.host import processors
from lapse.base.java import Java, find_java
from lapse.spark.bins import local_slots, within_cores
from lapse.spark.master import check_master
from lapse.spark.trouble import in_one_line

_JVM_STOP_SECONDS_MAX = 5.0
TASK_ATTEMPTS_MAX = 4  # a worker that is killed costs one of them
_LOCAL = re.compile(r"local(\[[^,\]]*\])?")
_LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")
_POOLS = Path(__file__).with_name("pools.xml")
BULK, MUST_CLEAN = "bulk", "must-clean"  # pools of that file

# Java would begin with a sixty-fourth of the machine's memory, and keep what it once had.
_SMALL_HEAP = "-Xms48m -XX:MinHeapFreeRatio=10 -XX:MaxHeapFreeRatio=25"

SETTINGS: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": (
        f"-XX:+UseSerialGC {_SMALL_HEAP} -Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()}"
    ),
    "spark.sql.catalogImplementation": "in-memory",
    "spark.python.daemon.module": "lapse.spark.daemon",
    "spark.python.worker.reuse": "true",
    "spark.scheduler.mode": "FAIR",
    "spark.scheduler.allocation.file": _POOLS.as_uri(),
    "spark.task.maxFailures": str(TASK_ATTEMPTS_MAX),
}

# Where all of Spark runs on this machine nobody else is to reach it.
ON_THIS_MACHINE: Mapping[str, str] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


class SparkFailed(LapseError):
    """Spark did not start."""


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """How a session differs from the usual.

    Attributes:
        master: a Spark master; `local[N]` gets retries of its tasks, which Spark gives it not. With
            one that has other machines, PYSPARK_PYTHON names the Python there, and Spark's own
            settings (SPARK_LOCAL_IP, spark.driver.host) the address they reach us by.
        settings: Spark settings that win over ours.
        cores_max: tasks that run at once, 0 for as many as the master has; of masters with other
            machines only Spark's own know such a limit (YARN and Kubernetes count executors).
    """

    master: str = "local[*]"
    app_name: str = "lapse"
    settings: Mapping[str, str] = field(default_factory=dict)
    cores_max: int = 0


@dataclass(frozen=True, slots=True)
class OpenSession:
    """A session, and the Java it runs on."""

    spark: SparkSession
    java: Java


def open_session(options: SessionOptions) -> OpenSession:
    """Start Spark in this process.

    Raises ConfigError for what is no master, NoMaster where it does not answer, JavaNotFound,
    saying what to install; SparkFailed with Spark's own reason.
    """
    check_master(options.master)
    java = find_java(os.environ)
    is_here = options.master.startswith("local")
    os.environ.update(JAVA_HOME=str(java.home), PYSPARK_DRIVER_PYTHON=sys.executable)
    if is_here:
        os.environ.update(SPARK_LOCAL_IP="127.0.0.1")
    if local_slots(options.master, 1) is not None:  # executors may have another
        os.environ.update(PYSPARK_PYTHON=sys.executable)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # Numeric libraries start a thread a core at import; a daemon that forks must have none.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    master = with_retries(within_cores(options.master, options.cores_max, processors()))
    builder = SparkSession.builder.master(master).appName(options.app_name)
    ours = {**SETTINGS, **(ON_THIS_MACHINE if is_here else {})}
    if options.cores_max:
        ours["spark.cores.max"] = str(options.cores_max)
    for name, text in {**ours, **options.settings}.items():
        builder = builder.config(name, text)
    try:
        spark = builder.getOrCreate()
    except (PySparkException, Py4JError, OSError) as e:
        stop_jvm()
        raise SparkFailed(
            f"Spark did not start at {options.master} on {java.describe()}: {in_one_line(str(e))}"
        ) from e
    return OpenSession(spark, java)


def with_retries(master: str) -> str:
    """`local[*]` as `local[*,4]`: without the number Spark tries a local task only once."""
    found = _LOCAL.fullmatch(master)
    if found is None:
        return master
    threads = (found[1] or "[1]")[1:-1]
    return f"local[{threads},{TASK_ATTEMPTS_MAX}]"


def stop_jvm() -> None:
    """End this process's JVM and wait for it; a later `open_session` starts another.

    Left alone it ends a moment after this process, and whoever waits for us would think all gone.
    """
    gateway = SparkContext._gateway
    if gateway is None:
        return
    with contextlib.suppress(Py4JError, OSError):
        gateway.shutdown()
    process = gateway.proc
    process.stdin.close()
    try:
        process.wait(_JVM_STOP_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    SparkContext._gateway = SparkContext._jvm = None
