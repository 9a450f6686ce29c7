"""One broker's disk is empty, or full: what the others have stays, and goes on."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import ElectionType, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    OffsetSpec,
    ResourceType,
)

from lapse.base.errors import ErrorCode
from lapse.testing.zookeeper_process import ZooKeeperProcess
from tests.chaos.interpose import Interposer, needs_compiler
from tests.compat.test_cluster_of_three import produce_at
from tests.support.broker.cluster import Brokers, consumed, produced, running, same_bytes

Tool = Callable[..., subprocess.CompletedProcess[str]]


def emptied(brokers: Brokers, n: int) -> Path:
    """The broker's directory, moved away; it is dead."""
    data = brokers.processes[n].data
    away = data.with_name("away")
    shutil.move(data, away)
    data.mkdir()
    return away


def only_first_has_all(brokers: Brokers) -> tuple[list[int], list[int], Path]:
    """What both had, what 1 alone had, and where its disk is: it is back with an empty one."""
    brokers.create_at("t", 1, 2)
    both = produced(brokers, "t", range(100))
    brokers.processes[2].kill()
    brokers.until(lambda: not brokers.in_sync("t"), "2 is not in sync")
    alone = produced(brokers, "t", range(100, 200))
    brokers.processes[1].kill()
    away = emptied(brokers, 1)
    brokers.processes[1].start()
    brokers.processes[2].start()
    brokers.until(lambda: all(len(s.brokers) == 3 for s in brokers.seen()), "all there")
    return both, alone, away


def test_an_empty_disk_of_the_only_in_sync_replica_does_not_lead(
    tmp_path: Path, shared: ZooKeeperProcess
) -> None:
    with running(tmp_path, shared) as brokers:
        both, alone, away = only_first_has_all(brokers)
        assert brokers.leader("t") == -1
        for _ in range(2):  # nor once it knows that disk
            brokers.processes[1].kill()
            brokers.processes[1].start()
            brokers.until(lambda: all(len(s.brokers) == 3 for s in brokers.seen()), "all there")
            assert brokers.leader("t") == -1
        assert brokers.processes[1].log().count("bring the disk back") == 3  # once a start
        brokers.processes[1].kill()
        shutil.rmtree(brokers.processes[1].data)
        shutil.move(away, brokers.processes[1].data)  # the disk was only not mounted
        brokers.processes[1].start()
        brokers.until(lambda: brokers.in_sync("t"), "all in sync again")
        assert consumed(brokers, "t") == [*both, *alone] == list(range(200))


def test_somebody_may_have_the_other_one_lead(
    tmp_path: Path, shared: ZooKeeperProcess, kafka_tools: Tool
) -> None:
    """By Kafka's own tool: what only the lost disk had is lost then, and no more."""
    with running(tmp_path, shared) as brokers:
        both, _, _ = only_first_has_all(brokers)
        asked = ("--bootstrap-server", brokers.bootstrap, "--election-type", "unclean")
        done = kafka_tools("LeaderElectionCommand", [*asked, "--topic", "t", "--partition", "0"])
        assert done.returncode == 0, done.stdout + done.stderr
        brokers.until(lambda: brokers.leader("t") == 2, "the other one")
        brokers.until(lambda: brokers.in_sync("t"), "all in sync again")
        brokers.give_up_producers()
        after = produced(brokers, "t", range(200, 300))
        assert consumed(brokers, "t") == [*both, *after]
        same_bytes(brokers, "t-0")
        again = kafka_tools("LeaderElectionCommand", [*asked, "--topic", "t", "--partition", "0"])
        assert "Valid replica already elected for partitions t-0" in again.stdout


def test_the_only_replica_on_a_lost_disk_begins_empty_only_if_somebody_asks(
    tmp_path: Path, shared: ZooKeeperProcess
) -> None:
    with running(tmp_path, shared) as brokers:
        brokers.create_at("t", 1)
        assert produced(brokers, "t", range(100))
        brokers.processes[1].kill()
        emptied(brokers, 1)
        brokers.processes[1].start()
        brokers.until(lambda: all(len(s.brokers) == 3 for s in brokers.seen()), "all there")
        assert brokers.leader("t") == -1
        admin = brokers.admin()
        asked = admin.elect_leaders(ElectionType.PREFERRED, [TopicPartition("t", 0)])
        [refused] = asked.result(30).values()
        assert refused.code() == KafkaError.PREFERRED_LEADER_NOT_AVAILABLE
        asked = admin.elect_leaders(ElectionType.UNCLEAN, [TopicPartition("t", 0)])
        assert list(asked.result(30).values()) == [None]
        brokers.until(lambda: brokers.leader("t") == 1, "its leader")
        after = produced(brokers, "t", range(100, 110))
        assert consumed(brokers, "t") == after == list(range(100, 110))


def log_start(brokers: Brokers, where: TopicPartition) -> int:
    """The first that is answered: whoever is to lead may not have begun yet."""
    found: list[int] = []

    def answered() -> bool:
        admin = brokers.admin()
        [asked] = admin.list_offsets({where: OffsetSpec.earliest()}).values()
        try:
            found.append(asked.result(30).offset)
        except KafkaException:  # it is not asked again by itself
            return False
        return True

    brokers.until(answered, "a log start")
    return found[0]


def elect_whoever_is_there(brokers: Brokers, where: TopicPartition) -> None:
    """An unclean election, once the controller has seen that nobody leads."""

    def elected() -> bool:
        admin = brokers.admin()
        try:
            [error] = admin.elect_leaders(ElectionType.UNCLEAN, [where]).result(30).values()
        except KafkaException:
            return False
        return error is None

    brokers.until(elected, "an unclean election")


@pytest.mark.parametrize("below", [60, 150])
def test_what_was_deleted_stays_so_where_a_replica_leads_that_was_away(
    tmp_path: Path, shared: ZooKeeperProcess, below: int
) -> None:
    """KIP-107: log starts never go back. What was deleted may end above all that it has."""
    with running(tmp_path, shared) as brokers:
        brokers.create_at("t", 1, 2)
        produced(brokers, "t", range(100))
        brokers.processes[2].kill()
        brokers.until(lambda: not brokers.in_sync("t"), "2 is not in sync")
        produced(brokers, "t", range(100, 200))
        where = TopicPartition("t", 0)
        admin = brokers.admin()
        [done] = admin.delete_records([TopicPartition("t", 0, below)]).values()
        assert done.result(30).low_watermark == below
        brokers.processes[1].kill()
        brokers.processes[2].start()
        brokers.until(lambda: all(len(s.brokers) == 2 for s in brokers.seen()), "who is there")
        elect_whoever_is_there(brokers, where)
        brokers.until(lambda: brokers.leader("t") == 2, "the one that was away")

        assert log_start(brokers, where) == below
        brokers.give_up_producers()
        after = produced(brokers, "t", range(200, 210))
        assert consumed(brokers, "t") == [*range(below, 100), *after]
        brokers.processes[1].start()
        brokers.until(lambda: brokers.in_sync("t"), "all in sync again")
        same_bytes(brokers, "t-0")
        assert log_start(brokers, where) == below
        assert consumed(brokers, "t") == [*range(below, 100), *after]


def test_nor_does_retention_go_back(tmp_path: Path, shared: ZooKeeperProcess) -> None:
    """Nobody waits for an answer of it: it is kept a few seconds later."""
    soon = {"log.retention.check.interval.ms": "500"}
    with running(tmp_path, shared, soon) as brokers:
        brokers.create_at("t", 1, 2)
        produced(brokers, "t", range(100))
        brokers.processes[2].kill()
        brokers.until(lambda: not brokers.in_sync("t"), "2 is not in sync")
        admin, where = brokers.admin(), TopicPartition("t", 0)
        expired = ConfigEntry("retention.ms", "1", incremental_operation=AlterConfigOpType.SET)
        topic = ConfigResource(ResourceType.TOPIC, "t", incremental_configs=[expired])
        brokers.until_ok(lambda: admin.incremental_alter_configs([topic])[topic].result(30))
        kept = "t-0: in-sync replicas are (1,); the log starts at 100 at least"
        brokers.until(lambda: kept in brokers.processes[1].log(), "the log start, stored")
        brokers.processes[1].kill()
        brokers.processes[2].start()
        brokers.until(lambda: all(len(s.brokers) == 2 for s in brokers.seen()), "who is there")
        elect_whoever_is_there(brokers, where)
        assert log_start(brokers, where) == 100


def test_an_empty_disk_where_another_one_is_in_sync_is_filled_again(
    tmp_path: Path, shared: ZooKeeperProcess
) -> None:
    with running(tmp_path, shared) as brokers:
        brokers.create_at("t", 1, 2)
        values = produced(brokers, "t", range(100))
        brokers.processes[1].kill()
        emptied(brokers, 1)
        brokers.processes[1].start()
        brokers.until(lambda: brokers.in_sync("t"), "all in sync again")
        same_bytes(brokers, "t-0")
        assert consumed(brokers, "t") == values


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Interposer]:
    """Where broker 1 has its data, which can be full."""
    (tmp_path / "interposer").mkdir()
    with Interposer(tmp_path / "interposer", tmp_path / "broker-1", 1) as one:
        yield one


@needs_compiler
def test_a_leader_whose_disk_is_full_leads_no_more(
    tmp_path: Path, shared: ZooKeeperProcess, disk: Interposer
) -> None:
    with running(tmp_path, shared, environments={1: disk.environment}) as brokers:
        brokers.create_at("t", 1, 2, 3)
        brokers.create_at("alone", 1)
        assert produced(brokers, "t", range(100)) == list(range(100))
        assert produced(brokers, "alone", range(10)) == list(range(10))
        disk.fill_disk()
        assert produced(brokers, "t", range(100, 200)) == list(range(100, 200))
        assert brokers.leader("t") in {2, 3}
        assert "takes no writes (" in brokers.processes[1].log()
        at = brokers.processes[1].bootstrap
        refused = asyncio.run(produce_at(at, "alone", b"10", acks=1))
        assert refused is ErrorCode.KAFKA_STORAGE_ERROR
        assert brokers.leader("alone") == 1  # nobody else has it
        disk.mend_disk()
        brokers.until(lambda: brokers.in_sync("t"), "all in sync again")
        same_bytes(brokers, "t-0")
        assert consumed(brokers, "t") == list(range(200))
        assert produced(brokers, "alone", range(10, 20)) == list(range(10, 20))
        assert consumed(brokers, "alone") == list(range(20))


@needs_compiler
def test_a_follower_whose_disk_is_full_is_waited_for_no_longer(
    tmp_path: Path, shared: ZooKeeperProcess, disk: Interposer
) -> None:
    soon = {"replica.lag.time.max.ms": "2000"}
    with running(tmp_path, shared, soon, environments={1: disk.environment}) as brokers:
        brokers.create_at("t", 2, 1, 3)
        assert produced(brokers, "t", range(100)) == list(range(100))
        disk.fill_disk()
        assert produced(brokers, "t", range(100, 200)) == list(range(100, 200))
        brokers.until(
            lambda: set(brokers.topic("t").partitions[0].isrs) == {2, 3}, "it is not in sync"
        )
        assert produced(brokers, "t", range(200, 300)) == list(range(200, 300))
        disk.mend_disk()
        brokers.until(lambda: brokers.in_sync("t"), "all in sync again")
        same_bytes(brokers, "t-0")
        assert consumed(brokers, "t") == list(range(300))
