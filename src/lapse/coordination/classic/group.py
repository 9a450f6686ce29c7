"""One consumer group of the classic protocol, as a state machine without clock or I/O.

What Kafka calls ClassicGroup.

    Empty → PreparingRebalance → CompletingRebalance → Stable        (any) → Dead
      ↑_____________|      ↑______________|_______________|

A rebalance waits for every member to join (PreparingRebalance), sends them the new generation and
waits for the leader's assignment (CompletingRebalance), which is stored before any member gets it.
Each method takes one event and the time, and returns effects; `TABLE` says what an event does in
which state. The owner appends what a `Store` holds and calls `stored`, and calls `tick` at
`next_deadline_ms`.

KIP-62 rebalance timeouts · KIP-134 delay of the first rebalance · KIP-345 static members · KIP-389
size · KIP-394 member ids before members · KIP-559 protocol names · KIP-814 a leader that need not
assign. KIP-429's cooperative rebalances need nothing of a broker.

Where this is stricter than Kafka 4.3: a request that another one of the same member takes the place
of is answered (REBALANCE_IN_PROGRESS) instead of forgotten, also the waiting sync of a member that
goes (UNKNOWN_MEMBER_ID); of two assignments of one generation the first counts, in the log as in
memory; after the highest generation comes 0, since clients take negative ones for none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from lapse.base.errors import ErrorCode
from lapse.coordination.classic.checks import (
    DELETE_ERRORS,
    check_commit,
    check_delete_offsets,
    check_join,
    check_member,
    check_sync,
    kind_of_join,
)
from lapse.coordination.classic.events import (
    NO_MEMBER_ID,
    Commit,
    Effects,
    GroupSettings,
    Heartbeat,
    Join,
    Joined,
    Leave,
    Leaving,
    Left,
    LeftMember,
    Reply,
    Sync,
    refusal,
)
from lapse.coordination.classic.members import Member
from lapse.coordination.classic.state import (
    APPEND_ERRORS,
    Event,
    GroupState,
    Phase,
    State,
    Stored,
    Storing,
)
from lapse.coordination.classic.transitions import go_on_if_all_joined, handle, rebalance
from lapse.coordination.offsets.expiry import ExpiryRule
from lapse.coordination.records.offsets import GroupMetadataValue
from lapse.coordination.records.subscription import PROTOCOL_TYPE


@dataclass(frozen=True, slots=True)
class DescribedMember:
    """A member as DescribeGroups shows it; `metadata` only of a stable group."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class DescribedGroup:
    """A group as DescribeGroups shows it; `protocol` only of a stable one."""

    group_id: str
    state: State
    protocol_type: str
    protocol: str
    members: tuple[DescribedMember, ...]


class ClassicGroup(GroupState):
    """A group: one event a method. What it knows of itself is `GroupState`'s."""

    # --- the log ------------------------------------------------------------------------------

    @classmethod
    def load(
        cls,
        group_id: str,
        value: GroupMetadataValue,
        settings: GroupSettings,
        new_id: Callable[[], str],
        now_ms: int,
    ) -> ClassicGroup:
        """A group from its record; its members' sessions start now.

        One that is larger than `size_max` by now begins a rebalance, in which only so many find
        room; and so do consumers without a leader, which a group of KIP-848 left
        (`consumer.migration`).
        """
        group = cls(group_id, settings, new_id, now_ms)
        group.is_recorded = True
        group.generation = value.generation
        group.protocol_type = value.protocol_type or None
        group.protocol = value.protocol
        since_ms = value.current_state_timestamp
        group.state_since_ms = None if since_ms < 0 else since_ms
        for record in value.members:
            member = Member.load(record, value.protocol or "")
            group.members.put(member)
            group.extend_session(member)
        if value.leader in group.members:
            group.members.leader = value.leader
        group.state = State.STABLE if len(group.members) else State.EMPTY
        group.learn_topics()
        was_converted = value.leader is None and group.protocol_type == PROTOCOL_TYPE
        if len(group.members) > settings.size_max or (len(group.members) and was_converted):
            rebalance(group)
        return group

    @classmethod
    def of_members(
        cls,
        group_id: str,
        generation: int,
        members: Iterable[Member],
        settings: GroupSettings,
        new_id: Callable[[], str],
        now_ms: int,
    ) -> ClassicGroup:
        """A stable group of consumers that were in one of KIP-848, their sessions start now."""
        group = cls(group_id, settings, new_id, now_ms)
        group.is_recorded = True
        group.generation = generation
        group.protocol_type = PROTOCOL_TYPE
        for member in members:
            group.members.put(member)
            group.extend_session(member)
        group.protocol = group.members.choose_protocol()
        group.state = State.STABLE
        group.learn_topics()
        return group

    def stored(self, ticket: int, error: ErrorCode, now_ms: int) -> Effects:
        """A record is durable (NONE), or could not be appended. Unknown tickets are passed over."""
        storing = self.storing.pop(ticket, None)
        if storing is None:
            return ()
        self.now_ms = now_ms
        code = APPEND_ERRORS.get(error, error)
        if storing.leave is not None:
            answer = storing.leave.answer if code is ErrorCode.NONE else Left(code)
            self.reply(storing.leave.token, answer)
        handle(self, storing.event, Stored(storing.subject, code))
        return self.take_effects()

    # --- requests -----------------------------------------------------------------------------

    def join(self, request: Join, now_ms: int) -> Effects:
        """A member wants in, or to take part in the next rebalance."""
        self.now_ms = now_ms
        by_name = {p.name: p for p in reversed(request.protocols)}
        distinct = tuple(dict.fromkeys(by_name[p.name] for p in request.protocols))
        request = replace(request, protocols=distinct)
        error = check_join(self, request)
        if error is ErrorCode.GROUP_MAX_SIZE_REACHED:
            self.reply(request.token, Joined(error))
            self.drop(request.member_id)
            if self.state is State.PREPARING:
                go_on_if_all_joined(self)
        elif error is not ErrorCode.NONE:
            self.send(refusal(request, error))
        else:
            handle(self, kind_of_join(self, request), request)
        if not self.is_recorded and (len(self.members) or self.members.pending):
            self._record_creation()
        return self.take_effects()

    def sync(self, request: Sync, now_ms: int) -> Effects:
        """A member requests its assignment; the leader brings the assignments of all members."""
        self.now_ms = now_ms
        error = check_sync(self, request)
        if error is ErrorCode.NONE:
            handle(self, Event.SYNC, request)
        else:
            self.send(refusal(request, error))
        return self.take_effects()

    def heartbeat(self, request: Heartbeat, now_ms: int) -> Effects:
        """A member lives."""
        self.now_ms = now_ms
        error = check_member(self, request)
        if error is ErrorCode.NONE:
            handle(self, Event.HEARTBEAT, request)
        else:
            self.send(refusal(request, error))
        return self.take_effects()

    def leave(self, request: Leave, now_ms: int) -> Effects:
        """Members go; the answer waits for the record of a group that is empty then."""
        self.now_ms = now_ms
        if self.state is State.DEAD:
            return (refusal(request, ErrorCode.COORDINATOR_NOT_AVAILABLE),)
        left = tuple(self._leave_one(leaving) for leaving in request.members)
        reply = Reply(request.token, Left(ErrorCode.NONE, left))
        tickets = self.last_ticket
        if any(member.error is ErrorCode.NONE for member in left):
            handle(self, Event.LEFT, None)
        if self.last_ticket > tickets:
            self.storing[self.last_ticket] = replace(self.storing[self.last_ticket], leave=reply)
        else:
            self.send(reply)
        return self.take_effects()

    def commit(self, request: Commit, now_ms: int) -> ErrorCode:
        """Whether these offsets may be committed; a member's session is kept alive by it.

        Transactions are not held to the state (KIP-447): their member may be in a rebalance.
        """
        error = check_commit(self, request)
        if error is ErrorCode.NONE and not request.transactional:
            member = self.members.get(request.member_id)
            if member is not None:
                self.now_ms = now_ms
                self.extend_session(member)
        return error

    # --- the owner's --------------------------------------------------------------------------

    def move_deadlines(self, by_ms: int) -> None:
        """The clock was set: what was to be waited for takes no longer, and no less, by it."""
        self.deadlines.move_all(by_ms)

    @property
    def next_deadline_ms(self) -> int | None:
        """When to call `tick`; may be early, since heartbeats only move deadlines on."""
        return self.deadlines.next_ms

    @property
    def is_unused(self) -> bool:
        """Whether it can be forgotten as if it had never been: only refusals were given."""
        is_empty = self.state is State.EMPTY and not self.members.pending
        return is_empty and not self.is_recorded

    def tick(self, now_ms: int) -> Effects:
        """Let what has come due happen: sessions, phases of a rebalance, ids never used to join.

        Nothing that is set meanwhile is due in the same tick.
        """
        self.now_ms = now_ms
        for key in self.deadlines.take_due(now_ms):
            if key is Phase.JOIN:
                handle(self, Event.JOIN_PHASE_OVER, None)
            elif key is Phase.SYNC:
                handle(self, Event.SYNC_PHASE_OVER, None)
            elif key in self.members.pending:
                self.members.remove(str(key))
                handle(self, Event.PENDING_EXPIRED, None)
            elif key in self.members and not self.members[str(key)].is_waiting:
                self.drop(str(key))
                handle(self, Event.EXPIRED, None)
        return self.take_effects()

    def delete(self, now_ms: int) -> tuple[ErrorCode, Effects]:
        """Remove a group without members; refuses with NON_EMPTY_GROUP or GROUP_ID_NOT_FOUND.

        It is Dead at once, so that no client joins a group being removed, and Empty again if the
        tombstone could not be stored. Its offsets are to be removed in the same append.
        """
        self.now_ms = now_ms
        error = DELETE_ERRORS[self.state]
        if error is ErrorCode.NONE:
            handle(self, Event.DELETE, None)
        return error, self.take_effects()

    def hand_over(self, now_ms: int) -> Effects:
        """The group is one of KIP-848 now, with these members; all who wait are to join that."""
        self.now_ms = now_ms
        self.bury(ErrorCode.REBALANCE_IN_PROGRESS)
        return self.take_effects()

    def unload(self, now_ms: int) -> Effects:
        """The group has another coordinator now; waiting requests get NOT_COORDINATOR."""
        self.now_ms = now_ms
        self.bury(ErrorCode.NOT_COORDINATOR)
        return self.take_effects()

    # --- what others ask ----------------------------------------------------------------------

    def check_fetch(self) -> ErrorCode:
        """Whether there are offsets to fetch; a classic member need not say who it is."""
        return ErrorCode.GROUP_ID_NOT_FOUND if self.state is State.DEAD else ErrorCode.NONE

    def check_delete_offsets(self) -> ErrorCode:
        """Whether OffsetDelete may go on to the topics, none of them subscribed to."""
        return check_delete_offsets(self)

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether a member reads a topic; a consumers' group that cannot be read may read any."""
        if self.topics is None:
            return self.protocol_type == PROTOCOL_TYPE
        return topic in self.topics

    def expiry_rule(self) -> ExpiryRule | None:
        """How this group's offsets age (KIP-211); None while none do."""
        if self.protocol_type is None:
            return ExpiryRule()
        if self.state is State.EMPTY:
            return ExpiryRule(unused_since_ms=self.state_since_ms)
        if self.state is State.STABLE and self.topics is not None:
            return ExpiryRule(subscribed=self.topics)
        return None

    def describe(self) -> DescribedGroup:
        """As DescribeGroups answers; while a rebalance goes on there is nothing agreed on."""
        is_stable = self.state is State.STABLE
        protocol = (self.protocol or "") if is_stable else ""
        return DescribedGroup(
            self.group_id,
            self.state,
            self.protocol_type or "",
            protocol,
            tuple(
                DescribedMember(
                    m.member_id,
                    m.instance_id,
                    m.client_id,
                    m.client_host,
                    m.metadata_for(protocol) if is_stable else b"",
                    m.assignment,
                )
                for m in self.members
            ),
        )

    # --- parts --------------------------------------------------------------------------------

    def _record_creation(self) -> None:
        """Kafka writes an empty group first, so that ids it has given out are in a known group."""
        self.is_recorded = True
        empty = GroupMetadataValue(
            protocol_type="",
            generation=0,
            protocol=None,
            leader=None,
            current_state_timestamp=self.now_ms,
            members=(),
        )
        self.store(empty, Storing(Event.CREATED))

    def _leave_one(self, leaving: Leaving) -> LeftMember:
        member_id, instance_id = leaving.member_id, leaving.instance_id
        found = member_id
        if member_id == NO_MEMBER_ID:
            found = self.members.static_id(instance_id) or NO_MEMBER_ID
        error = ErrorCode.NONE
        if found not in self.members.pending:
            error = self.members.check(found, instance_id)
        if error is ErrorCode.NONE:
            self.drop(found)
        return LeftMember(member_id, instance_id, error)
