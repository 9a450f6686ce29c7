"""Spark's own cluster: a master and workers, as `start-master.sh` and `start-worker.sh` start them.

Each worker is a host of its own to Spark, at an address of this machine. All have one secret, in
the `spark-defaults.conf` of a folder that drivers name in SPARK_CONF_DIR too.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pyspark

from lapse.spark.session.java import find_java
from lapse.testing.ports import own_port
from tests.support.java import QUICK_JAVA

CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
DEPLOY = "org.apache.spark.deploy"
HERE = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Standalone:
    """A cluster; executors run below its workers, whose pids are in the order of their hosts.

    Attributes:
        environment: of a driver that is to be let in.
    """

    url: str
    worker_pids: tuple[int, ...]
    environment: Mapping[str, str]


def spark_defaults(folder: Path, **settings: str) -> dict[str, str]:
    """A folder of Spark's settings, its owner's alone, and the variable that names it.

    Names are without `spark.`, and `__` stands for a dot.
    """
    folder.mkdir(mode=0o700)
    lines = [f"spark.{name.replace('__', '.')} {text}\n" for name, text in settings.items()]
    (folder / "spark-defaults.conf").write_text("".join(lines))
    return {"SPARK_CONF_DIR": str(folder)}


@contextlib.contextmanager
def standalone(
    folder: Path, *hosts: str, cores: int = 2, environment: Mapping[str, str] | None = None
) -> Iterator[Standalone]:
    """A worker at each host, or one at 127.0.0.1, with so many cores; closed if nothing is said."""
    port = str(own_port())
    environment = environment or spark_defaults(
        folder / "conf", authenticate="true", authenticate__secret=secrets.token_hex(16),
        network__crypto__enabled="true",
    )  # fmt: skip
    with contextlib.ExitStack() as stack:
        master = _started(
            "master.Master", HERE, environment, "--port", port, says=r"spark://[\d.:]+"
        )
        url, _ = stack.enter_context(master)
        pids = []
        for host in hosts or (HERE,):
            worker = _started(
                "worker.Worker", host, environment, "--cores", str(cores), "--memory", "1g",
                "--work-dir", str(folder / f"work-{host}"), url, says="Successfully registered",
            )  # fmt: skip
            pids.append(stack.enter_context(worker)[1])
        yield Standalone(url, tuple(pids), environment)


@contextlib.contextmanager
def _started(
    what: str, host: str, environment: Mapping[str, str], *words: str, says: str
) -> Iterator[tuple[str, int]]:
    """A process, by what it says when it is up, and its pid."""
    environment = {**os.environ, **QUICK_JAVA, **environment, "SPARK_LOCAL_IP": host,
                   "JAVA_HOME": str(find_java(os.environ).home)}  # fmt: skip
    process = subprocess.Popen(
        [CLASS, f"{DEPLOY}.{what}", "--host", host, "--webui-port", "0", *words],
        env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        yield _until(process.stderr, says), process.pid
    finally:
        process.terminate()
        process.communicate()


def _until(log: IO[str], says: str) -> str:
    told = []
    for line in log:
        told.append(line)
        found = re.search(says, line)
        if found is not None:
            return found[0]
    raise AssertionError("".join(told))
