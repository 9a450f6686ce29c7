"""Kafka's own tools against a cluster: leaders are elected, replicas are compared."""

from __future__ import annotations

import re
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

from lapse.testing.zookeeper_process import ZooKeeperProcess
from tests.oracle import kafka
from tests.support.broker.cluster import WAIT_SECONDS, produced, running

Tool = Callable[..., subprocess.CompletedProcess[str]]


def test_preferred_leaders_are_elected(
    tmp_path: Path, shared: ZooKeeperProcess, kafka_tools: Tool
) -> None:
    with running(tmp_path, shared, {"auto.leader.rebalance.enable": "false"}) as brokers:
        brokers.create_at("t", 1, 2, 3)
        brokers.processes[1].stop()
        brokers.until(lambda: brokers.leader("t") != 1, "another leader")
        brokers.processes[1].start()
        brokers.until(lambda: brokers.in_sync("t"), "all in sync again")
        asked = ("--bootstrap-server", brokers.bootstrap, "--election-type", "preferred")
        done = kafka_tools("LeaderElectionCommand", [*asked, "--all-topic-partitions"])
        assert done.returncode == 0, done.stdout + done.stderr
        assert (
            "Successfully completed leader election (PREFERRED) for partitions t-0" in done.stdout
        )
        brokers.until(lambda: brokers.leader("t") == 1, "the preferred leader")
        again = kafka_tools("LeaderElectionCommand", [*asked, "--topic", "t", "--partition", "0"])
        assert "Valid replica already elected for partitions t-0" in again.stdout


def test_replicas_are_the_same(tmp_path: Path, shared: ZooKeeperProcess, kafka_jars: str) -> None:
    """It reads from every replica, as a consumer with a number of its own, and compares."""
    with running(tmp_path, shared) as brokers:
        brokers.create("t", partitions=2)
        produced(brokers, "t", range(500))
        command = kafka.command(
            "org.apache.kafka.tools.ReplicaVerificationTool",
            ["--broker-list", brokers.bootstrap, "--topics-include", "t",
             "--report-interval-ms", "500"],
        )  # fmt: skip
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as tool:
            assert tool.stdout is not None
            enough = threading.Timer(WAIT_SECONDS, tool.kill)
            enough.start()
            said = []
            for line in tool.stdout:
                said.append(line)
                if re.search(r"max lag is 0 for partition t-\d at offset [1-9]\d* among 2", line):
                    break
            tool.kill()
            enough.cancel()
        assert "max lag is 0" in said[-1], said
        assert not [line for line in said if "different" in line or "mismatch" in line.lower()]
