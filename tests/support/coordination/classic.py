"""A classic group with its owner's part played: a clock, a log, and who was answered."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from lapse.base.errors import ErrorCode
from lapse.coordination.classic.events import (
    Answer,
    Effects,
    GroupSettings,
    Heartbeat,
    HeartbeatTaken,
    Join,
    Joined,
    Leave,
    Leaving,
    Left,
    Protocol,
    Reply,
    Store,
    Sync,
    Synced,
)
from lapse.coordination.classic.group import ClassicGroup
from lapse.coordination.classic.state import State
from lapse.coordination.records.offsets import GroupMetadataValue
from lapse.coordination.records.subscription import ConsumerProtocolSubscription, write_versioned

GROUP = "g"
RANGE = Protocol("range", b"r")
ROUND_ROBIN = Protocol("roundrobin", b"rr")
SESSION_MS, REBALANCE_MS = 10_000, 60_000
NO_DELAY = GroupSettings(initial_rebalance_delay_ms=0)
DELAY = GroupSettings(initial_rebalance_delay_ms=3_000)

# What may be said of a member that joins.
A: dict[str, Any] = {}
STATIC: dict[str, Any] = {"instance_id": "i"}

# Codes that the tables are full of.
NONE = ErrorCode.NONE
REBALANCE = ErrorCode.REBALANCE_IN_PROGRESS
UNKNOWN = ErrorCode.UNKNOWN_MEMBER_ID
FENCED = ErrorCode.FENCED_INSTANCE_ID
ILLEGAL = ErrorCode.ILLEGAL_GENERATION
INCONSISTENT = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
NON_EMPTY = ErrorCode.NON_EMPTY_GROUP
GONE = ErrorCode.COORDINATOR_NOT_AVAILABLE


def consumer(*topics: str, name: str = "range") -> Protocol:
    subscription = ConsumerProtocolSubscription(topics=topics)
    return Protocol(name, write_versioned(subscription))


class Owner:
    """Plays the broker to one group; member ids are given as `c-1`, `c-2` and so on."""

    def __init__(
        self, settings: GroupSettings = NO_DELAY, loaded: GroupMetadataValue | None = None
    ) -> None:
        self.now_ms = 1_000_000
        self.settings = settings
        self._ids = itertools.count(1)
        self._tokens = itertools.count(1)
        self.group = ClassicGroup(GROUP, settings, self.new_id, self.now_ms)
        if loaded is not None:
            self.group = ClassicGroup.load(GROUP, loaded, settings, self.new_id, self.now_ms)
        self.waiting: set[int] = set()
        self.answers: dict[int, Answer] = {}
        self.to_store: deque[Store] = deque()
        self.log: list[GroupMetadataValue | None] = []

    def new_id(self) -> str:
        return str(next(self._ids))

    # --- time and log ---------------------------------------------------------------------------

    def take(self, effects: Effects) -> None:
        """Nobody is answered twice, nor anybody who did not ask."""
        for effect in effects:
            if isinstance(effect, Reply):
                assert isinstance(effect.token, int)
                self.waiting.remove(effect.token)
                self.answers[effect.token] = effect.answer
            else:
                self.to_store.append(effect)

    def store_one(self, error: ErrorCode = ErrorCode.NONE) -> None:
        store = self.to_store.popleft()
        store.record()
        if error is ErrorCode.NONE:
            self.log.append(store.value)
        self.take(self.group.stored(store.ticket, error, self.now_ms))

    def store(self, error: ErrorCode = ErrorCode.NONE) -> None:
        """Store all that is asked for, and what that brings."""
        while self.to_store:
            self.store_one(error)

    def sleep(self, ms: int) -> None:
        """Let time pass, ticking whenever the group asked for it; records are stored at once."""
        end_ms = self.now_ms + ms
        self.store()
        while (next_ms := self.group.next_deadline_ms) is not None and next_ms <= end_ms:
            self.now_ms = max(self.now_ms, next_ms)
            self.take(self.group.tick(self.now_ms))
            self.store()
        self.now_ms = end_ms

    # --- requests -------------------------------------------------------------------------------

    def join(self, member_id: str = "", *protocols: Protocol, **more: Any) -> int:
        """By default as an old client, which becomes a member at once."""
        values: dict[str, Any] = {
            "session_timeout_ms": SESSION_MS,
            "rebalance_timeout_ms": REBALANCE_MS,
            "protocol_type": "consumer",
            "client_id": "c",
            "client_host": "/h",
            "needs_member_id": False,
            "protocols": protocols or (RANGE,),
        }
        request = Join(self._ask(), member_id, **(values | more))
        self.take(self.group.join(request, self.now_ms))
        return int(str(request.token))

    def sync(self, member_id: str, assignments: Mapping[str, bytes] | None = None, **m: Any) -> int:
        m = {"generation": self.group.generation, "assignments": assignments or {}, **m}
        request = Sync(self._ask(), member_id, **m)
        self.take(self.group.sync(request, self.now_ms))
        return int(str(request.token))

    def heartbeat(self, member_id: str, **more: Any) -> ErrorCode:
        request = Heartbeat(
            self._ask(), member_id, **({"generation": self.group.generation} | more)
        )
        self.take(self.group.heartbeat(request, self.now_ms))
        answer = self.answers[int(str(request.token))]
        assert isinstance(answer, HeartbeatTaken)
        return answer.error

    def leave(self, *members: Leaving | str) -> int:
        leaving = tuple(m if isinstance(m, Leaving) else Leaving(m) for m in members)
        request = Leave(self._ask(), leaving)
        self.take(self.group.leave(request, self.now_ms))
        return int(str(request.token))

    def _ask(self) -> int:
        token = next(self._tokens)
        self.waiting.add(token)
        return token

    # --- answers --------------------------------------------------------------------------------

    def joined(self, token: int) -> Joined:
        answer = self.answers[token]
        assert isinstance(answer, Joined)
        return answer

    def synced(self, token: int) -> Synced:
        answer = self.answers[token]
        assert isinstance(answer, Synced)
        return answer

    def left(self, token: int) -> Left:
        answer = self.answers[token]
        assert isinstance(answer, Left)
        return answer

    # --- whole rebalances -----------------------------------------------------------------------

    def gather(self, *joins: Mapping[str, Any]) -> list[str]:
        """Members that join an empty group in turn; the ids they have when the rebalance is on."""
        tokens = [self.join(**join) for join in joins]
        self.sleep(self.settings.initial_rebalance_delay_ms * len(joins) + 1)
        return [self.joined(token).member_id for token in tokens]

    def settle(self, ids: list[str], assignments: Mapping[str, bytes] | None = None) -> None:
        """All sync; each gets its own id unless told otherwise."""
        given = {m: m.encode() for m in ids} if assignments is None else assignments
        for member_id in ids:
            self.sync(member_id, given)
        self.store()

    def stable(self, *joins: Mapping[str, Any]) -> list[str]:
        ids = self.gather(*joins)
        self.settle(ids)
        return ids


# --- groups in each state, for tables -----------------------------------------------------------


def empty() -> Owner:
    """Generation 2, after its only member left."""
    owner = stable()
    owner.leave("c-1")
    owner.store()
    return owner


def preparing() -> Owner:
    """c-1 has joined again, c-2 has not."""
    owner = Owner()
    owner.stable(A)
    owner.join()
    owner.join("c-1")
    owner.sleep(1)
    ids = ["c-1", "c-2"]
    owner.settle(ids)
    owner.join("c-1")
    return owner


def completing() -> Owner:
    owner = Owner()
    owner.gather(A)
    return owner


def stable() -> Owner:
    owner = Owner()
    owner.stable(A)
    return owner


def dead() -> Owner:
    owner = stable()
    owner.take(owner.group.unload(owner.now_ms))
    return owner


STATES: dict[State, Callable[[], Owner]] = {
    State.EMPTY: empty,
    State.PREPARING: preparing,
    State.COMPLETING: completing,
    State.STABLE: stable,
    State.DEAD: dead,
}


def by_state(**codes: ErrorCode) -> pytest.MarkDecorator:
    """One code a state, by the states' names."""
    return pytest.mark.parametrize(
        ("state", "code"), [(State[name.upper()], code) for name, code in codes.items()]
    )
