"""Who leads a topic that was deleted and made again by its name: nobody, until that is told."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from lapse.base.config import broker_config
from lapse.base.errors import ErrorCode, KafkaError
from lapse.base.ids import TopicPartition
from lapse.broker.limits.quotas import Windows
from lapse.broker.limits.replication_quotas import ReplicationQuotas
from lapse.broker.logs.disk import DiskThreads
from lapse.broker.logs.members import Members
from lapse.broker.logs.partitions import Partitions
from lapse.broker.logs.purgatory import Purgatory
from lapse.broker.logs.topics import Topics
from lapse.broker.replicas.leading import Surroundings
from lapse.broker.replicas.peers import Peers
from lapse.broker.replicas.replicas import AppendedTo, Fetching, Replicas
from lapse.client.login import Login
from lapse.metadata.membership import Registration
from lapse.metadata.partition_states import first_state
from lapse.metadata.settings import BrokerSettings
from lapse.metadata.store import TopicRecord
from lapse.metadata.tree_store import TreeStore
from lapse.testing.memory_tree import MemoryEnsemble
from tests.support.log.logs import append, batch, env

TP = TopicPartition("t", 0)


def surroundings(path: Path) -> tuple[Surroundings, DiskThreads]:
    config = broker_config({"log.dirs": str(path), "node.id": "1"})
    members, disk = Members(1), DiskThreads("test")
    members.is_alone = False
    members.brokers = {n: Registration(n, {"PLAINTEXT": ("here", 1)}) for n in (1, 2)}
    partitions = Partitions([path], config, env())
    partitions.lock()
    clock = env().clock
    peers = Peers(members, "PLAINTEXT", clock, Login)
    quotas = ReplicationQuotas.of(1, Windows(11, 1000), lambda: BrokerSettings({}))
    around = Surroundings(
        config, partitions, disk, DiskThreads("asking", 1), clock, Purgatory(), members, peers,
        quotas,
    )  # fmt: skip
    return around, disk


async def test_nothing_is_acknowledged_by_what_the_topic_before_had(tmp_path: Path) -> None:
    """Both are in epoch 0, and this broker hears of the deletion and of the next one at once."""
    ensemble = MemoryEnsemble()
    store, controller = (TreeStore(ensemble.connect(), list, lambda: "c", n) for n in (1, 2))
    around, disk = surroundings(tmp_path)
    partitions, members = around.partitions, around.members

    def made() -> TopicRecord:
        return TopicRecord("t", uuid.uuid4(), 1, {}, (first_state((1, 2)),))

    controller.create_topics([made()])
    topics = Topics(store, partitions, disk, around.purgatory, around.config, members)
    replicas = Replicas(around, store)
    await topics.load()
    await replicas.carry_out(topics.image)
    old = partitions.led(TP)
    for _ in range(5):
        append(old.log, batch(records=1))
    replicas.fetched(TP, old.epoch, Fetching(2, members.brokers[2].epoch), 5, 0)
    assert old.log.high_watermark == 5
    before = topics.image

    [topic] = before.topics.values()
    controller.start_deletion(topic.topic_id)
    controller.create_topics([made()])
    await topics.reread()
    with pytest.raises(KafkaError) as refused:
        partitions.led(TP)
    assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    ids = {"t": "of the one before"}
    partitions.set_states({TP: topic.states[0]}, {}, ids)  # an older image, carried out late
    with pytest.raises(KafkaError):
        partitions.led(TP)
    log = partitions.get(TP)
    assert log is not old.log
    append(log, batch(records=1))
    partitions.set_state(TP, topics.image.topics["t"].states[0])
    end = [AppendedTo(TP, 0, log.log_end_offset)]
    assert await replicas.committed(end, 0) == [ErrorCode.REQUEST_TIMED_OUT]
    replicas.fetched(TP, 0, Fetching(2, members.brokers[2].epoch), 5, 0)
    assert await replicas.committed(end, 0) == [ErrorCode.REQUEST_TIMED_OUT]

    await replicas.carry_out(topics.image)
    assert partitions.led(TP).log is log
    assert await replicas.committed(end, 0) == [ErrorCode.REQUEST_TIMED_OUT]
    replicas.fetched(TP, 0, Fetching(2, members.brokers[2].epoch), 1, 0)
    assert await replicas.committed(end, 0) == [ErrorCode.NONE]
    for task in list(replicas._tasks):
        task.cancel()
    partitions.close()
    await disk.close()
