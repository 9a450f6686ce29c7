"""Brokers that do not hear one another, both ways or one, while clients and ZooKeeper reach all."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from lapse.base.errors import ErrorCode
from lapse.log.start import read_start
from lapse.testing.zookeeper_process import ZooKeeperProcess
from tests.compat.test_cluster_of_three import produce_at
from tests.support.broker.cleaned import AT_ONCE, BROKER, cleaning, records
from tests.support.broker.cluster import Brokers, consumed, keyed, produced, running, same_bytes
from tests.support.broker.network import Network
from tests.support.metadata.line import Line

LAG_MS = 3000
SOON = {"replica.lag.time.max.ms": str(LAG_MS), "replica.socket.timeout.ms": "3000"}


@pytest.fixture
def network() -> Iterator[Network]:
    with Network() as one:
        yield one


def own(network: Network) -> dict[int, dict[str, str]]:
    return {n: network.settings(n) for n in network.brokers}


def isr(brokers: Brokers, name: str = "t") -> set[int]:
    return set(brokers.topic(name).partitions[0].isrs)


def log_start(brokers: Brokers, n: int) -> int:
    return read_start(brokers.processes[n].data / "t-0").offset


@pytest.mark.combined
@pytest.mark.parametrize("ways", [[(1, 3)], [(3, 1)], [(1, 3), (3, 1)]], ids=str)
@pytest.mark.parametrize("is_lost", [False, True])
def test_a_follower_that_hears_nothing_or_is_not_heard_is_waited_for_no_longer(
    tmp_path: Path, shared: ZooKeeperProcess, network: Network, ways: list[tuple[int, int]],
    is_lost: bool,
) -> None:  # fmt: skip
    with running(tmp_path, shared, SOON, own=own(network)) as brokers:
        brokers.create_at("t", 1, 2, 3)
        assert produced(brokers, "t", range(50)) == list(range(50))
        network.hold(*ways)
        assert produced(brokers, "t", range(50, 100)) == list(range(50, 100))
        brokers.until(lambda: isr(brokers) == {1, 2}, "it is not in sync, as all know")
        assert brokers.leader("t") == 1
        network.let_go(is_lost=is_lost)
        brokers.until(lambda: brokers.in_sync("t"), "all in sync again")
        same_bytes(brokers, "t-0")
        assert consumed(brokers, "t") == list(range(100))


def test_a_leader_that_no_follower_hears_acknowledges_nothing_alone(
    tmp_path: Path, shared: ZooKeeperProcess, network: Network
) -> None:
    with running(tmp_path, shared, SOON, own=own(network)) as brokers:
        brokers.create("t", min_insync_replicas="2")
        assert produced(brokers, "t", range(50)) == list(range(50))
        leader = brokers.leader("t")
        network.isolate(leader)
        at = brokers.processes[leader].bootstrap
        assert asyncio.run(produce_at(at, "t", b"50", acks=-1)) is ErrorCode.REQUEST_TIMED_OUT
        brokers.until(lambda: isr(brokers) == {leader}, "the leader alone is in sync")
        assert asyncio.run(produce_at(at, "t", b"1", acks=-1)) is ErrorCode.NOT_ENOUGH_REPLICAS
        network.let_go()
        brokers.until(lambda: brokers.in_sync("t"), "all in sync again")
        assert produced(brokers, "t", range(51, 60)) == list(range(51, 60))
        same_bytes(brokers, "t-0")
        assert consumed(brokers, "t") == list(range(60))


def test_a_leader_that_nobody_hears_but_clients_loses_nothing_that_it_acknowledged(
    tmp_path: Path, shared: ZooKeeperProcess, network: Network, line: Line
) -> None:
    """Its clients write on, of whom the others never hear: none of it was acknowledged to all."""
    with running(tmp_path, shared, SOON, {1: line}, own(network)) as brokers:
        brokers.create_at("t", 1, 2, 3)
        assert produced(brokers, "t", range(50)) == list(range(50))
        network.isolate(1)
        line.hold()
        at = brokers.processes[1].bootstrap
        seen = set()
        brokers.until(
            lambda: (
                any("t-0: leads in epoch 1" in brokers.processes[n].log() for n in (2, 3))
                or seen.add(asyncio.run(produce_at(at, "t", b"1000", acks=-1)))
            ),
            "another leader",
        )
        assert ErrorCode.NONE not in seen
        others = {"bootstrap.servers": brokers.processes[2].bootstrap}
        assert produced(brokers, "t", range(50, 100), **others) == list(range(50, 100))
        network.let_go()
        line.let_go()
        brokers.until(lambda: brokers.in_sync("t"), "all in sync again")
        same_bytes(brokers, "t-0")
        assert consumed(brokers, "t") == list(range(100))


def test_a_deletion_names_who_is_alive_and_does_not_hear_of_it(
    tmp_path: Path, shared: ZooKeeperProcess, network: Network
) -> None:
    """KIP-107: a live replica is waited for, in sync or not; it follows once it hears again."""
    with running(tmp_path, shared, SOON, own=own(network)) as brokers:
        brokers.create_at("t", 1, 2, 3)
        assert produced(brokers, "t", range(100)) == list(range(100))
        network.isolate(3)
        assert produced(brokers, "t", range(100, 110)) == list(range(100, 110))
        brokers.until(lambda: isr(brokers) == {1, 2}, "it is not in sync")
        where = TopicPartition("t", 0, 60)
        admin = brokers.admin()
        [asked] = admin.delete_records([where], request_timeout=30, operation_timeout=2).values()
        with pytest.raises(KafkaException) as refused:
            asked.result(30)
        assert refused.value.args[0].code() == KafkaError.REQUEST_TIMED_OUT
        late = "t-0: not deleted below 60 in time: the log starts of replicas are {3: 0}"
        brokers.until(lambda: late in brokers.processes[1].log(), "who is late")
        assert log_start(brokers, 1) == log_start(brokers, 2) == 60
        assert log_start(brokers, 3) == 0
        network.let_go()
        brokers.until(lambda: log_start(brokers, 3) == 60, "it hears of the deletion")


def test_a_tombstone_waits_for_who_does_not_hear_of_it(
    tmp_path: Path, shared: ZooKeeperProcess, network: Network
) -> None:
    """L3: it is alive, and its rounds go on, but what it has is not what the others removed."""
    settings = {**SOON, **BROKER}
    with running(tmp_path, shared, settings, own=own(network)) as brokers, cleaning(brokers):

        def at(n: int) -> list[tuple[bytes, bytes | None]]:
            return records(brokers.processes[n].data, "t-0")

        brokers.create("t", **AT_ONCE)
        keyed(brokers, "t", [(b"erased", b"secret"), (b"kept", b"1")])
        brokers.until(lambda: all(len(at(n)) == 2 for n in (1, 2, 3)), "copies")
        deaf = next(n for n in (1, 2, 3) if n != brokers.leader("t"))
        others = [n for n in (1, 2, 3) if n != deaf]
        network.isolate(deaf)

        def is_cleaned(n: int) -> bool:
            keyed(brokers, "t", [(b"more", b"2")])
            return (b"erased", b"secret") not in at(n)

        keyed(brokers, "t", [(b"erased", None)])
        for n in others:
            brokers.until(lambda n=n: is_cleaned(n), f"the value is gone from {n}")
        for _ in range(20):  # rounds go on meanwhile, and each could remove it
            keyed(brokers, "t", [(b"more", b"3")])
        assert all((b"erased", None) in at(n) for n in others)
        assert (b"erased", b"secret") in at(deaf)
        network.let_go(is_lost=True)

        def is_gone_everywhere() -> bool:
            keyed(brokers, "t", [(b"more", b"4")])
            return not any(key == b"erased" for n in (1, 2, 3) for key, _ in at(n))

        brokers.until(is_gone_everywhere, "value and tombstone are gone from all")
        assert all((b"kept", b"1") in at(n) for n in (1, 2, 3))
