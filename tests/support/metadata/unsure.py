"""A tree whose answers get lost."""

from __future__ import annotations

from collections.abc import Sequence

from lapse.metadata.tree import Check, Step, Unreachable
from lapse.metadata.tree_store import TreeStore
from lapse.testing.memory_tree import MemoryEnsemble, MemoryTree


class UnsureTree(MemoryTree):
    """Whether a commit is done when its answer is lost: None where it is not lost."""

    is_done: bool | None = None

    def commit(self, steps: Sequence[Step]) -> None:
        done = self.is_done
        if done is not False:
            super().commit(steps)
        if done is not None:
            raise Unreachable("no answer")


def unsure_store() -> tuple[UnsureTree, TreeStore]:
    """A new store, and the tree under it."""
    ensemble = MemoryEnsemble()
    tree = UnsureTree(ensemble, ensemble.begin_session())
    checks: Sequence[Check] = ()
    return tree, TreeStore(tree, lambda: checks, lambda: "cluster-of-a-test-0000", 0)
