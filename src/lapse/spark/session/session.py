"""A Spark session as lean as rounds allow: no pages, one small JVM, workers that begin warm.

Called by `lapse lifecycle`, `lapse clean --engine spark` and the tests. Only plans and receipts
cross the JVM, so it needs little memory; the work is done by Python workers that fork from our own
daemon. Rounds use the RDD API alone; only the data source (`spark.source.format`) needs pyarrow.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from lapse.base.errors import LapseError
from lapse.base.fs import temporary_folder
from lapse.base.host import processors
from lapse.lifecycle.round.slots import local_slots, within_cores
from lapse.spark.session import class_archive
from lapse.spark.session.errors import in_one_line
from lapse.spark.session.java import Java, find_java
from lapse.spark.session.master import check_admission, check_master
from lapse.spark.session.noise import wait_for_the_rest, without_noise
from lapse.spark.session.security import (
    check_cluster,
    is_on_this_machine,
    security_settings,
    without_secrets,
)
from lapse.spark.session.user_settings import spark_defaults, that_win

JVM_STOP_SECONDS_MAX = 5.0
TASK_ATTEMPTS_MAX = 4  # a worker that is killed costs one of them
_LOCAL = re.compile(r"local(\[[^,\]]*\])?")
_LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")
_POOLS = Path(__file__).with_name("pools.xml")
BULK, MUST_CLEAN = "bulk", "must-clean"  # pools of that file

# Java would begin with a sixty-fourth of the machine's memory, and keep what it once had.
_SMALL_HEAP = "-Xms48m -XX:MinHeapFreeRatio=10 -XX:MaxHeapFreeRatio=25"
JAVA_OPTIONS = "spark.driver.extraJavaOptions"

SETTINGS: Mapping[str, str] = {
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.driver.memory": "1g",
    JAVA_OPTIONS: (
        f"-XX:+UseSerialGC {_SMALL_HEAP} -Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()}"
    ),
    "spark.sql.catalogImplementation": "in-memory",
    "spark.python.daemon.module": "lapse.spark.rounds.daemon",
    "spark.python.worker.reuse": "true",
    "spark.scheduler.mode": "FAIR",
    "spark.scheduler.allocation.file": _POOLS.as_uri(),
    "spark.task.maxFailures": str(TASK_ATTEMPTS_MAX),
}


_folders: list[Path] = []  # of this process's JVM: one, or none
_rest = contextlib.ExitStack()  # what is undone once it is gone


class SparkFailed(LapseError):
    """Spark did not start."""


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """How a session differs from the usual.

    Attributes:
        master: a Spark master; `local[N]` gets retries of its tasks, which Spark gives it not. With
            one that has other machines, PYSPARK_PYTHON names the Python there, and Spark's own
            settings (SPARK_LOCAL_IP, spark.driver.host) the address they reach us by.
        settings: Spark settings of the caller's, in place of ours.
        said: of the user's, which win over those (`user_settings`).
        when_starting: called before Java is started, which takes a while.
        cores_max: tasks that run at once, 0 for as many as the master has; of masters with other
            machines only Spark's own know such a limit (YARN and Kubernetes count executors).
    """

    master: str = "local[*]"
    app_name: str = "lapse"
    settings: Mapping[str, str] = field(default_factory=dict)
    cores_max: int = 0
    said: Mapping[str, str] = field(default_factory=dict)
    when_starting: Callable[[], None] = lambda: None


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
    os.environ.update(JAVA_HOME=str(java.home), PYSPARK_DRIVER_PYTHON=sys.executable)
    if is_on_this_machine(options.master):
        os.environ.update(SPARK_LOCAL_IP="127.0.0.1")
    if local_slots(options.master, 1) is not None:  # executors may have another
        os.environ.update(PYSPARK_PYTHON=sys.executable)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # Numeric libraries start a thread a core at import; a daemon that forks must have none.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        return OpenSession(_start(options, class_archive.java_options(java, os.environ)), java)
    except (PySparkException, Py4JError, OSError) as e:
        reason = _reason(e)  # read while there is a JVM
        stop_jvm()
        raise SparkFailed(
            f"Spark did not start at {options.master} on {java.describe()}: {reason}"
        ) from e
    except BaseException:
        stop_jvm()
        raise


def _reason(error: Exception) -> str:
    with contextlib.suppress(Py4JError, OSError):
        return in_one_line(str(error))
    return f"{type(error).__name__}, and its Java is gone"


def _start(options: SessionOptions, archive: str) -> SparkSession:
    """Start Java first, with the settings that are not secret, then the session, with all."""
    folder = _own_folder()
    theirs = that_win(options.master, options.said, spark_defaults(os.environ))
    java = f'{SETTINGS[JAVA_OPTIONS]} "-Djava.io.tmpdir={folder}" {archive}'.rstrip()
    settings = {
        **SETTINGS,
        **security_settings(options.master, folder),
        "spark.app.name": options.app_name,
        **options.settings,
        **theirs,
        JAVA_OPTIONS: " ".join([java, *_java_options_beside(options.settings, theirs)]),
        "spark.master": with_retries(within_cores(options.master, options.cores_max, processors())),
    }
    if options.cores_max:
        settings["spark.cores.max"] = str(options.cores_max)
    parts = without_secrets(settings)
    if SparkContext._gateway is None:
        options.when_starting()
        conf = SparkConf(loadDefaults=False).setAll(list(parts.at_start.items()))
        with without_noise() as stderr:
            gateway = launch_gateway(conf, {"stderr": stderr})  # type: ignore[no-untyped-call]
        SparkContext._ensure_initialized(gateway=gateway)
        _leave_folder_to_jvm(folder)
    in_force = {**dict(SparkConf().getAll()), **settings}  # spark-defaults.conf, and ours
    settings.update(check_cluster(options.master, in_force))
    check_admission(SparkContext._jvm, options.master, {**in_force, **settings})
    builder = SparkSession.builder
    for name, text in settings.items():
        builder = builder.config(name, text)
    return builder.getOrCreate()


def _java_options_beside(*settings: Mapping[str, str]) -> list[str]:
    """What callers and users ask of Java, beside ours and not in their place."""
    return [each[JAVA_OPTIONS] for each in settings if each.get(JAVA_OPTIONS)]


def _own_folder() -> Path:
    """The session's temporary files and sockets, as long as there is a JVM."""
    if not _folders:
        _folders.append(_rest.enter_context(temporary_folder("spark")))
    return _folders[0]


def _leave_folder_to_jvm(folder: Path) -> None:
    """It lives a little longer than a process that is killed, and clears up."""
    jvm = SparkContext._jvm
    assert jvm is not None
    hooks = jvm.org.apache.spark.util.ShutdownHookManager
    hooks.registerShutdownDeleteDir(jvm.java.io.File(str(folder)))


def with_retries(master: str) -> str:
    """`local[*]` as `local[*,4]`: without the number Spark tries a local task only once."""
    found = _LOCAL.fullmatch(master)
    if found is None:
        return master
    threads = (found[1] or "[1]")[1:-1]
    return f"local[{threads},{TASK_ATTEMPTS_MAX}]"


def stop_jvm(seconds_max: float = JVM_STOP_SECONDS_MAX) -> None:
    """End this process's JVM and wait for it; a later `open_session` starts another.

    Without this it ends a moment after this process, when a waiting parent takes it for gone.
    """
    gateway = SparkContext._gateway
    if gateway is not None:
        with contextlib.suppress(Py4JError, OSError):
            gateway.shutdown()
        process = gateway.proc
        process.stdin.close()
        try:
            process.wait(seconds_max)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        SparkContext._gateway = SparkContext._jvm = None
        wait_for_the_rest(seconds_max)
    _folders.clear()
    _rest.close()
