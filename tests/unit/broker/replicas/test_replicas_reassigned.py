"""A partition with one replica gets a second: who led it leads it on, in the same epoch."""

from __future__ import annotations

import uuid
from pathlib import Path

from lapse.broker.logs.topics import Topics
from lapse.broker.replicas.replicas import Replicas
from lapse.metadata.election import Brokers
from lapse.metadata.partition_states import StateChange, first_state
from lapse.metadata.reassignment import Wish, reassigned
from lapse.metadata.store import TopicRecord
from lapse.metadata.tree_store import TreeStore
from lapse.testing.memory_tree import MemoryEnsemble
from tests.support.log.logs import append, batch
from tests.unit.broker.replicas.test_replicas_made_anew import TP, surroundings


async def test_the_tenure_goes_on(tmp_path: Path) -> None:
    """A coordinator that took it for another one would read a log to which the first still appends.

    Where the epoch begins is only kept from then on.
    """
    ensemble, topic_id = MemoryEnsemble(), uuid.uuid4()
    store, controller = (TreeStore(ensemble.connect(), list, lambda: "c", n) for n in (1, 2))
    around, disk = surroundings(tmp_path)
    partitions = around.partitions
    controller.create_topics([TopicRecord("t", topic_id, 1, {}, (first_state((1,)),))])
    topics = Topics(store, partitions, disk, around.purgatory, around.config, around.members)
    replicas = Replicas(around, store)
    await topics.load()
    await replicas.carry_out(topics.image)
    before = partitions.led(TP)
    append(before.log, batch(records=1))
    [state] = topics.image.topics["t"].states
    after = reassigned(state, Wish((1, 2)), Brokers(frozenset({1, 2})), 0)
    controller.set_states([StateChange(topic_id, 0, after)])
    await topics.reread()
    await replicas.carry_out(topics.image)
    led = partitions.led(TP)
    assert (led.epoch, led.begins_at, before.begins_at) == (before.epoch, 1, 0)
    assert led == before
    for task in list(replicas._tasks):
        task.cancel()
    partitions.close()
    await disk.close()
