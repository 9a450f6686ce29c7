"""A `metadata.tree.Tree` in memory: for simulation, and the judge of what ZooKeeper does.

    ensemble = MemoryEnsemble()
    one, other = ensemble.connect(), ensemble.connect()

`end_session` is what an ensemble does with a client that it has not heard of for too long;
`is_connected = False` is a network that is cut.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from lapse.metadata.tree import Change, Check, Conflict, Create, Node, Remove, Step, Unreachable


@dataclass(slots=True)
class _Kept:
    data: bytes
    owner: int | None = None
    version: int = 0


class MemoryEnsemble:
    """The nodes, and who has a session."""

    def __init__(self) -> None:
        self.nodes: dict[str, _Kept] = {"/": _Kept(b"")}
        self.lock = threading.Lock()
        self._sessions = 0

    def connect(self) -> MemoryTree:
        """Begin a session."""
        return MemoryTree(self, self.begin_session())

    def begin_session(self) -> int:
        with self.lock:
            self._sessions += 1
            return self._sessions

    def forget(self, session: int) -> None:
        """Remove the nodes of a session."""
        with self.lock:
            self.nodes = {path: n for path, n in self.nodes.items() if n.owner != session}


@dataclass
class MemoryTree:
    """One session."""

    ensemble: MemoryEnsemble
    session: int
    is_connected: bool = True
    _callbacks: list[Callable[[], None]] = field(default_factory=list)

    def get(self, paths: Sequence[str]) -> Sequence[Node | None]:
        self._require_connected()
        with self.ensemble.lock:
            found = [self.ensemble.nodes.get(path) for path in paths]
            return [None if n is None else Node(n.data, n.version) for n in found]

    def children(self, path: str) -> Sequence[str]:
        self._require_connected()
        with self.ensemble.lock:
            return sorted(_below(self.ensemble.nodes, path))

    def owner(self, path: str) -> int | None:
        self._require_connected()
        with self.ensemble.lock:
            node = self.ensemble.nodes.get(path)
            return None if node is None else node.owner

    def commit(self, steps: Sequence[Step]) -> None:
        self._require_connected()
        with self.ensemble.lock:
            nodes = dict(self.ensemble.nodes)
            for step in steps:
                _do(nodes, step, self.session)
            self.ensemble.nodes = nodes

    def when_session_ends(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    def end_session(self) -> None:
        """The ensemble gave it up; the next session begins at once."""
        self.ensemble.forget(self.session)
        self.session = self.ensemble.begin_session()
        for callback in self._callbacks:
            callback()

    def close(self) -> None:
        self.ensemble.forget(self.session)

    def _require_connected(self) -> None:
        if not self.is_connected:
            raise Unreachable("the ensemble does not answer")


def _do(nodes: dict[str, _Kept], step: Step, session: int) -> None:
    node = nodes.get(step.path)
    if isinstance(step, Create):
        parent = nodes.get(step.path.rpartition("/")[0] or "/")
        if node is not None:
            raise Conflict(step, "it is there already")
        if parent is None or parent.owner is not None:
            raise Conflict(step, "there is nothing that it could be below")
        nodes[step.path] = _Kept(step.data, session if step.of_session else None)
        return
    if node is None:
        raise Conflict(step, "it is not there")
    if node.version != step.version:
        raise Conflict(step, f"it has version {node.version}, not {step.version}")
    if isinstance(step, Change):
        nodes[step.path] = _Kept(step.data, node.owner, node.version + 1)
    elif isinstance(step, Remove):
        if _below(nodes, step.path):
            raise Conflict(step, "there are nodes below it")
        del nodes[step.path]
    else:
        assert isinstance(step, Check), step


def _below(nodes: dict[str, _Kept], path: str) -> list[str]:
    prefix = path.rstrip("/") + "/"
    rests = (other[len(prefix) :] for other in nodes if other.startswith(prefix))
    return [rest for rest in rests if rest and "/" not in rest]
