"""A broker's place in a cluster: one for each id, one controller, and what it changes is fenced."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from lapse.base.clock import SystemClock
from lapse.base.errors import ConfigError, ErrorCode, KafkaError
from lapse.metadata.membership import (
    CONTROLLER,
    CONTROLLER_EPOCH,
    Interrupted,
    Membership,
    Registration,
)
from lapse.metadata.tree import Create, Node, Step, Tree, Unreachable
from lapse.metadata.tree_store import TreeStore
from lapse.testing.memory_tree import MemoryEnsemble, MemoryTree
from tests.support.metadata.store_contract import record

ADDRESS = {"PLAINTEXT": ("here", 9092)}


def member(tree: Tree, node_id: int = 0, wait_ms: int = 0) -> Membership:
    return Membership(tree, Registration(node_id), wait_ms, SystemClock())


def store_of(tree: Tree, joining: Membership) -> TreeStore:
    return TreeStore(tree, joining.fence, lambda: "", 0)


def test_each_who_takes_the_office_has_a_higher_epoch() -> None:
    ensemble = MemoryEnsemble()
    epochs = []
    for node_id in range(3):
        tree = ensemble.connect()
        joining = member(tree, node_id)
        joining.join()
        assert joining.controller() is None
        assert joining.take_office()
        assert joining.take_office()  # again in the same session: nothing is taken twice
        assert joining.controller() == joining.last_controller() == node_id
        epochs.append(joining.epoch)
        tree.close()
    assert epochs == [1, 2, 3]


def test_one_holds_the_office_and_the_others_change_nothing() -> None:
    ensemble = MemoryEnsemble()
    tree, other = ensemble.connect(), ensemble.connect()
    first, second = member(tree), member(other, 1)
    for one in (first, second):
        one.join()
    assert first.take_office()
    assert not second.take_office()
    assert (first.controller(), second.controller(), second.epoch) == (0, 0, -1)
    with pytest.raises(KafkaError) as refused:
        store_of(other, second).create_topics([record("t")])
    assert refused.value.code == ErrorCode.NOT_CONTROLLER
    assert store_of(tree, first).topics() == store_of(other, second).topics() == []
    tree.close()
    assert second.take_office()
    store_of(other, second).create_topics([record("t")])


def test_who_lost_the_office_changes_nothing() -> None:
    ensemble = MemoryEnsemble()
    tree, other = ensemble.connect(), ensemble.connect()
    joining, next_one = member(tree), member(other, 1)
    joining.join()
    joining.take_office()
    store = store_of(tree, joining)
    store.create_topics([record("before")])
    tree.end_session()
    next_one.join()
    assert next_one.take_office()
    with pytest.raises(KafkaError) as refused:
        store.create_topics([record("after")])
    assert refused.value.code == ErrorCode.NOT_CONTROLLER
    store_of(other, next_one).create_topics([record("after")])
    joining.join()
    assert not joining.take_office()
    with pytest.raises(KafkaError):
        store.create_topics([record("later")])


def test_the_next_session_takes_the_place_again() -> None:
    ensemble = MemoryEnsemble()
    tree = ensemble.connect()
    joining = member(tree)
    joining.join()
    joining.take_office()
    store = store_of(tree, joining)
    tree.end_session()
    joining.join()
    assert joining.take_office()
    assert joining.epoch == 2
    store.create_topics([record("t")])


def test_who_is_not_registered_takes_no_office() -> None:
    """The next session begins before it is known that the last one has ended."""
    ensemble = MemoryEnsemble()
    tree = ensemble.connect()
    joining = member(tree)
    joining.join()
    assert joining.take_office()
    tree.end_session()
    assert not joining.take_office()
    assert joining.controller() is None
    joining.join()
    assert joining.take_office()


def test_what_brokers_say_of_themselves_is_known() -> None:
    ensemble = MemoryEnsemble()
    tree, other = ensemble.connect(), ensemble.connect()
    first, second = member(tree), member(other, 1)
    for one in (first, second):
        one.join()
    assert first.brokers() == {0: Registration(0), 1: Registration(1)}
    second.announce(ADDRESS)
    assert first.brokers()[1] == Registration(1, ADDRESS)
    second.leave()
    assert first.brokers()[1] == Registration(1, ADDRESS, leaving=True)
    other.end_session()
    assert first.brokers() == {0: Registration(0)}
    second.announce(ADDRESS)  # it is nowhere to be changed, and said anew
    second.join()
    assert first.brokers()[1] == Registration(1, ADDRESS, leaving=True)


def test_who_is_alive_is_not_displaced() -> None:
    ensemble = MemoryEnsemble()
    member(ensemble.connect()).join()
    with pytest.raises(ConfigError, match="another broker with this id"):
        member(ensemble.connect(), 0, wait_ms=150).join()


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
    assert joining.take_office()


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
    joining.join()
    with pytest.raises(Unreachable):
        joining.take_office()
    tree.is_lost = False
    assert joining.take_office()
    assert joining.epoch == 1
    store_of(tree, joining).create_topics([record("t")])


def test_the_office_that_is_taken_again_in_the_next_session_has_its_own_epoch() -> None:
    """Somebody else held the office in between."""
    ensemble = MemoryEnsemble()
    tree, other = ensemble.connect(), ensemble.connect()
    joining, next_one = member(tree), member(other, 1)
    joining.join()
    assert joining.take_office()
    tree.end_session()
    next_one.join()
    assert next_one.take_office()
    other.close()
    assert not joining.take_office()
    assert joining.epoch == -1
    joining.join()
    assert joining.take_office()
    assert joining.epoch == 3
    store_of(tree, joining).create_topics([record("t")])


def test_the_epoch_of_another_one_is_never_taken_for_its_own() -> None:
    """The office is lost between two looks at it."""
    ensemble = MemoryEnsemble()
    tree, other = ensemble.connect(), ensemble.connect()
    joining, next_one = member(tree), member(other, 1)
    for one in (joining, next_one):
        one.join()

    class Late(MemoryTree):
        def get(self, paths: Sequence[str]) -> Sequence[Node | None]:
            if list(paths) == [CONTROLLER_EPOCH] and self.owner(CONTROLLER) == self.session:
                self.end_session()
                assert next_one.take_office()
            return super().get(paths)

    late = Late(ensemble, ensemble.begin_session())
    lost = member(late, 2)
    lost.join()
    assert not lost.take_office()
    with pytest.raises(KafkaError):
        lost.fence()
