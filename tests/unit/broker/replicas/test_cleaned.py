"""L3: what brokers tell each other of how far their replicas are cleaned."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from lapse.base.config import BrokerConfig, broker_config, topic_config
from lapse.base.fs import RealFs
from lapse.broker.logs.disk import DiskThreads
from lapse.broker.logs.partitions import Partitions
from lapse.broker.replicas.cleaned import Cleaned, Copy
from lapse.log.env import LogEnv
from lapse.log.facts import CleanedTo, ReplicaFacts
from lapse.metadata.image import Topic
from lapse.metadata.partition_states import first_state
from lapse.metadata.store import TopicRecord
from lapse.metadata.tree import Unreachable
from lapse.metadata.tree_store import TreeStore
from lapse.testing.clock import ManualClock
from lapse.testing.memory_tree import MemoryEnsemble, MemoryTree
from tests.support.log.logs import NOW, append, batch

CONFIG = topic_config({"cleanup.policy": "compact", "delete.retention.ms": "0"})
TOPIC = Topic("t", uuid.uuid4(), 1, {}, CONFIG, (first_state((1, 2)),))


@dataclass
class Broker:
    """One of two, with its replica."""

    partitions: Partitions
    tree: MemoryTree
    cleaned: Cleaned
    copy: Copy

    @property
    def known(self) -> tuple[ReplicaFacts, ...]:
        return self.copy.log.replicas

    def clean_to(self, offset: int) -> None:
        self.copy.log.cleaner_checkpoint = offset


def config(path: Path, node_id: int) -> BrokerConfig:
    return broker_config({"log.dirs": str(path), "node.id": str(node_id)})


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW)


@pytest.fixture
def brokers(tmp_path: Path, clock: ManualClock) -> Iterator[tuple[Broker, Broker]]:
    ensemble = MemoryEnsemble()
    made = []
    for n in (1, 2):
        path = tmp_path / str(n)
        path.mkdir()
        partitions = Partitions([path], config(path, n), LogEnv(RealFs(), clock))
        partitions.lock()
        partitions.create(TOPIC)
        tree = ensemble.connect()
        store = TreeStore(tree, list, lambda: "", n)
        if n == 1:
            store.create_topics([TopicRecord("t", TOPIC.topic_id, 1, {}, TOPIC.states)])
        [log] = partitions.all()
        for _ in range(4):
            append(log, batch(records=1, size=10))
        copy = Copy(TOPIC, log, (3 - n,))
        cleaned = Cleaned(partitions, DiskThreads("test"), store)
        cleaned.set_copies({log.partition: copy})
        made.append(Broker(partitions, tree, cleaned, copy))
    yield made[0], made[1]
    for one in made:
        one.partitions.close()


def test_until_the_others_were_asked_nothing_is_known(brokers: tuple[Broker, Broker]) -> None:
    one, _ = brokers
    assert one.known == (ReplicaFacts(2, (), 0, counted=False),)
    one.cleaned.tell()
    assert one.known == (ReplicaFacts(2, (), 0),)  # and it has cleaned nothing


def test_each_learns_how_far_the_other_is(brokers: tuple[Broker, Broker]) -> None:
    one, other = brokers
    one.clean_to(3)
    one.cleaned.tell()
    other.cleaned.tell()
    assert other.known == (ReplicaFacts(1, (CleanedTo(3, NOW),), 0),)
    before = other.copy.log.mark()
    other.cleaned.tell()
    assert other.copy.log.mark() == before  # facts that stay the same are not decided on again


def test_who_must_clean_again_takes_its_word_back_before_it_fetches(
    brokers: tuple[Broker, Broker],
) -> None:
    one, other = brokers
    one.clean_to(3)
    one.cleaned.tell()
    one.clean_to(1)
    one.cleaned.take_back(one.copy)
    other.cleaned.tell()
    assert other.known == (ReplicaFacts(1, (), 0),)


def test_a_word_of_an_earlier_life_is_taken_back_too(
    brokers: tuple[Broker, Broker], clock: ManualClock
) -> None:
    one, other = brokers
    one.clean_to(3)
    one.cleaned.tell()
    again = Cleaned(one.partitions, DiskThreads("test"), TreeStore(one.tree, list, lambda: "", 1))
    one.clean_to(0)
    again.take_back(one.copy)
    other.cleaned.tell()
    assert other.known == (ReplicaFacts(1, (), 0),)
    clock.advance(1000)
    one.clean_to(2)
    again.set_copies({one.copy.log.partition: one.copy})
    again.tell()
    other.cleaned.tell()
    assert other.known == (ReplicaFacts(1, (CleanedTo(2, NOW + 1000),), 0),)


def test_a_word_that_cannot_be_taken_back_holds_the_follower_up(
    brokers: tuple[Broker, Broker],
) -> None:
    one, _ = brokers
    one.clean_to(3)
    one.cleaned.tell()
    one.clean_to(0)
    one.tree.is_connected = False
    with pytest.raises(Unreachable):
        one.cleaned.take_back(one.copy)
    one.tree.is_connected = True
    one.cleaned.take_back(one.copy)  # what is stored is read anew


def test_another_set_of_replicas_is_unknown_again(brokers: tuple[Broker, Broker]) -> None:
    one, _ = brokers
    one.cleaned.tell()
    moved = replace(one.copy, others=(2, 3))
    one.cleaned.set_copies({moved.log.partition: moved})
    assert [replica.counted for replica in one.known] == [False, False]
