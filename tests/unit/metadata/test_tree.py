"""The tree in memory does what any does, and goes away as ZooKeeper does."""

from __future__ import annotations

import pytest

from lapse.metadata.tree import Create, Unreachable
from lapse.testing.memory_tree import MemoryEnsemble
from tests.support.metadata.tree_contract import Connect, TreeContract


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
        lambda: tree.commit([]),
    ):  # fmt: skip
        with pytest.raises(Unreachable):
            ask()
