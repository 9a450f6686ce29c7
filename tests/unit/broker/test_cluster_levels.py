"""A cluster's level rises once all may go further; a broker that is away is waited for."""

from __future__ import annotations

import uuid

import pytest

from lapse.broker.cluster import raise_level
from lapse.metadata.features import Levels
from lapse.metadata.membership import Registration
from lapse.metadata.partition_states import first_state
from lapse.metadata.store import TopicRecord
from lapse.metadata.tree_store import TreeStore
from lapse.testing.memory_tree import MemoryEnsemble


@pytest.fixture
def store() -> TreeStore:
    """Of a cluster on level 1, with a topic on the brokers 1 and 2."""
    found = TreeStore(MemoryEnsemble().connect(), list, lambda: "", 1, Levels(1, 0))
    states = (first_state((1, 2)),)
    found.create_topics([TopicRecord("t", uuid.uuid4(), 1, {}, states)])
    return found


@pytest.mark.parametrize(
    ("protocols", "level"),
    [
        ({1: 3, 2: 3}, 3),
        ({1: 3, 2: 2}, 2),
        ({1: 3, 2: 1}, 1),
        ({1: 3}, 1),  # 2 is away, and nobody knows what it may
        ({1: 3, 3: 3}, 1),
        ({1: 3, 2: 3, 3: 1}, 1),  # has no replica, and would be asked for some
    ],
)
def test_the_level_that_all_may_use(
    store: TreeStore, protocols: dict[int, int], level: int
) -> None:
    raise_level(store, {n: Registration(n, protocol=p) for n, p in protocols.items()})
    assert store.levels() == Levels(level, 0, int(level > 1))
    again = store.levels()
    raise_level(store, {n: Registration(n, protocol=p) for n, p in protocols.items()})
    assert store.levels() == again


def test_who_changes_them_at_the_same_time_is_not_overwritten(
    store: TreeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is looked at again then; the broker must not take it for an end."""
    seen = store.levels()
    store.set_levels(Levels(2, 0, 1))
    monkeypatch.setattr(store, "levels", lambda: seen)
    raise_level(store, {1: Registration(1), 2: Registration(2)})
    monkeypatch.undo()
    assert store.levels() == Levels(2, 0, 1)
    raise_level(store, {1: Registration(1), 2: Registration(2)})
    assert store.levels() == Levels(3, 0, 2)
