"""Blocks of producer ids: each is given once, whatever becomes of commits and their answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from lapse.base.errors import CorruptData
from lapse.metadata import producer_ids
from lapse.metadata.producer_ids import NEXT
from lapse.metadata.tree import Change, Create, Step
from lapse.testing.memory_tree import MemoryEnsemble


def test_brokers_that_take_one_block_commit_something_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So that a tree can tell what it has done itself from what another one has done."""
    ensemble = MemoryEnsemble()
    ensemble.connect().commit([Create(NEXT, b"1000")])  # as brokers from before it leave it
    committed: list[Sequence[Step]] = []
    for broker in (1, 2, 1, 1):
        tree = ensemble.connect()

        def noted(
            steps: Sequence[Step], commit: Callable[[Sequence[Step]], None] = tree.commit
        ) -> None:
            committed.append(steps)
            commit(steps)

        monkeypatch.setattr(tree, "commit", noted)
        begin = 1000 * len(committed) + 1000
        assert producer_ids.allocate(tree, broker, 1000) == range(begin, begin + 1000)
    marks = [step.data for _, step in committed if isinstance(step, Create | Change)]
    assert len(set(marks)) == len(committed)
    assert ensemble.nodes[NEXT].data == b"5000"  # and as they read it


def test_what_is_not_there_is_not_guessed_at() -> None:
    with pytest.raises(CorruptData, match="must be there"):
        producer_ids.allocate(MemoryEnsemble().connect(), 1, 10)
