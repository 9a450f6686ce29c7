"""A service whose Spark breaks twice: its executor is stopped, then its Java is killed.

Run as a program over logs with something due, `python -m tests.spark.restarting DATA`, since it
begins again with each engine. What it says of that goes to standard output, a JSON line each.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import msgspec
from pyspark import SparkContext

from lapse.base.clock import SystemClock
from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition
from lapse.cli.lifecycle import begin_again, engines_lost
from lapse.lifecycle.owner.directory import DirectoryOwner
from lapse.lifecycle.service.engine_keeper import Boards, EngineKeeper
from lapse.lifecycle.service.loop import Service, ServiceOptions
from lapse.lifecycle.status.reports import read_progress
from lapse.log.env import LogEnv
from lapse.spark.rounds.engine import SparkEngine, open_engine
from lapse.spark.session.session import SessionOptions
from tests.support.lifecycle.rounds import MEMORY, compacted

MASTER = "local[1]"
LOGS = ("a", "b")
PAUSE_MS = 500


def stop_executor() -> None:
    """As a stranger could, before he had to know a secret: nothing is run from then on."""
    jvm = SparkContext._jvm
    assert jvm is not None
    rpc = jvm.org.apache.spark.SparkEnv.get().rpcEnv()
    executor = rpc.setupEndpointRef(rpc.address(), "LocalSchedulerBackendEndpoint")
    stop = getattr(jvm.org.apache.spark.scheduler.local, "StopExecutor$")
    any_class = getattr(jvm.scala.reflect, "ClassTag$")
    executor.askSync(getattr(stop, "MODULE$"), getattr(any_class, "MODULE$").Any())


def kill_java() -> None:
    gateway = SparkContext._gateway
    assert gateway is not None
    os.kill(gateway.proc.pid, signal.SIGKILL)
    gateway.proc.wait()


def nothing() -> None:
    """The third is left alone."""


def main(data: str) -> None:
    env, path = LogEnv(RealFs(), SystemClock()), Path(data)
    configs = {TopicPartition(name, 0): compacted() for name in LOGS}
    service: list[Service] = []

    with DirectoryOwner(path, configs, env.fs, env.clock) as owner:

        def serve(engine: SparkEngine) -> None:
            said = read_progress(path)
            assert said is not None
            sys.stdout.write(msgspec.json.encode(said.engine).decode() + "\n")
            (stop_executor, kill_java, nothing)[engines_lost()]()
            options = ServiceOptions(MEMORY, PAUSE_MS)
            made = Service(owner, engine, env, path, options, keeper.report)
            service.append(made)
            while not made.has_worked:
                env.clock.sleep(min(made.step(), PAUSE_MS) / 1000)

        keeper = EngineKeeper(
            env.clock,
            Boards(env, [(path, None)]),
            lambda: open_engine(SessionOptions(MASTER)),
            lambda: False,
            engines_lost(),
        )
        lost = keeper.run(serve, lambda: service[0].has_worked)
    if lost is not None:
        begin_again(lost)


if __name__ == "__main__":
    main(sys.argv[1])
