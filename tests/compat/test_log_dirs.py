"""Replicas move between a broker's directories (KIP-113), by Kafka's tool and under load."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition

from lapse.testing.zookeeper_process import ZooKeeperProcess
from tests.support.broker.cluster import Brokers, consumed, keyed, produced, running, same_bytes

Tool = Callable[..., subprocess.CompletedProcess[str]]
REASSIGN = "reassign.ReassignPartitionsCommand"
OFFSETS = "__consumer_offsets"


def plan(path: Path, *partitions: dict[str, object]) -> Path:
    file = path / "moves.json"
    file.write_text(json.dumps({"version": 1, "partitions": partitions}))
    return file


def said(tool: Tool, brokers: Brokers, *arguments: object) -> str:
    done = tool(REASSIGN, ["--bootstrap-server", brokers.bootstrap, *map(str, arguments)])
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def move(tool: Tool, brokers: Brokers, file: Path) -> None:
    arguments = ("--reassignment-json-file", file)
    assert "Successfully started" in said(tool, brokers, "--execute", *arguments)
    brokers.until(
        lambda: "is still in progress" not in said(tool, brokers, "--verify", *arguments),
        "the end of the moves",
    )


def held_back(tool: Tool, brokers: Brokers, path: Path, *dirs: Path) -> None:
    """A move is as slow as it shall be, until that is changed."""
    keyed(brokers, "large", [(b"k", bytes(500_000))] * 4)
    [there] = [one for one in dirs if not (one / "large-0").exists()]
    file = plan(path, {"topic": "large", "partition": 0, "replicas": [1], "log_dirs": [str(there)]})
    arguments = ("--reassignment-json-file", file)
    throttle = ("--replica-alter-log-dirs-throttle", 1)
    said(tool, brokers, "--execute", *throttle, *arguments)
    assert "is still in progress" in said(tool, brokers, "--verify", *arguments)
    assert not (there / "large-0").exists()
    more = ("--additional", "--replica-alter-log-dirs-throttle", 1 << 40)
    said(tool, brokers, "--execute", *more, *arguments)
    brokers.until((there / "large-0").exists, "the move of large-0")


def test_a_leader_and_groups_move_under_load_and_a_replica_comes_to_where_it_shall_be(
    tmp_path: Path, shared: ZooKeeperProcess, kafka_tools: Tool
) -> None:
    more = tmp_path / "more"
    dirs = {"log.dirs": f"{tmp_path / 'broker-1'},{more}"}
    few = {"offsets.topic.num.partitions": "1", "offsets.topic.replication.factor": "1"}
    with running(tmp_path, shared, few, own={1: dirs}) as brokers:
        brokers.create_at("t", 1, 2)
        brokers.create_at("u", 2)
        brokers.create_at("large", 1)
        acknowledged, over = produced(brokers, "t", range(500)), threading.Event()
        group = Consumer({"bootstrap.servers": brokers.bootstrap, "group.id": "g"})
        group.commit(offsets=[TopicPartition("t", 0, 100)], asynchronous=False)

        def load() -> None:
            n = 500
            while not over.is_set():
                acknowledged.extend(produced(brokers, "t", range(n, n + 50)))
                group.commit(offsets=[TopicPartition("t", 0, n)], asynchronous=False)
                n += 50

        thread = threading.Thread(target=load)
        thread.start()
        here, there = brokers.processes[1].data, str(more)
        if (more / "t-0").exists():
            here, there = more, str(brokers.processes[1].data)
        held_back(kafka_tools, brokers, tmp_path, here, Path(there))
        moves = [
            {"topic": "t", "partition": 0, "replicas": [1, 2], "log_dirs": [there, "any"]},
            {"topic": "u", "partition": 0, "replicas": [1], "log_dirs": [there]},
        ]
        if brokers.leader(OFFSETS) == 1:
            to = more if (brokers.processes[1].data / f"{OFFSETS}-0").exists() else here
            moves.append({"topic": OFFSETS, "partition": 0, "replicas": [1], "log_dirs": [str(to)]})
        move(kafka_tools, brokers, plan(tmp_path, *moves))
        brokers.until(lambda: not (here / "t-0").exists(), "it is there no more")
        assert (Path(there) / "t-0").exists()
        assert (Path(there) / "u-0").exists()
        over.set()
        thread.join()
        [committed] = group.committed([TopicPartition("t", 0)], timeout=30)
        group.close()
        assert committed.offset + 50 == acknowledged[-1] + 1
        assert sorted(consumed(brokers, "t")) == sorted(acknowledged)
        brokers.processes[1].kill()
        brokers.processes[1].start()
        brokers.until(lambda: brokers.in_sync("t"), "all are in sync again")
        assert sorted(consumed(brokers, "t")) == sorted(acknowledged)
        brokers.processes[1].data = Path(there)
        same_bytes(brokers, "t-0")
