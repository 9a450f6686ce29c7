"""One Spark makes the rounds of all brokers of a cluster, on machines that see their disks."""

from __future__ import annotations

import json
from pathlib import Path

from lapse.testing.zookeeper_process import QUICK_JAVA, ZooKeeperProcess
from tests.spark.standalone import standalone
from tests.support.broker.cleaned import AT_ONCE
from tests.support.broker.cluster import keyed, running
from tests.support.broker.remote_service import (
    REMOTE,
    TWICE,
    is_cleaned,
    reported,
    service,
)

SPARK_SECONDS = 180  # a cluster's Spark, beside other tests


def test_rounds_of_three_brokers_are_jobs_of_one_spark(tmp_path: Path) -> None:
    with (
        ZooKeeperProcess(tmp_path / "zookeeper", QUICK_JAVA) as zookeeper,
        running(tmp_path, zookeeper, REMOTE) as brokers,
        standalone(tmp_path, cores=2) as cluster,
    ):
        for name in ("t", "u"):
            brokers.create(name, **AT_ONCE)
            keyed(brokers, name, TWICE)
        spark = ("--engine", "spark", "-c", f"lapse.lifecycle.master={cluster.url}",
                 "-c", "lapse.lifecycle.idle.ms=5000")  # fmt: skip
        with service(
            tmp_path, "spark", brokers.bootstrap, *spark, environment=cluster.environment
        ) as one:
            brokers.until(lambda: "running" in one.log(), "Spark is up", SPARK_SECONDS)
            for name in ("t", "u"):
                brokers.until(lambda name=name: is_cleaned(brokers, name), f"{name} is cleaned")
            # A follower that fetches late gets what is clean, and has its first round later.
            by_it = {n: {one.process.pid} for n in (1, 2, 3)}
            brokers.until(
                lambda: is_cleaned(brokers, "t") and reported(brokers) == by_it, "rounds of each"
            )
            rounds = [
                json.loads(line)
                for broker in brokers.processes.values()
                for line in (broker.data / "lapse-rounds.jsonl").read_text().splitlines()
            ]
            assert {row["engine"] for row in rounds} == {"spark"}
            assert {row["error"] for row in rounds} == {None}
            assert {row["task_pid"] for row in rounds}.isdisjoint({one.process.pid})
            assert all(row["job_ids"] for row in rounds)
            # Nothing is due for any of them any more.
            brokers.until(lambda: "the engine has ended" in one.log(), "Spark has ended")
        assert "Traceback" not in one.log()
