"""A broker's place in a cluster: one at a time, and what it changes is fenced."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from lapse.base.clock import SystemClock
from lapse.base.errors import ConfigError, ErrorCode, KafkaError
from lapse.metadata.membership import CONTROLLER, Interrupted, Membership
from lapse.metadata.tree import Create, Step, Tree, Unreachable
from lapse.metadata.tree_store import TreeStore
from lapse.testing.memory_tree import MemoryEnsemble, MemoryTree
from tests.support.metadata.store_contract import record


def member(tree: Tree, node_id: int = 0, wait_ms: int = 0) -> Membership:
    return Membership(tree, node_id, wait_ms, SystemClock())


def test_each_who_takes_the_office_has_a_higher_epoch() -> None:
    ensemble = MemoryEnsemble()
    epochs = []
    for _ in range(3):
        tree = ensemble.connect()
        joining = member(tree)
        joining.join()
        joining.join()  # again in the same session: nothing is taken twice
        epochs.append(joining.epoch)
        tree.close()
    assert epochs == [1, 2, 3]


def test_who_lost_the_office_changes_nothing() -> None:
    ensemble = MemoryEnsemble()
    tree, other = ensemble.connect(), ensemble.connect()
    joining, next_one = member(tree), member(other, 1)
    joining.join()
    store = TreeStore(tree, joining.fence, lambda: "")
    store.create_topics([record("before")])
    tree.end_session()
    next_one.join()
    with pytest.raises(KafkaError) as refused:
        store.create_topics([record("after")])
    assert refused.value.code == ErrorCode.NOT_CONTROLLER
    TreeStore(other, next_one.fence, lambda: "").create_topics([record("after")])
    with pytest.raises(ConfigError, match="broker 1 is there already"):
        joining.join()


def test_the_next_session_takes_the_place_again() -> None:
    ensemble = MemoryEnsemble()
    tree = ensemble.connect()
    joining = member(tree)
    joining.join()
    store = TreeStore(tree, joining.fence, lambda: "")
    tree.end_session()
    joining.join()
    assert joining.epoch == 2
    store.create_topics([record("t")])


@pytest.mark.parametrize(
    ("node_id", "words"), [(0, "another broker with this id"), (1, "broker 0 is there already")]
)
def test_who_is_alive_is_not_displaced(node_id: int, words: str) -> None:
    ensemble = MemoryEnsemble()
    member(ensemble.connect()).join()
    with pytest.raises(ConfigError, match=words):
        member(ensemble.connect(), node_id, wait_ms=150).join()


def test_who_died_is_waited_for() -> None:
    ensemble = MemoryEnsemble()
    dead, tree = ensemble.connect(), ensemble.connect()
    member(dead).join()
    looked = threading.Event()

    class Looks(MemoryTree):
        def owner(self, path: str) -> int | None:
            looked.set()
            return super().owner(path)

    joining = member(Looks(ensemble, tree.session), wait_ms=60_000)
    thread = threading.Thread(target=joining.join)
    thread.start()
    assert looked.wait(30)
    dead.end_session()
    thread.join()
    assert joining.epoch == 2


def test_a_broker_that_stops_waits_for_nobody() -> None:
    ensemble = MemoryEnsemble()
    member(ensemble.connect()).join()
    joining = member(ensemble.connect(), wait_ms=60_000)
    joining.stop()
    with pytest.raises(Interrupted):
        joining.join()


def test_an_office_that_was_taken_unknowingly_has_its_epoch() -> None:
    """The answer was lost; what is changed later is fenced by the epoch that was taken then."""
    ensemble = MemoryEnsemble()

    class Unsure(MemoryTree):
        is_lost = True

        def commit(self, steps: Sequence[Step]) -> None:
            super().commit(steps)
            if self.is_lost and isinstance(steps[0], Create) and steps[0].path == CONTROLLER:
                raise Unreachable("no answer")

    tree = Unsure(ensemble, ensemble.begin_session())
    joining = member(tree)
    with pytest.raises(Unreachable):
        joining.join()
    tree.is_lost = False
    joining.join()
    assert joining.epoch == 1
    TreeStore(tree, joining.fence, lambda: "").create_topics([record("t")])
