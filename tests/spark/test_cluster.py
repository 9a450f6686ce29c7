"""Rounds on executors that are processes of their own: the bytes that one process makes."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pyspark
import pytest

from lapse.base.java import find_java
from lapse.lifecycle.round.ledger import LEDGER_FILE
from lapse.testing.clock import ManualClock
from tests.oracle.kafka import free_port
from tests.spark.conftest import QUICK_JAVA
from tests.unit.lifecycle.rounds import NOW, compacted, make_logs, overwritten

CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
DEPLOY = "org.apache.spark.deploy"
SECONDS_MAX = 120


def cleaned(data: Path, *engine: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "lapse.cli.main", "clean", data, "--force", "--now", str(NOW),
         "-c", "cleanup.policy=compact", "--json", *engine],
        env={**os.environ, **QUICK_JAVA}, capture_output=True, text=True, timeout=SECONDS_MAX,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count('"outcome":"cleaned"') == len(list(data.glob("t*")))


def files(data: Path) -> dict[str, bytes]:
    """All but what a round's id is in."""
    return {
        str(path.relative_to(data)): path.read_bytes()
        for path in data.rglob("*")
        if path.is_file() and path.name != LEDGER_FILE
    }


@contextlib.contextmanager
def started(what: str, *words: str, says: str) -> Iterator[str]:
    """A process of Spark's own cluster, and what it says when it is up."""
    environment = {**os.environ, **QUICK_JAVA, "SPARK_LOCAL_IP": "127.0.0.1",
                   "JAVA_HOME": str(find_java(os.environ).home)}  # fmt: skip
    process = subprocess.Popen(
        [CLASS, f"{DEPLOY}.{what}", "--host", "127.0.0.1", "--webui-port", "0", *words],
        env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        yield until(process.stderr, says)
    finally:
        process.terminate()
        process.communicate()


def until(log: IO[str], says: str) -> str:
    told = []
    for line in log:
        told.append(line)
        found = re.search(says, line)
        if found is not None:
            return found[0]
    raise AssertionError("".join(told))


@contextlib.contextmanager
def standalone(folder: Path) -> Iterator[str]:
    """A master and a worker as `start-master.sh` and `start-worker.sh` start them."""
    port = str(free_port())
    with started("master.Master", "--port", port, says=r"spark://[\d.:]+") as url:  # noqa: SIM117
        with started("worker.Worker", "--cores", "2", "--memory", "1g", "--work-dir",
                     str(folder / "work"), url, says="Successfully registered"):  # fmt: skip
            yield url


@pytest.mark.parametrize("master", ["local-cluster[2,1,1024]", "standalone"])
def test_a_round_there_is_a_round_here(master: str, tmp_path: Path) -> None:
    topics = {f"t{n}": overwritten(20, 10 + n) for n in range(5)}
    make_logs(tmp_path / "here", topics, compacted(), ManualClock(NOW))
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    cleaned(tmp_path / "here", "--engine", "inline")
    with contextlib.ExitStack() as stack:
        if master == "standalone":
            master = stack.enter_context(standalone(tmp_path))
        cleaned(tmp_path / "there", "--master", master)
    assert files(tmp_path / "there") == files(tmp_path / "here")
