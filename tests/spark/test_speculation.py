"""Spark's own speculation: a task that stands still is begun once more, on another machine.

A worker is stopped in the middle of its work until Spark has begun its task a second time, and goes
on then, or never does. Both attempts write at the same time; what is committed is of one of them.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from lapse.base.clock import SystemClock
from lapse.base.fs import RealFs
from lapse.lifecycle.owner.directory import DirectoryOwner
from lapse.lifecycle.round.inline import InlineEngine
from lapse.lifecycle.round.plan import RoundPlan
from lapse.lifecycle.round.receipt import attempt_dir
from lapse.lifecycle.round.run import receipts_of
from lapse.testing.clock import ManualClock
from tests.spark import processes
from tests.spark.driver import DriverProcess
from tests.spark.processes import needs_proc
from tests.spark.standalone import Standalone, standalone
from tests.spark.test_engine import files_of, plans_of
from tests.spark.test_repeated import LOGS, make_logs
from tests.spark.test_split import SPLIT
from tests.support.lifecycle.rounds import NOW, compacted

# Spark begins no task twice at one host, and none at all in `local` and `local-cluster`.
HOSTS = ("127.0.0.1", "127.0.0.2")
SETTINGS = {
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.multiplier": "1.2",
    "spark.speculation.task.duration.threshold": "200ms",  # of stages that are a single task
}
IO_BYTES_PER_SECOND = 1e7  # a task lasts for a second or two
RUNS_MAX = 10
STILL_SECONDS_MAX = 20
SECOND = "-a1-"  # in the name of an attempt that is not the first


@pytest.fixture(scope="module")
def owner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DirectoryOwner]:
    path = tmp_path_factory.mktemp("speculation") / "data"
    make_logs(path, random.Random(13))
    configs = dict.fromkeys(LOGS, compacted())
    with DirectoryOwner(path, configs, RealFs(), ManualClock(NOW)) as opened:
        yield opened


@pytest.fixture(scope="module")
def undisturbed(owner: DirectoryOwner) -> dict[str, dict[str, bytes]]:
    """By log: the files of a run in this process."""
    plans = plans_of(owner, "quiet")
    receipts = receipts_of(InlineEngine(RealFs(), SystemClock()).submit(plans))
    return {p.name: files_of(p, receipt) for p, receipt in zip(plans, receipts, strict=True)}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with standalone(tmp_path_factory.mktemp("cluster"), *HOSTS, cores=1) as made:
        yield made


@pytest.fixture(scope="module")
def driver(
    cluster: Standalone, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DriverProcess]:
    log = tmp_path_factory.mktemp("driver") / "driver.log"
    made = DriverProcess(cluster.url, log, SETTINGS, cluster.environment)
    yield made
    made.end()
    made.wait_until_gone()


def attempts(plans: Sequence[RoundPlan]) -> set[str]:
    """The names of all that have begun."""
    folders = [attempt_dir(Path(plan.dir), plan.round_id, "") for plan in plans]
    return {name for folder in folders if folder.exists() for name in os.listdir(folder)}


@contextmanager
def one_stands_still(
    plans: Sequence[RoundPlan], worker_pid: int, *, goes_on: bool
) -> Iterator[list[str]]:
    """From when a task has begun; yields the second attempts there were while it stood still."""
    end, seen, stopped = threading.Event(), list[str](), set[int]()

    def work() -> None:
        while not attempts(plans):
            if end.wait(0.005):
                return
        stopped.update(processes.worker_pids(worker_pid))
        processes.kill(stopped, signal.SIGSTOP)
        deadline = time.monotonic() + STILL_SECONDS_MAX
        while not seen and not end.wait(0.01) and time.monotonic() < deadline:
            seen.extend(name for name in attempts(plans) if SECOND in name)
        if goes_on or not seen:
            processes.kill(stopped, signal.SIGCONT)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield seen
    finally:
        end.set()
        thread.join()
        processes.kill(stopped, signal.SIGCONT)


@needs_proc
@pytest.mark.combined
@pytest.mark.parametrize("is_split", [False, True], ids=["small", "split"])
@pytest.mark.parametrize("goes_on", [False, True], ids=["stays", "goes on"])
def test_either_attempt_may_win(
    is_split: bool, goes_on: bool, owner: DirectoryOwner, driver: DriverProcess,
    cluster: Standalone, undisturbed: dict[str, dict[str, bytes]], seed: int,
) -> None:  # fmt: skip
    chance = random.Random(seed)
    for run in range(RUNS_MAX):
        plans = [
            replace(
                plan, split=SPLIT if is_split else None, io_bytes_per_second=IO_BYTES_PER_SECOND
            )
            for plan in plans_of(owner, f"{is_split:d}{goes_on:d}-{run}-")
        ]
        host = chance.choice(cluster.worker_pids)
        with one_stands_still(plans, host, goes_on=goes_on) as seconds:
            receipts = {receipt.name: receipt for receipt in driver.run(plans)}
        assert receipts.keys() == undisturbed.keys()
        for plan in plans:
            assert receipts[plan.name].error is None
            assert files_of(plan, receipts[plan.name]) == undisturbed[plan.name]
        if seconds:
            return
    pytest.fail("nothing was at work where a worker was stopped")
