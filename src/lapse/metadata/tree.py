"""A tree of small nodes that the brokers of a cluster share: the seam under its metadata.

It is what ZooKeeper gives, and no more: each node has data and a version that every change of the
data raises by one, starting with 0; several steps are committed together or not at all; a node may
go with the session that made it; who watches a node is called once it has changed. Production:
`metadata.zookeeper`; simulation and tests: `testing.memory_tree`.

Called from worker threads only: every call waits for an answer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from lapse.base.errors import LapseError, StorageError

_log = logging.getLogger(__name__)


class Node(NamedTuple):
    """A node's data, and how often it was changed."""

    data: bytes
    version: int


class Create(NamedTuple):
    """Step: a node that is not there, below one that is; `of_session`: it goes with the session."""

    path: str
    data: bytes
    of_session: bool = False


class Change(NamedTuple):
    """Step: other data for a node that has this version."""

    path: str
    data: bytes
    version: int


class Touch(NamedTuple):
    """Step: a node that is there gets other data, whatever version it has."""

    path: str
    data: bytes


class Remove(NamedTuple):
    """Step: a node that has this version, and no nodes below it, goes."""

    path: str
    version: int


class Check(NamedTuple):
    """Step: nothing is changed, but nothing is committed either unless a node has this version."""

    path: str
    version: int


Step = Create | Change | Touch | Remove | Check


class Conflict(LapseError):
    """A commit was refused, and nothing of it done: one step found another tree than it expects.

    Attributes:
        step: which.
    """

    def __init__(self, step: Step, why: str) -> None:
        super().__init__(f"{step.path}: {why}")
        self.step = step


class Unreachable(StorageError):
    """Nobody answered in time; what was asked for may be done or not."""

    is_of_disk = False


class Tree(Protocol):
    """One broker's session with the tree."""

    @property
    def session(self) -> int:
        """Which session it is, a number that no other has; nodes of earlier ones may be gone."""

    @property
    def is_connected(self) -> bool:
        """Whether somebody answers just now, as far as is known."""

    def get(self, paths: Sequence[str]) -> Sequence[Node | None]:
        """Nodes in the order of their paths, None where there is none; not from one moment."""

    def children(self, path: str) -> Sequence[str]:
        """Names of the nodes right below one, sorted; none where it is not there."""

    def owner(self, path: str) -> int | None:
        """The session that a node goes with; None if it stays, or is not there."""

    def commit(self, steps: Sequence[Step]) -> None:
        """Do all steps in order, durably, or none. Raises Conflict and Unreachable."""

    def watch(self, paths: Sequence[str], callback: Callable[[], None]) -> None:
        """Have it called after the first change from now on of one of these nodes.

        A change is one of its data, of its being there, or of the names right below it. It is
        called at least once, perhaps more often (several paths, several times), perhaps before
        this returns. Who watches first and then reads misses nothing. It is called as well when
        the connection or the session was lost, since then nobody knows; not once this is closed.

        It is called in a thread of the library's, so it must not wait, and not use the tree. What
        it raises is logged. It is kept once for a path, if it equals the one that is kept there:
        who watches again gives the same one, or they pile up where nothing changes.

        Raises Unreachable; then it may be called all the same.
        """

    def when_session_ends(self, callback: Callable[[], None]) -> None:
        """Have it called when a session has ended and the next one has begun.

        It is called in a thread of the library's, so it must not wait, and not use the tree.
        """

    def close(self) -> None:
        """End the session: its nodes go at once."""


def nodes_below(tree: Tree, folder: str) -> dict[str, Node]:
    """The nodes right below one, by name; one that goes meanwhile is left out."""
    names = tree.children(folder)
    nodes = tree.get([f"{folder}/{name}" for name in names])
    return {n: node for n, node in zip(names, nodes, strict=True) if node is not None}


def call_all(callbacks: Iterable[Callable[[], None]]) -> None:
    """Call each of them: what one raises is logged, and harms neither the others nor the thread."""
    for callback in callbacks:
        try:
            callback()
        except Exception:  # noqa: BLE001  (it is logged)
            _log.exception("who was told of a change in the tree has failed")
