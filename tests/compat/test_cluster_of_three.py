"""Three brokers, a real ZooKeeper, stock clients: who dies, stops and comes back loses nothing."""

from __future__ import annotations

import asyncio
import signal
import uuid
from pathlib import Path
from urllib.request import urlopen

import pytest
from confluent_kafka import Consumer, ElectionType, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    OffsetSpec,
    ResourceType,
)

from lapse.base.errors import ErrorCode
from lapse.client.connection import BrokerConnection
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.testing.broker_process import BrokerProcess
from lapse.testing.zookeeper_process import ZooKeeperProcess
from lapse.wire.schema.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ReplicaState,
)
from lapse.wire.schema.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tests.support.broker.cluster import (
    WAIT_SECONDS,
    Brokers,
    consumed,
    keyed,
    produced,
    running,
    same_bytes,
)
from tests.support.metadata.line import Line


def test_settings_are_changed_by_whoever_is_asked_and_hold_everywhere(
    tmp_path: Path, shared: ZooKeeperProcess
) -> None:
    """Clients send them to any broker, which hands them on to the controller (KIP-590)."""
    with running(tmp_path, shared) as brokers:
        brokers.create("t", partitions=3)
        resource = ConfigResource(ResourceType.TOPIC, "t")
        for n, asked in brokers.processes.items():
            admin = AdminClient({"bootstrap.servers": asked.bootstrap})
            change = ConfigResource(ResourceType.TOPIC, "t")
            change.add_incremental_config(
                ConfigEntry(
                    "retention.ms", str(1000 * n), incremental_operation=AlterConfigOpType.SET
                )
            )
            admin.incremental_alter_configs([change], broker=n)[change].result(30)
            for one in brokers.processes.values():
                told = AdminClient({"bootstrap.servers": one.bootstrap})

                def value(told: AdminClient = told) -> str | None:
                    [found] = told.describe_configs([resource]).values()
                    return found.result(30)["retention.ms"].value

                brokers.until(lambda value=value, n=n: value() == str(1000 * n), "the setting")


def test_topics_are_made_by_whoever_is_asked_and_known_everywhere(
    tmp_path: Path, shared: ZooKeeperProcess
) -> None:
    with running(tmp_path, shared) as brokers:
        brokers.create("t", partitions=6, replicas=2, retention_ms="123456")
        for one in brokers.processes.values():
            admin = AdminClient({"bootstrap.servers": one.bootstrap})
            brokers.until(
                lambda admin=admin: "t" in admin.list_topics(timeout=30).topics, "t everywhere"
            )
        partitions = brokers.topic("t").partitions.values()
        assert {len(p.replicas) for p in partitions} == {2}
        assert sorted(p.leader for p in partitions) == [1, 1, 2, 2, 3, 3]
        assert produced(brokers, "t", range(100))
        assert sorted(consumed(brokers, "t", 6)) == list(range(100))
        admin = brokers.admin()
        brokers.until_ok(lambda: admin.delete_topics(["t"])["t"].result(30))
        brokers.until(lambda: "t" not in brokers.admin().list_topics(timeout=30).topics, "the end")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_another_one_leads_when_the_leader_goes_and_nothing_is_lost(
    tmp_path: Path, shared: ZooKeeperProcess, how: signal.Signals
) -> None:
    with running(tmp_path, shared) as brokers:
        brokers.create("t", min_insync_replicas="2")
        acknowledged = produced(brokers, "t", range(200))
        assert acknowledged == list(range(200))
        leader = brokers.leader("t")
        gone = brokers.processes[leader]
        if how is signal.SIGKILL:
            gone.kill()
        else:
            gone.stop()
        acknowledged += produced(brokers, "t", range(200, 400))
        assert len(acknowledged) == 400
        assert brokers.leader("t") != leader
        gone.start()
        brokers.until(lambda: brokers.in_sync("t"), "all in sync again")
        acknowledged += produced(brokers, "t", range(400, 500))
        assert sorted(consumed(brokers, "t")) == sorted(acknowledged) == list(range(500))
        same_bytes(brokers, "t-0")


def test_a_leader_that_is_cut_off_commits_nothing_alone(
    tmp_path: Path, shared: ZooKeeperProcess, line: Line
) -> None:
    """Its session ends, others lead, and it does not know: what it takes is cut off again."""
    with running(tmp_path, shared, lines={1: line}) as brokers:
        brokers.create_at("t", 1, 2, 3)
        assert produced(brokers, "t", range(50)) == list(range(50))
        line.hold()
        brokers.until(
            lambda: any("t-0: leads in epoch 1" in brokers.processes[n].log() for n in (2, 3)),
            "another leader",
        )
        old = brokers.processes[1].bootstrap
        assert asyncio.run(produce_at(old, "t", b"1001", acks=-1)) in {
            ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_LEADER_OR_FOLLOWER,
        }  # fmt: skip
        asyncio.run(produce_at(old, "t", b"1002", acks=1))
        others = {"bootstrap.servers": brokers.processes[2].bootstrap}
        assert produced(brokers, "t", range(50, 100), **others) == list(range(50, 100))
        line.let_go()
        same_bytes(brokers, "t-0")
        brokers.until(lambda: brokers.in_sync("t"), "all in sync again")
        assert consumed(brokers, "t") == list(range(100))


async def produce_at(bootstrap: str, topic: str, value: bytes, *, acks: int) -> ErrorCode:
    """Whatever that broker answers, which another one would not have been asked."""
    host, _, port = bootstrap.rpartition(":")
    records = build_batch([NewRecord(None, value, 1)], BatchSpec())
    data = PartitionProduceData(index=0, records=records)
    request = ProduceRequest(
        transactional_id=None, acks=acks, timeout_ms=1500,
        topic_data=(TopicProduceData(name=topic, partition_data=(data,)),),
    )  # fmt: skip
    async with await BrokerConnection.open(host, int(port)) as connection:
        answer = await connection.request(request, ProduceResponse, version=9)
    return ErrorCode(answer.responses[0].partition_responses[0].error_code)


@pytest.mark.parametrize("asked", [False, True])
def test_the_preferred_leader_leads_again(
    tmp_path: Path, shared: ZooKeeperProcess, asked: bool
) -> None:
    every = {"leader.imbalance.check.interval.seconds": "300" if asked else "1"}
    with running(tmp_path, shared, every) as brokers:
        brokers.create_at("t", 2, 3, 1)
        brokers.processes[2].kill()
        brokers.until(lambda: brokers.leader("t") == 3, "the next one leads")
        assert produced(brokers, "t", range(10)) == list(range(10))
        if asked:
            assert elected(brokers) == "PREFERRED_LEADER_NOT_AVAILABLE"
        brokers.processes[2].start()
        brokers.until(lambda: brokers.in_sync("t"), "all in sync again")
        if asked:
            assert brokers.leader("t") == 3
            brokers.until(lambda: elected(brokers) == "ELECTION_NOT_NEEDED", "the election")
        brokers.until(lambda: brokers.leader("t") == 2, "the preferred leader leads again")
        assert produced(brokers, "t", range(10, 20)) == list(range(10, 20))
        assert consumed(brokers, "t") == list(range(20))


def elected(brokers: Brokers) -> str:
    """What a preferred election comes to; "" where it takes place."""
    admin = brokers.admin()
    where = TopicPartition("t", 0)
    found = admin.elect_leaders(ElectionType.PREFERRED, [where]).result(30)
    error = found[where]
    return "" if error is None else str(error.name())


def test_who_lacks_much_catches_up(tmp_path: Path, shared: ZooKeeperProcess) -> None:
    """Far more than one answer has, whose last batch is cut."""
    small = {"replica.fetch.max.bytes": "70000", "replica.fetch.response.max.bytes": "100000"}
    with running(tmp_path, shared, small) as brokers:
        brokers.create("t", partitions=3)
        away = next(n for n in brokers.processes if n != brokers.leader("t"))
        brokers.processes[away].kill()
        records = [(b"%d" % n, b"%d" % n * 3000) for n in range(1000)]
        keyed(brokers, "t", records)
        brokers.processes[away].start()
        for n in range(3):
            same_bytes(brokers, f"t-{n}")
        brokers.until(lambda: brokers.in_sync("t"), "all in sync again")


def test_who_only_claims_to_be_a_follower_has_nothing_committed(
    tmp_path: Path, shared: ZooKeeperProcess
) -> None:
    """A fetch names the registration of its broker, which nobody else knows (KIP-903)."""
    long = {"zookeeper.session.timeout.ms": "40000"}
    with running(tmp_path, shared, long) as brokers:
        brokers.create_at("t", 1, 2)
        assert produced(brokers, "t", range(5)) == list(range(5))
        where = TopicPartition("t", 0)
        old = brokers.processes[1].bootstrap
        reader = Consumer({"bootstrap.servers": old, "group.id": "g", "log_level": 0})
        brokers.until(lambda: reader.get_watermark_offsets(where)[1] == 5, "all is committed")
        brokers.processes[2].kill()  # and is in sync until its session ends
        assert asyncio.run(produce_at(old, "t", b"1", acks=1)) is ErrorCode.NONE
        for epoch in (-1, 0, 1):
            asyncio.run(fetch_as(old, brokers.topic_id("t"), 2, epoch, offset=6))
            assert reader.get_watermark_offsets(where)[1] == 5
        reader.close()


async def fetch_as(
    bootstrap: str, topic_id: uuid.UUID, broker: int, epoch: int, *, offset: int
) -> None:
    """A follower's fetch: everything below the offset is there."""
    host, _, port = bootstrap.rpartition(":")
    one = FetchPartition(
        partition=0, current_leader_epoch=0, fetch_offset=offset, partition_max_bytes=1 << 20
    )
    request = FetchRequest(
        replica_state=ReplicaState(replica_id=broker, replica_epoch=epoch), max_wait_ms=0,
        min_bytes=0, topics=(FetchTopic(topic_id=topic_id, partitions=(one,)),),
    )  # fmt: skip
    async with await BrokerConnection.open(host, int(port)) as connection:
        answer = await connection.request(request, FetchResponse)
    assert answer.responses[0].partitions[0].error_code == ErrorCode.NONE


def test_without_enough_in_sync_nothing_is_acknowledged(
    tmp_path: Path, shared: ZooKeeperProcess
) -> None:
    with running(tmp_path, shared) as brokers:
        brokers.create("t", min_insync_replicas="3")
        assert produced(brokers, "t", range(10)) == list(range(10))
        other = next(n for n in brokers.processes if n != brokers.leader("t"))
        brokers.processes[other].kill()
        brokers.until(lambda: not brokers.in_sync("t"), "the dead leaves the in-sync replicas")
        quick = {"enable.idempotence": False, "acks": "all", "message.timeout.ms": 3000}
        assert produced(brokers, "t", range(10, 20), **quick) == []
        quick["acks"] = "1"
        assert produced(brokers, "t", range(20, 30), **quick) == list(range(20, 30))
        brokers.processes[other].start()
        brokers.until(lambda: brokers.in_sync("t"), "all in sync again")
        found = consumed(brokers, "t")
        assert found[:10] == list(range(10))
        assert found[-10:] == list(range(20, 30))


def test_groups_and_transactions_move_with_their_partitions(
    tmp_path: Path, shared: ZooKeeperProcess
) -> None:
    with running(tmp_path, shared) as brokers:
        brokers.create("t", partitions=3)
        producer = Producer(
            {"bootstrap.servers": brokers.bootstrap, "transactional.id": "tx", "log_level": 0,
             "topic.metadata.refresh.interval.ms": 500}
        )  # fmt: skip
        producer.init_transactions(WAIT_SECONDS)

        def transaction(values: range, *, commit: bool) -> None:
            producer.begin_transaction()
            for n in values:
                producer.produce("t", b"%d" % n, partition=n % 3)
            producer.flush(WAIT_SECONDS)
            end = producer.commit_transaction if commit else producer.abort_transaction
            end(WAIT_SECONDS)

        transaction(range(30), commit=True)
        transaction(range(30, 60), commit=False)
        consumer = Consumer(
            {"bootstrap.servers": brokers.bootstrap, "group.id": "g", "log_level": 0,
             "auto.offset.reset": "earliest", "enable.auto.commit": False,
             "isolation.level": "read_committed", "session.timeout.ms": 10_000}
        )  # fmt: skip
        consumer.subscribe(["t"])

        def read(wanted: int) -> list[int]:
            found: list[int] = []
            while len(found) < wanted:
                message = consumer.poll(WAIT_SECONDS)
                assert message is not None, brokers.logs()
                assert not message.error(), message.error()
                found.append(int(message.value() or b""))
            consumer.commit(asynchronous=False)
            return sorted(found)

        assert read(30) == list(range(30))
        for victim in (brokers.leader("__consumer_offsets", 0), brokers.leader("t", 0)):
            brokers.processes[victim].kill()
            transaction(range(100, 130), commit=True)
            transaction(range(130, 160), commit=False)
            assert read(30) == list(range(100, 130))
            brokers.processes[victim].start()
            for topic in ("t", "__consumer_offsets", "__transaction_state"):
                brokers.until(lambda topic=topic: brokers.in_sync(topic), f"{topic} in sync")
        consumer.close()
        assert sorted(consumed(brokers, "t", 3)) == sorted([*range(30), *[*range(100, 130)] * 2])


def test_deleted_records_are_gone_from_every_replica(
    tmp_path: Path, shared: ZooKeeperProcess
) -> None:
    """KIP-107: the answer is the least log start of all, and comes once each has reached it.

    D-11: a follower's fetch brings it, and not the end of the wait.
    """
    with running(tmp_path, shared) as brokers:
        brokers.create("t")
        produced(brokers, "t", range(100))
        where = TopicPartition("t", 0, 60)
        admin = brokers.admin()
        long = {"request_timeout": 600, "operation_timeout": 600}
        [done] = admin.delete_records([where], **long).values()
        assert done.result(60).low_watermark == 60
        kept = [
            (p.data / "t-0" / ".lapse" / "log-start").exists() for p in brokers.processes.values()
        ]
        assert kept == [True, True, True]
        before = brokers.leader("t")
        brokers.processes[before].kill()
        brokers.until(lambda: brokers.leader("t") not in {-1, before}, "another leader")
        found = []

        def ask() -> None:
            admin = brokers.admin()  # one keeps the leader that it was told first, who may be dead
            [start] = admin.list_offsets({TopicPartition("t", 0): OffsetSpec.earliest()}).values()
            found.append(start.result(30).offset)

        brokers.until_ok(ask)
        assert found == [60]


def test_who_waits_for_a_deletion_hears_of_another_leader(
    tmp_path: Path, shared: ZooKeeperProcess
) -> None:
    """D-11: it has a dead replica to wait for, and another broker to ask."""
    slow = {
        "zookeeper.session.timeout.ms": "40000", "replica.lag.time.max.ms": "600000",
        "leader.imbalance.check.interval.seconds": "300",
    }  # fmt: skip
    with running(tmp_path, shared, slow) as brokers:
        admin = brokers.admin()
        controls = admin.list_topics(timeout=30).controller_id  # it elects, so it stays alive
        preferred, dead = sorted(brokers.processes.keys() - {controls})
        brokers.create_at("t", preferred, controls, dead)
        produced(brokers, "t", range(100))
        brokers.processes[preferred].stop()
        brokers.processes[preferred].start()
        brokers.until(lambda: brokers.in_sync("t"), "all in sync again")
        assert brokers.leader("t") == controls
        brokers.processes[dead].kill()
        long = {"request_timeout": 600, "operation_timeout": 600}
        [waits] = admin.delete_records([TopicPartition("t", 0, 60)], **long).values()
        waiting = 'purgatorysize{delayedOperation="DeleteRecords"}'
        brokers.until(lambda: metric(brokers.processes[controls], waiting) == 1, "it waits")
        assert not waits.done()
        brokers.until(lambda: elected(brokers) == "", "the election")
        with pytest.raises(KafkaException, match="NOT_LEADER"):
            waits.result(60)


def test_who_is_not_counted_for_a_deletion_is_named(
    tmp_path: Path, shared: ZooKeeperProcess
) -> None:
    """KIP-107: a dead replica is waited for while it is in sync, and not once it is not."""
    longer = {"zookeeper.session.timeout.ms": "6000", "replica.lag.time.max.ms": "20000"}
    with running(tmp_path, shared, longer) as brokers:
        brokers.create_at("t", 1, 2, 3)
        produced(brokers, "t", range(100))
        admin, leading = brokers.admin(), brokers.processes[1]
        brokers.processes[3].kill()
        [waits] = admin.delete_records(
            [TopicPartition("t", 0, 60)], request_timeout=30, operation_timeout=1
        ).values()
        with pytest.raises(KafkaException, match="TIMED_OUT"):
            waits.result(30)
        assert metric(leading, "delayeddeleterecordsmetrics_expires_total") == 1
        late = "t-0: not deleted below 60 in time: the log starts of replicas are {3: 0}"
        brokers.until(lambda: late in leading.log(), "who is late")
        brokers.until(lambda: 3 not in brokers.topic("t").partitions[0].isrs, "it is not in sync")
        [done] = admin.delete_records([TopicPartition("t", 0, 70)], request_timeout=30).values()
        assert done.result(30).low_watermark == 70
        named = "t-0: deleted below 70; not counted, since they are away: replicas [3]"
        assert named in leading.log()
        [done] = admin.delete_records([TopicPartition("t", 0, 80)], request_timeout=30).values()
        assert done.result(30).low_watermark == 80
        assert leading.log().count("not counted, since they are away") == 1


def metric(broker: BrokerProcess, name: str) -> float:
    """Of the one whose name ends so."""
    with urlopen(f"http://{broker.http}/metrics") as answer:
        text = answer.read().decode()
    samples = [line.split() for line in text.splitlines() if not line.startswith("#")]
    [value] = [float(sample[1]) for sample in samples if sample[0].endswith(name)]
    return value


def test_who_asks_the_wrong_broker_is_told_who_leads(
    tmp_path: Path, shared: ZooKeeperProcess
) -> None:
    """KIP-951: with the error, from the versions on that have room for it."""
    with running(tmp_path, shared) as brokers:
        brokers.create_at("t", 1, 2)
        for wrong in (2, 3):  # a broker tells in Metadata what it has yet to carry out
            brokers.until(lambda n=wrong: asyncio.run(leader_told_by(brokers, n)) == 1, "it knows")
        asyncio.run(ask_the_wrong_ones(brokers))


def one_record() -> ProduceRequest:
    batch = build_batch([NewRecord(b"k", b"v")], BatchSpec())
    wanted = PartitionProduceData(index=0, records=batch)
    topic = TopicProduceData(name="t", partition_data=(wanted,))
    return ProduceRequest(acks=1, timeout_ms=5000, topic_data=(topic,))


async def leader_told_by(brokers: Brokers, wrong: int) -> int:
    """By a broker that does not lead; -1 while it does not know who does."""
    host, _, port = brokers.processes[wrong].bootstrap.rpartition(":")
    async with await BrokerConnection.open(host, int(port)) as connection:
        made = await connection.request(one_record(), ProduceResponse, version=10)
        return made.responses[0].partition_responses[0].current_leader.leader_id


async def ask_the_wrong_ones(brokers: Brokers) -> None:
    """One that follows, and one that has no replica."""
    host, _, port = brokers.processes[1].bootstrap.rpartition(":")
    not_here = ErrorCode.NOT_LEADER_OR_FOLLOWER
    produce = one_record()
    one = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    topic = FetchTopic(topic_id=brokers.topic_id("t"), partitions=(one,))
    fetch = FetchRequest(max_wait_ms=0, min_bytes=0, topics=(topic,))
    for wrong in (2, 3):
        own_host, _, own_port = brokers.processes[wrong].bootstrap.rpartition(":")
        async with await BrokerConnection.open(own_host, int(own_port)) as connection:
            for version, told in ((9, False), (10, True)):
                made = await connection.request(produce, ProduceResponse, version=version)
                [refused] = made.responses[0].partition_responses
                assert refused.error_code == not_here
                assert (refused.current_leader.leader_id == 1) is told
                found = [(n.node_id, n.host, n.port) for n in made.node_endpoints]
                assert found == ([(1, host, int(port))] if told else [])
            for version, told in ((15, False), (16, True)):
                got = await connection.request(fetch, FetchResponse, version=version)
                [data] = got.responses[0].partitions
                if wrong == 2:  # consumers read from followers that are in sync (KIP-392)
                    assert data.error_code == ErrorCode.NONE
                    continue
                assert data.error_code == not_here
                leader = data.current_leader
                assert (leader.leader_id, leader.leader_epoch) == ((1, 0) if told else (-1, -1))
                found = [(n.node_id, n.host, n.port) for n in got.node_endpoints]
                assert found == ([(1, host, int(port))] if told else [])
