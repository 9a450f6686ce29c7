"""Replicas move to other brokers (KIP-455), by Kafka's tool: nothing is lost, nothing is left."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from lapse.testing.zookeeper_process import ZooKeeperProcess
from tests.support.broker.cleaned import AT_ONCE, BROKER, cleaning, records
from tests.support.broker.cluster import (
    Brokers,
    consumed,
    keyed,
    produced,
    reassign,
    running,
    same_bytes,
)

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
        first = brokers.processes[1].data / "t-0"
        brokers.until(lambda: not first.exists(), "what was at 1 is gone")
        same_bytes(brokers, "t-0")
        assert sorted(consumed(brokers, "t")) == sorted(acknowledged)


def test_a_move_is_held_back_and_called_off_and_let_go(
    tmp_path: Path, shared: ZooKeeperProcess, kafka_tools: Tool
) -> None:
    """KIP-73: it fetches a piece (a megabyte at most), and then no more for some ten seconds."""
    quotas = {"replica.fetch.max.bytes": "10000", "replication.quota.window.num": "1000"}
    with running(tmp_path, shared, quotas) as brokers:
        brokers.create_at("t", 1, 2)
        for _ in range(10):
            keyed(brokers, "t", [(b"k", bytes(100_000))])
        plan = moves(tmp_path, "t", 3, 2)
        arguments = ("--reassignment-json-file", plan)
        told = said(kafka_tools, brokers, "--execute", "--throttle", "1", *arguments)
        assert "The inter-broker throttle limit was set to 1 B/s" in told
        settings = described(brokers, ResourceType.TOPIC, "t")
        assert settings["leader.replication.throttled.replicas"].value == "0:1,0:2"
        assert settings["follower.replication.throttled.replicas"].value == "0:3"
        third = brokers.processes[3].data / "t-0"
        brokers.until(lambda: size(third) > 0, "the first piece")
        listed = said(kafka_tools, brokers, "--list")
        assert "t-0: replicas: 3,2,1. adding: 3. removing: 1." in listed
        produced(brokers, "t", range(10))  # who is in sync is not held back
        assert size(third) < 500_000

        said(kafka_tools, brokers, "--cancel", *arguments)
        brokers.until(lambda: not third.exists(), "what was fetched is gone")
        partition = brokers.topic("t").partitions[0]
        assert (sorted(partition.replicas), sorted(partition.isrs)) == ([1, 2], [1, 2])

        said(kafka_tools, brokers, "--execute", "--throttle", "1", *arguments)
        brokers.until(third.exists, "the replica")
        more = ("--additional", "--throttle", str(1 << 40))
        said(kafka_tools, brokers, "--execute", *more, *arguments)
        moved(kafka_tools, brokers, plan)
        same_bytes(brokers, "t-0")
        for kind, name in ((ResourceType.TOPIC, "t"), (ResourceType.BROKER, "3")):
            given = [e.name for e in described(brokers, kind, name).values() if not e.is_default]
            assert not [name for name in given if "throttled" in name]


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_either_side_alone_holds_a_move_back(
    tmp_path: Path, shared: ZooKeeperProcess, role: str
) -> None:
    own = {
        "replica.fetch.max.bytes": "10000", "replication.quota.window.num": "1000",
        f"{role}.replication.throttled.rate": "1",
    }  # fmt: skip
    with running(tmp_path, shared, own) as brokers:
        brokers.create_at("t", 1, 2)
        for _ in range(10):
            keyed(brokers, "t", [(b"k", bytes(100_000))])
        admin, topic = brokers.admin(), ConfigResource(ResourceType.TOPIC, "t")
        named = ConfigEntry(
            f"{role}.replication.throttled.replicas", "*",
            incremental_operation=AlterConfigOpType.SET,
        )  # fmt: skip
        topic.add_incremental_config(named)
        brokers.until_ok(lambda: admin.incremental_alter_configs([topic])[topic].result(30))
        assert reassign(brokers, "t", 0, 3, 2, by=1) == 0
        third = brokers.processes[3].data / "t-0"
        brokers.until(lambda: size(third) > 0, "the first piece")
        produced(brokers, "t", range(10))  # who is in sync is not held back
        assert size(third) < 500_000


def described(brokers: Brokers, kind: ResourceType, name: str) -> dict[str, ConfigEntry]:
    asked, admin = ConfigResource(kind, name), brokers.admin()
    return admin.describe_configs([asked])[asked].result(30)


def size(folder: Path) -> int:
    return sum(log.stat().st_size for log in folder.glob("*.log"))


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
