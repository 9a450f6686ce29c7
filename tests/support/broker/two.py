"""Two brokers with a replica each, and the metadata store that they share."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lapse.base.config import BrokerConfig, broker_config, topic_config
from lapse.base.fs import RealFs
from lapse.broker.logs.disk import DiskThreads
from lapse.broker.logs.partitions import Partitions
from lapse.broker.replicas.cleaned import Cleaned, Copy
from lapse.log.env import LogEnv
from lapse.log.facts import ReplicaFacts
from lapse.metadata.image import Topic
from lapse.metadata.partition_states import first_state
from lapse.metadata.store import TopicRecord
from lapse.metadata.tree_store import TreeStore
from lapse.testing.clock import ManualClock
from lapse.testing.memory_tree import MemoryEnsemble, MemoryTree
from tests.support.log.logs import append, batch

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


@contextmanager
def two_brokers(tmp_path: Path, clock: ManualClock) -> Iterator[tuple[Broker, Broker]]:
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
        cleaned = Cleaned(partitions, DiskThreads("test"), DiskThreads("asking"), store)
        cleaned.set_copies({log.partition: copy})
        made.append(Broker(partitions, tree, cleaned, copy))
    yield made[0], made[1]
    for one in made:
        one.partitions.close()
