"""The tree in memory does what any does, and goes away as ZooKeeper does."""

from __future__ import annotations

import pytest

from lapse.metadata.tree import Create, Touch, Unreachable
from lapse.testing.memory_tree import MemoryEnsemble
from tests.support.metadata.tree_contract import Connect, TreeContract, fails


class TestContract(TreeContract):
    @pytest.fixture
    def connect(self) -> Connect:
        return MemoryEnsemble().connect


def test_a_session_that_has_ended_is_told_and_goes_on_as_another() -> None:
    ensemble = MemoryEnsemble()
    tree, other = ensemble.connect(), ensemble.connect()
    tree.commit([Create("/mine", b"", of_session=True)])
    ended: list[int] = []
    before = tree.session
    tree.when_session_ends(fails)
    tree.when_session_ends(lambda: ended.append(tree.session))
    tree.end_session()
    assert ended == [tree.session]
    assert tree.session not in {before, other.session}
    assert other.get(["/mine"]) == [None]


def test_a_cut_network_answers_nothing() -> None:
    tree = MemoryEnsemble().connect()
    tree.is_connected = False
    for ask in (
        lambda: tree.get(["/"]), lambda: tree.children("/"), lambda: tree.owner("/"),
        lambda: tree.commit([]), lambda: tree.watch(["/"], fails),
    ):  # fmt: skip
        with pytest.raises(Unreachable):
            ask()


@pytest.mark.parametrize("how", ["session", "connection"])
def test_who_watches_is_called_once_what_it_watches_through_is_lost(how: str) -> None:
    ensemble = MemoryEnsemble()
    tree, other = ensemble.connect(), ensemble.connect()
    called: list[str] = []
    for path in ("/", "/nowhere"):
        tree.watch([path], lambda path=path: called.append(path))  # type: ignore[misc]
        other.watch([path], lambda path=path: called.append(f"other {path}"))  # type: ignore[misc]
    if how == "session":
        tree.end_session()
    else:
        tree.is_connected = False
    assert called == ["/", "/nowhere"]
    tree.is_connected = True
    other.commit([Touch("/", b"")])
    assert called == ["/", "/nowhere", "other /"]


def test_who_is_called_finds_the_tree_free() -> None:
    """ZooKeeper calls in a thread of its own: no lock is held that a commit waits for."""
    ensemble = MemoryEnsemble()
    tree, other = ensemble.connect(), ensemble.connect()
    found: list[bool] = []
    tree.watch(["/a"], lambda: found.append(ensemble.lock.locked()))
    other.commit([Create("/a", b"", of_session=True)])
    tree.watch(["/a"], lambda: found.append(ensemble.lock.locked()))
    other.close()
    tree.watch(["/a"], lambda: found.append(ensemble.lock.locked()))
    tree.end_session()
    assert found == [False, False, False]
