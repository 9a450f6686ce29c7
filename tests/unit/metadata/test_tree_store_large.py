"""Topics that are more than one commit takes, and topics that go while they are read."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence

import pytest
from kazoo.protocol import serialization as wire
from kazoo.security import OPEN_ACL_UNSAFE

from lapse.base.errors import ErrorCode, KafkaError
from lapse.log.facts import CleanedTo
from lapse.metadata.partition_states import first_state
from lapse.metadata.store import TopicRecord
from lapse.metadata.tree import Change, Create, Node, Remove, Step, Touch, Unreachable
from lapse.metadata.tree_store import STATES_AT_ONCE, Said, TreeStore
from lapse.metadata.tree_topics import topic_path
from lapse.testing.memory_tree import MemoryEnsemble, MemoryTree

JUTE_BYTES_MAX = 0xFFFFF  # of ZooKeeper, where nobody has set another


class Limited(MemoryTree):
    """Hangs up where ZooKeeper would."""

    def __init__(self, ensemble: MemoryEnsemble) -> None:
        super().__init__(ensemble, ensemble.begin_session())
        self.steps: list[int] = []

    def commit(self, steps: Sequence[Step]) -> None:
        size = len(wire.Transaction([_operation(step) for step in steps]).serialize())
        if size > JUTE_BYTES_MAX:
            raise Unreachable(f"a packet of {size} bytes: the server hangs up")
        self.steps.append(len(steps))
        super().commit(steps)


def _operation(step: Step) -> object:
    match step:
        case Create():
            return wire.Create(step.path, step.data, OPEN_ACL_UNSAFE, 0)
        case Change():
            return wire.SetData(step.path, step.data, step.version)
        case Touch():
            return wire.SetData(step.path, step.data, -1)
        case Remove():
            return wire.Delete(step.path, step.version)
    return wire.CheckVersion(step.path, step.version)


class Interrupted(MemoryTree):
    """Before it reads states of partitions, others are done with something."""

    def __init__(self, ensemble: MemoryEnsemble, before: Callable[[], None]) -> None:
        super().__init__(ensemble, ensemble.begin_session())
        self._before: Callable[[], None] | None = before

    def get(self, paths: Sequence[str]) -> Sequence[Node | None]:
        if self._before is not None and paths and paths[0].endswith("/0"):
            before, self._before = self._before, None
            before()
        return super().get(paths)


def store_of(tree: MemoryTree, node_id: int = 1) -> TreeStore:
    return TreeStore(tree, list, lambda: "", node_id)


def topic_of(partitions: int, *replicas: int) -> TopicRecord:
    states = (first_state(replicas),) * partitions
    return TopicRecord("t", uuid.uuid4(), partitions, {}, states)


def test_a_large_compacted_topic_is_forgotten() -> None:
    """A state and three brokers' words for each partition."""
    ensemble = MemoryEnsemble()
    trees = [Limited(ensemble) for _ in range(3)]
    stores = [store_of(tree, n) for n, tree in enumerate(trees, start=1)]
    topic = topic_of(800, 1, 2, 3)
    stores[0].create_topics([topic])
    for n, store in enumerate(stores, start=1):
        store.say({Said(topic.topic_id, p, n): (CleanedTo(1, 1),) for p in range(800)})
    stores[0].start_deletion(topic.topic_id)
    for store in stores:
        store.finish_deletion(topic.topic_id)
    assert stores[0].deletions() == []
    assert not [path for path in ensemble.nodes if path.startswith(topic_path(topic.topic_id))]
    assert max(trees[2].steps) <= STATES_AT_ONCE


def test_one_that_is_too_large_to_be_made_is_refused_and_not_sent() -> None:
    store = store_of(Limited(MemoryEnsemble()))
    with pytest.raises(KafkaError, match="at once are allowed") as refused:
        store.create_topics([topic_of(4500, 1, 2, 3)])
    assert refused.value.code == ErrorCode.INVALID_REQUEST


def test_one_that_is_forgotten_in_part_is_still_to_be_deleted() -> None:
    """Its broker was killed in between: the next life goes on."""
    ensemble = MemoryEnsemble()
    store, topic = store_of(ensemble.connect()), topic_of(3, 1)
    store.create_topics([topic])
    store.start_deletion(topic.topic_id)
    ensemble.connect().commit([Remove(f"{topic_path(topic.topic_id)}/0", 0)])
    [left] = store.deletions()
    assert (left.topic_id, left.partitions, left.states) == (topic.topic_id, 3, ())
    store.finish_deletion(topic.topic_id)
    assert store.deletions() == []


def test_a_node_that_no_partition_has_is_forgotten_too() -> None:
    ensemble = MemoryEnsemble()
    store, topic = store_of(ensemble.connect()), topic_of(2, 1)
    store.create_topics([topic])
    store.start_deletion(topic.topic_id)
    ensemble.connect().commit([Create(f"{topic_path(topic.topic_id)}/2", b"")])
    store.finish_deletion(topic.topic_id)
    assert store.deletions() == []


def test_one_that_goes_while_it_is_read_is_not_there() -> None:
    """Without states it would be a lone broker's: each broker's, that is."""
    ensemble = MemoryEnsemble()
    others, topic = store_of(ensemble.connect(), 2), topic_of(2, 2)
    others.create_topics([topic])

    def deleted() -> None:
        others.start_deletion(topic.topic_id)
        others.finish_deletion(topic.topic_id)

    assert store_of(Interrupted(ensemble, deleted)).topics() == []


def test_one_that_is_forgotten_in_part_while_it_is_read_is_not_there() -> None:
    """Its own node goes last: it is there still, and not a lone broker's."""
    ensemble = MemoryEnsemble()
    others, topic = store_of(ensemble.connect(), 2), topic_of(2, 2)
    others.create_topics([topic])

    def begun() -> None:
        others.start_deletion(topic.topic_id)
        path = topic_path(topic.topic_id)
        ensemble.connect().commit([Remove(f"{path}/{number}", 0) for number in range(2)])

    assert store_of(Interrupted(ensemble, begun)).topics() == []


def test_a_lone_brokers_topic_has_no_states() -> None:
    ensemble = MemoryEnsemble()
    store, lone = store_of(ensemble.connect()), TopicRecord("t", uuid.uuid4(), 2, {})
    store.create_topics([lone])
    assert store.topics() == [lone]
