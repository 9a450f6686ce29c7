"""A broker's place in a cluster: its registration, and the office of controller.

    /brokers/ID         who is alive: a node of that broker's session
    /controller         who holds the office: a node of that broker's session, with its id
    /controller-epoch   its version is the controller's epoch: one more with each who takes it

All that a controller changes is committed with a check of that epoch (`fence`): who has lost the
office, and does not know it yet, changes nothing. There is one broker in a cluster so far, which
is the controller; another one is refused.

A broker that died is registered until its session ends. Whoever takes its place waits for that.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence

from lapse.base.clock import Clock
from lapse.base.errors import ConfigError, LapseError
from lapse.metadata.tree import Change, Check, Conflict, Create, Step, Tree

BROKERS, CONTROLLER, CONTROLLER_EPOCH = "/brokers", "/controller", "/controller-epoch"
LOOK_SECONDS = 0.1


def was_joined(tree: Tree) -> bool:
    """Whether a broker has ever been the controller there."""
    [node] = tree.get([CONTROLLER_EPOCH])
    return node is not None and node.version > 0


class Interrupted(LapseError):
    """The broker stops, and waits for no other any more."""


class Membership:
    """One broker's; called from worker threads.

    Args:
        wait_ms: how long to wait for who is in the way; longer than a session lasts.
    """

    def __init__(self, tree: Tree, node_id: int, wait_ms: int, clock: Clock) -> None:
        self._tree, self._node_id, self._clock = tree, node_id, clock
        self._wait_s = wait_ms / 1000
        self._stopping = threading.Event()
        self._epoch = -1

    @property
    def epoch(self) -> int:
        """The controller's epoch, as it was when this broker took the office."""
        return self._epoch

    def fence(self) -> Sequence[Check]:
        """What each change of a controller is committed with."""
        return [Check(CONTROLLER_EPOCH, self._epoch)]

    def join(self) -> None:
        """Register and take the office, once and again after a session has ended.

        Raises ConfigError where another broker has the id, or is the controller; Interrupted after
        `stop`; Unreachable.
        """
        self._make(BROKERS)
        self._make(CONTROLLER_EPOCH)
        me = str(self._node_id)
        self._create(f"{BROKERS}/{me}", json.dumps({"id": self._node_id}))
        taken = Change(CONTROLLER_EPOCH, me.encode(), self._current_epoch())
        self._create(CONTROLLER, me, taken)
        # Not the number just written: where nobody answered, it may have been taken before.
        self._epoch = self._current_epoch()

    def stop(self) -> None:
        """Have `join` wait no longer."""
        self._stopping.set()

    def _current_epoch(self) -> int:
        [node] = self._tree.get([CONTROLLER_EPOCH])
        assert node is not None, CONTROLLER_EPOCH
        return node.version

    def _make(self, path: str) -> None:
        try:
            self._tree.commit([Create(path, b"")])
        except Conflict as e:
            if e.step.path != path:
                raise

    def _create(self, path: str, data: str, *more: Step) -> None:
        """Make a node of this session, and what belongs to it, unless it has made it before."""
        until = self._clock.monotonic() + self._wait_s
        while True:
            try:
                self._tree.commit([Create(path, data.encode(), of_session=True), *more])
            except Conflict as e:
                if e.step.path != path:
                    raise self._refused(path) from e
            else:
                return
            if self._tree.owner(path) == self._tree.session:
                return
            if self._clock.monotonic() >= until:
                raise self._refused(path)
            if self._stopping.wait(LOOK_SECONDS):
                raise Interrupted("the broker stops")

    def _refused(self, path: str) -> ConfigError:
        [node] = self._tree.get([path if path == CONTROLLER else CONTROLLER])
        if path != CONTROLLER:
            return ConfigError(
                f"node.id={self._node_id}: another broker with this id is registered at "
                "zookeeper.connect, and alive"
            )
        holder = "another" if node is None else node.data.decode(errors="replace")
        return ConfigError(
            f"zookeeper.connect: broker {holder} is there already; a cluster has one broker so "
            "far. Give this one a path of its own: HOST:PORT/PATH"
        )
