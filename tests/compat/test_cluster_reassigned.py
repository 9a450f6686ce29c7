"""Replicas move to other brokers (KIP-455), by Kafka's tool: nothing is lost, nothing is left."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

from lapse.testing.zookeeper_process import ZooKeeperProcess
from tests.support.broker.cleaned import AT_ONCE, BROKER, cleaning, records
from tests.support.broker.cluster import Brokers, consumed, keyed, produced, running, same_bytes

Tool = Callable[..., subprocess.CompletedProcess[str]]
REASSIGN = "reassign.ReassignPartitionsCommand"


def moves(path: Path, topic: str, *replicas: int) -> Path:
    plan = path / "moves.json"
    one = {"topic": topic, "partition": 0, "replicas": replicas}
    plan.write_text(json.dumps({"version": 1, "partitions": [one]}))
    return plan


def said(tool: Tool, brokers: Brokers, *arguments: object) -> str:
    done = tool(REASSIGN, ["--bootstrap-server", brokers.bootstrap, *map(str, arguments)])
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def moved(tool: Tool, brokers: Brokers, plan: Path) -> None:
    brokers.until(
        lambda: "is completed" in said(tool, brokers, "--verify", "--reassignment-json-file", plan),
        "the end of the move",
    )


def test_replicas_move_under_load_and_nothing_is_lost_or_left(
    tmp_path: Path, shared: ZooKeeperProcess, kafka_tools: Tool
) -> None:
    with running(tmp_path, shared) as brokers:
        brokers.create_at("t", 1, 2)
        acknowledged = produced(brokers, "t", range(500))
        plan, over = moves(tmp_path, "t", 3, 2), threading.Event()

        def load() -> None:
            n = 500
            while not over.is_set():
                acknowledged.extend(produced(brokers, "t", range(n, n + 50)))
                n += 50

        thread = threading.Thread(target=load)
        thread.start()
        told = said(kafka_tools, brokers, "--execute", "--reassignment-json-file", plan)
        assert "Successfully started partition reassignment" in told
        moved(kafka_tools, brokers, plan)
        over.set()
        thread.join()
        partition = brokers.topic("t").partitions[0]
        assert sorted(partition.replicas) == sorted(partition.isrs) == [2, 3]
        assert partition.leader in {2, 3}
        assert "No partition reassignments found" in said(kafka_tools, brokers, "--list")
        first = brokers.processes.pop(1)
        brokers.until(lambda: not (first.data / "t-0").exists(), "what was at 1 is gone")
        same_bytes(brokers, "t-0")
        assert sorted(consumed(brokers, "t")) == sorted(acknowledged)
        brokers.processes[1] = first


def test_a_value_that_was_deleted_does_not_come_back_with_a_replica(
    tmp_path: Path, shared: ZooKeeperProcess, kafka_tools: Tool
) -> None:
    """Its broker was away when its replica moved, and gets one again later."""
    with running(tmp_path, shared, BROKER) as brokers, cleaning(brokers):
        brokers.create("t", replicas=2, **AT_ONCE)
        first, second = brokers.topic("t").partitions[0].replicas
        third = ({1, 2, 3} - {first, second}).pop()

        def at(n: int) -> list[tuple[bytes, bytes | None]]:
            return records(brokers.processes[n].data, "t-0")

        def is_gone_from(n: int) -> bool:
            keyed(brokers, "t", [(b"more", b"2")])
            return not any(key == b"erased" for key, _ in at(n))

        keyed(brokers, "t", [(b"erased", b"secret"), (b"kept", b"1")])
        brokers.until(lambda: (b"kept", b"1") in at(first), "the copy")
        brokers.processes[first].kill()
        keyed(brokers, "t", [(b"erased", None)])
        plan = moves(tmp_path, "t", second, third)
        said(kafka_tools, brokers, "--execute", "--reassignment-json-file", plan)
        moved(kafka_tools, brokers, plan)
        for n in (second, third):  # nobody waits for the first any more
            brokers.until(lambda n=n: is_gone_from(n), f"the tombstone is gone from {n}")
        assert (b"erased", b"secret") in at(first)
        brokers.processes[first].start()
        brokers.until(lambda: not at(first), "what was at the first is gone")
        plan = moves(tmp_path, "t", first, second, third)
        said(kafka_tools, brokers, "--execute", "--reassignment-json-file", plan)
        moved(kafka_tools, brokers, plan)
        assert not any(key == b"erased" for n in (1, 2, 3) for key, _ in at(n))
        assert all((b"kept", b"1") in at(n) for n in (1, 2, 3))
