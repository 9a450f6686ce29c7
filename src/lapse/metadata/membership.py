"""A broker's place in a cluster: its registration, and the office of controller.

    /brokers/ID         who is alive: a node of that broker's session, with its addresses
    /controller         who holds the office: a node of that broker's session, with its id
    /controller-epoch   its version is the controller's epoch: one more with each who takes it

All that a controller changes is committed with a check of that epoch (`fence`): who has lost the
office, and does not know it yet, changes nothing. Whoever comes first takes the office when it is
vacant.

A broker that died is registered until its session ends. Whoever has its id waits for that.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import msgspec

from lapse.base.clock import Clock, sleep_in_slices
from lapse.base.decoding import from_json
from lapse.base.errors import ConfigError, ErrorCode, KafkaError, LapseError
from lapse.metadata.features import NEWEST
from lapse.metadata.tree import Change, Check, Conflict, Create, Node, Step, Tree

BROKERS, CONTROLLER, CONTROLLER_EPOCH = "/brokers", "/controller", "/controller-epoch"
LOOK_SECONDS = 0.1
NO_EPOCH = -1


class Registration(msgspec.Struct, frozen=True):
    """What a broker says of itself.

    Attributes:
        listeners: host and port by the listener's name, as clients and brokers get them; none
            while it is starting.
        leaving: it is about to stop.
        epoch: another one each time that it starts; any number.
        rack: where it stands; None where it does not say.
        protocol: how far it may go (`features`); older brokers, which do not say it, all the way.
    """

    id: int
    listeners: dict[str, tuple[str, int]] = {}
    leaving: bool = False
    epoch: int = 0
    rack: str | None = None
    protocol: int = NEWEST


def was_joined(tree: Tree) -> bool:
    """Whether a broker has ever been the controller there."""
    [node] = tree.get([CONTROLLER_EPOCH])
    return node is not None and node.version > 0


def still_registered(tree: Tree, broker: int, epoch: int) -> Check:
    """The step that has a commit refused once a broker has ended that life of its.

    Raises Conflict where it has ended already.
    """
    path = f"{BROKERS}/{broker}"
    [node] = tree.get([path])
    if node is None or from_json(node.data, Registration).epoch != epoch:
        raise Conflict(Check(path, 0), f"broker {broker} has started again, or is gone")
    return Check(path, node.version)


class Interrupted(LapseError):
    """The broker stops, and waits for no other any more."""


class Membership:
    """One broker's; called from worker threads.

    Args:
        wait_ms: how long to wait for who is in the way; longer than a session lasts.
    """

    def __init__(self, tree: Tree, me: Registration, wait_ms: int, clock: Clock) -> None:
        self._tree, self._me, self._clock = tree, me, clock
        self._wait_s = wait_ms / 1000
        self._stopping = threading.Event()
        self._epoch = NO_EPOCH

    @property
    def epoch(self) -> int:
        """The controller's epoch as it was when this broker took the office; -1: it did not."""
        return self._epoch

    def fence(self) -> Sequence[Check]:
        """What each change of a controller is committed with; raises NOT_CONTROLLER."""
        if self._epoch == NO_EPOCH:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "this broker is not the controller")
        return [Check(CONTROLLER_EPOCH, self._epoch)]

    def join(self) -> None:
        """Register, once and again after a session has ended.

        Raises ConfigError where another broker has the id; Interrupted after `stop`; Unreachable.
        """
        self._make(BROKERS)
        self._make(CONTROLLER_EPOCH)
        self._epoch = NO_EPOCH
        until = self._clock.monotonic() + self._wait_s
        while not self._is_made(self._path, msgspec.json.encode(self._me)):
            if self._clock.monotonic() >= until:
                raise ConfigError(
                    f"node.id={self._me.id}: another broker with this id is registered at "
                    "zookeeper.connect, and alive"
                )
            sleep_in_slices(self._clock, LOOK_SECONDS, self._stopping.is_set)
            if self._stopping.is_set():
                raise Interrupted("the broker stops")

    def take_office(self) -> bool:
        """Be the controller if nobody is; returns whether this broker is. Raises Unreachable.

        Who is not registered is not: a session begins before it is known that the last one ended.
        """
        me, epoch, own = str(self._me.id).encode(), self._current_epoch(), NO_EPOCH
        [registered] = self._tree.get([self._path])
        if registered is not None and self._is_made(
            CONTROLLER, me,
            Check(self._path, registered.version), Change(CONTROLLER_EPOCH, me, epoch.version),
        ):  # fmt: skip
            # Not the number just written: where nobody answered, it may have been taken before, or
            # in another session. Nor anybody's: it may have been lost since.
            current = self._current_epoch()
            own = current.version if current.data == me else NO_EPOCH
        self._epoch = own  # at once: others may be about to change something
        return own != NO_EPOCH

    def last_controller(self) -> int | None:
        """Who took the office last; None if nobody ever did."""
        data = self._current_epoch().data
        return int(data) if data else None

    def controller(self) -> int | None:
        """Who holds the office."""
        [node] = self._tree.get([CONTROLLER])
        return None if node is None else int(node.data)

    def brokers(self) -> Mapping[int, Registration]:
        """Who is registered."""
        names = self._tree.children(BROKERS)
        nodes = self._tree.get([f"{BROKERS}/{name}" for name in names])
        found = [from_json(n.data, Registration) for n in nodes if n is not None]
        return {one.id: one for one in found}

    def announce(self, listeners: Mapping[str, tuple[str, int]]) -> None:
        """Say where this broker can be reached: it may lead from now on."""
        self._say(msgspec.structs.replace(self._me, listeners=dict(listeners)))

    def leave(self) -> None:
        """Say that this broker is about to stop."""
        self._say(msgspec.structs.replace(self._me, leaving=True))

    def _say(self, me: Registration) -> None:
        """Also after a session that has just ended: `join` says it anew."""
        self._me = me
        [node] = self._tree.get([self._path])
        if node is not None and self._tree.owner(self._path) == self._tree.session:
            self._tree.commit([Change(self._path, msgspec.json.encode(me), node.version)])

    def stop(self) -> None:
        """Have `join` wait no longer."""
        self._stopping.set()

    @property
    def _path(self) -> str:
        return f"{BROKERS}/{self._me.id}"

    def _current_epoch(self) -> Node:
        [node] = self._tree.get([CONTROLLER_EPOCH])
        assert node is not None, CONTROLLER_EPOCH
        return node

    def _make(self, path: str) -> None:
        try:
            self._tree.commit([Create(path, b"")])
        except Conflict as e:
            if e.step.path != path:
                raise

    def _is_made(self, path: str, data: bytes, *more: Step) -> bool:
        """Make a node of this session, and what belongs to it; False where another one has it."""
        try:
            self._tree.commit([Create(path, data, of_session=True), *more])
        except Conflict:
            return self._tree.owner(path) == self._tree.session
        return True
