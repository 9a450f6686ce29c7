"""A classic group's state, and the few things every event does with it: answer, store, wait, drop.

What an event does in which state is `transitions`'; its public face is `group`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum, StrEnum, auto
from typing import Any

from lapse.base.errors import ErrorCode
from lapse.coordination.classic.events import (
    NO_LEADER,
    Answer,
    Effect,
    Effects,
    GroupSettings,
    Joined,
    Left,
    Reply,
    Store,
    Synced,
    Token,
)
from lapse.coordination.classic.members import Member, Members
from lapse.coordination.deadlines import Deadlines
from lapse.coordination.records.offsets import GroupMetadataValue
from lapse.coordination.records.subscription import PROTOCOL_TYPE


class State(StrEnum):
    """Kafka's names."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class Event(Enum):
    """What can happen to a group.

    A join is one of four: of an unknown client, of an instance that is in the group under another
    member id, of an id that was given out, of a member. LEFT and EXPIRED: members are gone, of
    their own will or by their session. From CREATED on: a store is done, or failed.
    """

    JOIN_NEW = auto()
    JOIN_INSTANCE = auto()
    JOIN_PENDING = auto()
    JOIN_MEMBER = auto()
    SYNC = auto()
    HEARTBEAT = auto()
    LEFT = auto()
    EXPIRED = auto()
    PENDING_EXPIRED = auto()
    JOIN_PHASE_OVER = auto()
    SYNC_PHASE_OVER = auto()
    DELETE = auto()
    CREATED = auto()
    ASSIGNED = auto()
    REPLACED = auto()
    EMPTIED = auto()
    DELETED = auto()


class Phase(Enum):
    """Deadlines of the whole group; a member's, or a pending id's, is under its id."""

    JOIN = auto()
    SYNC = auto()


# The error that Kafka sends a member for a failed append; other errors are sent as they are.
APPEND_ERRORS: Mapping[ErrorCode, ErrorCode] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


@dataclass(frozen=True, slots=True)
class Storing:
    """What a store is for; the leave that emptied the group, if one did, is answered after it."""

    event: Event
    subject: Any = None
    leave: Reply | None = None


@dataclass(frozen=True, slots=True)
class Stored:
    """How a store ended: the subject of the events from CREATED on."""

    subject: Any
    error: ErrorCode


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a leader assigned in a generation."""

    generation: int
    by_member: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Replacement:
    """An instance has a new member id in a stable group; `old` comes back if that is not stored."""

    generation: int
    old: Member
    old_leader: str
    new_id: str
    may_skip_assignment: bool


@dataclass(frozen=True, slots=True)
class InitialDelay:
    """The first rebalance of an empty group waits for more members (KIP-134).

    Attributes:
        left_ms: by how much it may yet be made longer.
        somebody_joined: during the delay, so it will be.
    """

    delay_ms: int
    left_ms: int
    somebody_joined: bool = False


class GroupState:
    """A group; `new_id` gives the unique part of a member id.

    Attributes:
        protocol_type: None for a group that only commits offsets.
        protocol: what the members agreed on; None without members.
        state_since_ms: when it came into its state; None if an old record did not say.
        topics: what consumers subscribed to at the last rebalance; None where that cannot be read.
        now_ms: of the event that is being handled.
        initial: set in the first rebalance of an empty group, while it is delayed.
        is_recorded: the log knows the group, or is about to.
    """

    def __init__(
        self, group_id: str, settings: GroupSettings, new_id: Callable[[], str], now_ms: int
    ) -> None:
        self.group_id = group_id
        self.state = State.EMPTY
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.state_since_ms: int | None = now_ms
        self.topics: frozenset[str] | None = None
        self.members = Members()
        self.settings = settings
        self.new_id = new_id
        self.now_ms = now_ms
        self.deadlines: Deadlines[Phase | str] = Deadlines()
        self.initial: InitialDelay | None = None
        self.storing: dict[int, Storing] = {}
        self.last_ticket = 0
        self.is_recorded = False
        self._effects: list[Effect] = []

    def take_effects(self) -> Effects:
        """What has come of the event."""
        effects, self._effects = tuple(self._effects), []
        return effects

    def move_to(self, state: State) -> None:
        """Change the state."""
        self.state = state
        self.state_since_ms = self.now_ms

    def learn_topics(self) -> None:
        """Note what the members read."""
        is_consumers = self.protocol_type == PROTOCOL_TYPE
        self.topics = self.members.subscribed_topics(self.protocol or "") if is_consumers else None

    # --- answers and stores -------------------------------------------------------------------

    def reply(self, token: Token, answer: Answer) -> None:
        """Answer a request."""
        self._effects.append(Reply(token, answer))

    def send(self, reply: Reply) -> None:
        """Answer with what was made elsewhere."""
        self._effects.append(reply)

    def store(self, value: GroupMetadataValue | None, storing: Storing) -> None:
        """Ask for a record to be appended."""
        self.last_ticket += 1
        self.storing[self.last_ticket] = storing
        self._effects.append(Store(self.last_ticket, self.group_id, value))

    def record(self, assignments: Mapping[str, bytes] | None = None) -> GroupMetadataValue:
        """The group as it is stored, with other assignments than the members have, if given."""
        given = assignments
        if given is None:
            given = {m.member_id: m.assignment for m in self.members}
        return GroupMetadataValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol,
            leader=self.members.leader,
            current_state_timestamp=-1 if self.state_since_ms is None else self.state_since_ms,
            members=tuple(
                m.record(self.protocol or "", given.get(m.member_id, b"")) for m in self.members
            ),
        )

    def joined(self, member_id: str) -> Joined:
        """What a member gets of the present generation; its leader also who is in it."""
        leads = self.members.leader == member_id
        return Joined(
            ErrorCode.NONE,
            member_id,
            self.generation,
            self.protocol_type,
            self.protocol,
            self.members.leader or NO_LEADER,
            members=self.members.told_to_leader(self.protocol or "") if leads else (),
        )

    def answer_join(self, member: Member, answer: Joined) -> None:
        """Answer the join that waits, if one does."""
        if member.joining is not None:
            self.reply(member.joining, answer)
            self.members.put(replace(self.members[member.member_id], joining=None))

    def answer_sync(self, member: Member, answer: Synced) -> bool:
        """Answer the sync that waits; whether one did."""
        if member.syncing is None:
            return False
        self.reply(member.syncing, answer)
        self.members.put(replace(self.members[member.member_id], syncing=None))
        return True

    # --- members ------------------------------------------------------------------------------

    def wait(self, key: Phase | str, timeout_ms: int) -> None:
        """Set a deadline, which is never now: a tick must come to its end."""
        self.deadlines.set(key, self.now_ms + max(timeout_ms, 1))

    def extend_session(self, member: Member) -> None:
        """Count a member's session from now."""
        self.wait(member.member_id, member.session_timeout_ms)

    def drop(self, member_id: str) -> None:
        """Remove a member or a pending id; one that waits has to begin anew."""
        self.deadlines.clear(member_id)
        member = self.members.remove(member_id)
        if member is not None and member.joining is not None:
            self.reply(member.joining, Joined(ErrorCode.UNKNOWN_MEMBER_ID))
        if member is not None and member.syncing is not None:
            self.reply(member.syncing, Synced(ErrorCode.UNKNOWN_MEMBER_ID))

    def bury(self, error: ErrorCode) -> None:
        """Answer all who wait with an error; the group is Dead."""
        for member in self.members:
            self.answer_join(member, Joined(error, member.member_id))
            self.answer_sync(member, Synced(error))
        for storing in self.storing.values():
            if storing.leave is not None:
                self.reply(storing.leave.token, Left(error))
        self.storing.clear()
        self.deadlines.clear_all()
        self.members = Members()
        self.initial = None
        self.move_to(State.DEAD)
