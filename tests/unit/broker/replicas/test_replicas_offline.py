"""A leader whose log is offline, and nobody else is in sync: who may lead then, and until when."""

from __future__ import annotations

import errno
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lapse.base.config import broker_config
from lapse.base.errors import ErrorCode
from lapse.broker.cluster import elect
from lapse.broker.logs.disk import DiskThreads
from lapse.broker.logs.partitions import Partitions
from lapse.broker.logs.topics import Topics
from lapse.broker.replicas.leading import Surroundings
from lapse.broker.replicas.replicas import Replicas
from lapse.metadata.partition_states import NO_LEADER, PartitionState, first_state, with_isr
from lapse.metadata.store import TopicRecord
from lapse.metadata.tree_store import TreeStore
from lapse.testing.memory_tree import MemoryEnsemble
from tests.support.broker.running import until
from tests.support.log.logs import append, batch, env
from tests.unit.broker.replicas.test_replicas_made_anew import TP, surroundings

TOPIC_ID = uuid.uuid4()
ALONE_IN_SYNC, ONLY_ONE = with_isr(first_state((1, 2)), (1,)), first_state((1,))


@dataclass
class Broker:
    around: Surroundings
    disk: DiskThreads
    store: TreeStore
    topics: Topics
    replicas: Replicas

    @property
    def stored(self) -> PartitionState:
        [topic] = self.store.topics()
        return topic.states[0]

    async def lead(self, state: PartitionState) -> None:
        self.store.create_topics([TopicRecord("t", TOPIC_ID, 1, {}, (state,))])
        self.topics.set_states = self.store.set_states
        await self.topics.load()
        await self.replicas.carry_out(self.topics.image)
        self.around.partitions.stamp("c")
        append(self.around.partitions.led(TP).log, batch())

    async def lose_the_disk(self) -> None:
        self.around.partitions.report(TP, OSError(errno.EIO, "the disk is broken"))
        await self.replicas.carry_out(self.topics.image)
        await until(lambda: self.stored.leader == NO_LEADER)
        await until(lambda: not self.replicas._tasks)
        await self.topics.reread()

    def elect(self) -> PartitionState:
        elect(self.store, self.around.members.alive, None)
        return self.stored


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    store = TreeStore(MemoryEnsemble().connect(), list, lambda: "c", 1)
    around, disk = surroundings(tmp_path)
    topics = Topics(store, around.partitions, disk, around.purgatory, around.config, around.members)
    one = Broker(around, disk, store, topics, Replicas(around, store))
    yield one
    for task in list(one.replicas._tasks):
        task.cancel()
    around.partitions.close()
    await disk.close()
    await around.asking.close()


async def test_another_one_may_be_chosen(broker: Broker) -> None:
    await broker.lead(ALONE_IN_SYNC)
    await broker.lose_the_disk()
    waiting = broker.elect()
    assert (waiting.leader, waiting.leader_epoch, waiting.isr) == (NO_LEADER, 1, (1,))
    found = await broker.topics.elect_unclean([TP])
    assert found == {TP: ErrorCode.NONE}
    assert (broker.stored.leader, broker.stored.isr, broker.stored.lost) == (2, (2,), ())
    await broker.replicas.carry_out(broker.topics.image)
    assert not broker.around.partitions.is_online(TP)


@pytest.mark.parametrize("state", [ALONE_IN_SYNC, ONLY_ONE])
async def test_it_leads_again_once_it_has_started_with_its_disk(
    broker: Broker, tmp_path: Path, state: PartitionState
) -> None:
    await broker.lead(state)
    await broker.lose_the_disk()
    assert broker.elect().leader == NO_LEADER
    broker.around.partitions.close()
    of_cluster = {"log.dirs": str(tmp_path), "node.id": "1", "zookeeper.connect": "here:1"}
    partitions = Partitions([tmp_path], broker_config(of_cluster), env())
    broker.store.resign(lambda *_: False)  # the disk is not there yet
    assert broker.elect().leader == NO_LEADER
    partitions.lock()
    broker.store.resign(lambda topic, _: partitions.has(TP, topic.topic_id))
    after = broker.elect()
    assert (after.leader, after.leader_epoch, after.isr, after.lost) == (1, 2, (1,), ())
    around = broker.around
    topics = Topics(
        broker.store, partitions, broker.disk, around.purgatory, around.config, around.members
    )
    await topics.load()
    assert partitions.get(TP).log_end_offset > 0
    partitions.close()


async def test_what_is_offline_for_another_reason_is_not_taken_for_lost(broker: Broker) -> None:
    """Such as a full disk when it was to be made: the next start makes it."""
    await broker.lead(ALONE_IN_SYNC)
    partitions = broker.around.partitions
    partitions.remove_one(TP, broker.topics.image.topics["t"])
    partitions.offline[TP] = "no space left on device"
    await broker.replicas.carry_out(broker.topics.image)
    await until(lambda: not broker.replicas._tasks)
    assert (broker.stored.leader, broker.stored.lost) == (1, ())
