"""A `metadata.tree.Tree` in memory: for simulation, and the judge of what ZooKeeper does.

    ensemble = MemoryEnsemble()
    one, other = ensemble.connect(), ensemble.connect()

`end_session` is what an ensemble does with a client that it has not heard of for too long;
`is_connected = False` is a network that is cut. Who watches is called in the thread of who commits,
closes, ends or cuts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lapse.metadata.tree import (
    Change,
    Check,
    Conflict,
    Create,
    Node,
    Remove,
    Step,
    Touch,
    Unreachable,
    call_all,
)


@dataclass(slots=True)
class _Kept:
    data: bytes
    owner: int | None = None
    version: int = 0


class _Watch(NamedTuple):
    session: int
    path: str
    callback: Callable[[], None]


class MemoryEnsemble:
    """The nodes, who has a session, and who watches."""

    def __init__(self) -> None:
        self.nodes: dict[str, _Kept] = {"/": _Kept(b"")}
        self.lock = threading.Lock()
        self._sessions = 0
        self._watches: dict[_Watch, None] = {}  # a set that keeps the order

    def connect(self) -> MemoryTree:
        """Begin a session."""
        return MemoryTree(self, self.begin_session())

    def begin_session(self) -> int:
        with self.lock:
            self._sessions += 1
            return self._sessions

    def commit(self, steps: Sequence[Step], session: int) -> None:
        with self.lock:
            nodes = dict(self.nodes)
            for step in steps:
                _do(nodes, step, session)
            self.nodes = nodes
            changed = set(_changed_by(steps))
            told = self._taken(watch for watch in self._watches if watch.path in changed)
        call_all(told)

    def forget(self, session: int) -> None:
        """Remove the nodes of a session."""
        with self.lock:
            gone = [path for path, node in self.nodes.items() if node.owner == session]
            self.nodes = {path: n for path, n in self.nodes.items() if n.owner != session}
            changed = {*gone, *map(_parent, gone)}
            told = self._taken(watch for watch in self._watches if watch.path in changed)
        call_all(told)

    def watch(self, session: int, paths: Sequence[str], callback: Callable[[], None]) -> None:
        with self.lock:
            self._watches |= dict.fromkeys(_Watch(session, path, callback) for path in paths)

    def end_watches(self, session: int) -> Sequence[Callable[[], None]]:
        """Forget what a session watches; returns who would have been called."""
        with self.lock:
            return self._taken(watch for watch in self._watches if watch.session == session)

    def _taken(self, watches: Iterable[_Watch]) -> Sequence[Callable[[], None]]:
        """With the lock; they are to be called without it."""
        taken = list(watches)
        for watch in taken:
            del self._watches[watch]
        return [watch.callback for watch in taken]


class MemoryTree:
    """One session."""

    def __init__(self, ensemble: MemoryEnsemble, session: int) -> None:
        self.ensemble = ensemble
        self.session = session
        self._is_connected = True
        self._callbacks: list[Callable[[], None]] = []

    @property
    def is_connected(self) -> bool:
        return self._is_connected

    @is_connected.setter
    def is_connected(self, is_connected: bool) -> None:
        self._is_connected = is_connected
        if not is_connected:
            call_all(self.ensemble.end_watches(self.session))

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
        self.ensemble.commit(steps, self.session)

    def watch(self, paths: Sequence[str], callback: Callable[[], None]) -> None:
        self._require_connected()
        self.ensemble.watch(self.session, paths, callback)

    def when_session_ends(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    def end_session(self) -> None:
        """The ensemble gave it up; the next session begins at once."""
        ended = self.session
        self.ensemble.forget(ended)
        self.session = self.ensemble.begin_session()
        call_all(self.ensemble.end_watches(ended))
        call_all(self._callbacks)

    def close(self) -> None:
        self._is_connected = False
        self.ensemble.end_watches(self.session)
        self.ensemble.forget(self.session)

    def _require_connected(self) -> None:
        if not self.is_connected:
            raise Unreachable("the ensemble does not answer")


def _do(nodes: dict[str, _Kept], step: Step, session: int) -> None:
    node = nodes.get(step.path)
    if isinstance(step, Create):
        parent = nodes.get(_parent(step.path))
        if node is not None:
            raise Conflict(step, "it is there already")
        if parent is None or parent.owner is not None:
            raise Conflict(step, "there is nothing that it could be below")
        nodes[step.path] = _Kept(step.data, session if step.of_session else None)
        return
    if node is None:
        raise Conflict(step, "it is not there")
    if not isinstance(step, Touch) and node.version != step.version:
        raise Conflict(step, f"it has version {node.version}, not {step.version}")
    if isinstance(step, Change | Touch):
        nodes[step.path] = _Kept(step.data, node.owner, node.version + 1)
    elif isinstance(step, Remove):
        if _below(nodes, step.path):
            raise Conflict(step, "there are nodes below it")
        del nodes[step.path]
    else:
        assert isinstance(step, Check), step


def _changed_by(steps: Sequence[Step]) -> Iterator[str]:
    """Paths of nodes whose data, being there, or names below were changed."""
    for step in steps:
        if not isinstance(step, Check):
            yield step.path
        if isinstance(step, Create | Remove):
            yield _parent(step.path)


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def _below(nodes: dict[str, _Kept], path: str) -> list[str]:
    prefix = path.rstrip("/") + "/"
    rests = (other[len(prefix) :] for other in nodes if other.startswith(prefix))
    return [rest for rest in rests if rest and "/" not in rest]
