"""Random lives of a classic group: nobody waits unheld, nothing is given that is not stored.

Clients join, join again while they wait, sync, leave and fall silent; records are stored late, or
not at all; the coordinator moves. After each step everything that must always hold is looked at.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lapse.base.errors import ErrorCode
from lapse.coordination.classic.events import (
    NO_MEMBER_ID,
    Commit,
    Effects,
    GroupSettings,
    Joined,
    Leaving,
    Protocol,
    Reply,
    Synced,
)
from lapse.coordination.classic.group import ClassicGroup
from lapse.coordination.classic.state import Event, Phase, State
from lapse.coordination.records.offsets import GroupMetadataValue
from tests.support.coordination.classic import GROUP, RANGE, ROUND_ROBIN, Owner, consumer

SETTINGS = GroupSettings(initial_rebalance_delay_ms=3_000, size_max=4)
INSTANCES = st.sampled_from([None, None, "i", "j"])
PROTOCOLS = st.sampled_from(
    [(RANGE,), (RANGE, ROUND_ROBIN), (ROUND_ROBIN, RANGE), (ROUND_ROBIN,), (consumer("a"),)]
)
TIMEOUTS_MS = st.sampled_from([6_000, 20_000, 400_000])
ERRORS = st.sampled_from([ErrorCode.NONE] * 3 + [ErrorCode.NOT_ENOUGH_REPLICAS])
NUMBERS = st.integers(0, 1_000)


class CheckedOwner(Owner):
    """Also checks each answer against the log."""

    def __init__(self, loaded: GroupMetadataValue | None = None) -> None:
        super().__init__(SETTINGS, loaded)
        self.log = [loaded] if loaded is not None else []
        self.ids: dict[str, str | None] = {}
        self.instance_of: dict[int, str | None] = {}
        self.syncing: str | None = None
        self.member_of: dict[int, str] = {}
        self.log_is_behind = False

    def take(self, effects: Effects) -> None:
        super().take(effects)
        for effect in effects:
            if isinstance(effect, Reply):
                self._check(effect)

    def _check(self, reply: Reply) -> None:
        answer = reply.answer
        if isinstance(answer, Joined) and answer.error in {
            ErrorCode.NONE,
            ErrorCode.MEMBER_ID_REQUIRED,
        }:
            assert isinstance(reply.token, int)
            self.ids[answer.member_id] = self.instance_of.get(reply.token)
        if isinstance(answer, Joined) and answer.error is ErrorCode.NONE:
            assert answer.generation == self.group.generation
            told = {m.member_id for m in answer.members}
            assert not told or (told >= {answer.member_id} and answer.leader == answer.member_id)
        if isinstance(answer, Synced) and answer.error is ErrorCode.NONE:
            record = self.log[-1]
            assert record is not None
            assert record.generation == self.group.generation
            assert isinstance(reply.token, int)
            stored = {m.member_id: m.assignment for m in record.members}
            member_id = self.member_of.get(reply.token, self.syncing)
            assert answer.assignment == stored[member_id or NO_MEMBER_ID]

    def sync_as(
        self, member_id: str, instance: str | None, given: dict[str, bytes], g: int
    ) -> None:
        self.syncing = member_id
        token = self.sync(member_id, given, generation=g, instance_id=instance)
        self.member_of[token] = member_id

    def store_one(self, error: ErrorCode = ErrorCode.NONE) -> None:
        ticket = self.to_store[0].ticket
        storing = self.group.storing.get(ticket)
        if error is ErrorCode.NONE:
            self.log_is_behind = False
        elif storing is not None and storing.event is Event.EMPTIED:
            self.log_is_behind = True
        super().store_one(error)


class ClassicGroupLife(RuleBasedStateMachine):
    """One group, its members and its log."""

    def __init__(self) -> None:
        super().__init__()
        self.owner = CheckedOwner()
        self.generation = 0

    def _pick(self, number: int) -> tuple[str, str | None]:
        """An id somebody was told."""
        ids = list(self.owner.ids)
        member_id = ids[number % len(ids)]
        return member_id, self.owner.ids[member_id]

    def _begin(self, loaded: GroupMetadataValue | None) -> None:
        """Another coordinator; ids and time go on."""
        old, self.owner = self.owner, CheckedOwner(loaded)
        self.owner.now_ms = old.now_ms
        self.owner._ids, self.owner._tokens = old._ids, old._tokens
        group, new_id = ClassicGroup(GROUP, SETTINGS, self.owner.new_id, old.now_ms), old.new_id
        if loaded is not None:
            group = ClassicGroup.load(GROUP, loaded, SETTINGS, new_id, old.now_ms)
        self.owner.group = group
        self.owner.ids = old.ids
        self.generation = group.generation

    # --- what clients do ------------------------------------------------------------------------

    def _join(
        self, member_id: str, instance: str | None, protocols: tuple[Protocol, ...], ms: int, v: int
    ) -> None:
        owner = self.owner
        token = owner.join(
            member_id,
            *protocols,
            session_timeout_ms=ms,
            rebalance_timeout_ms=ms // 2,
            instance_id=instance,
            needs_member_id=v >= 4,
            may_skip_assignment=v >= 9,
        )
        owner.instance_of[token] = instance
        answer = owner.answers.get(token)
        if isinstance(answer, Joined) and answer.error is ErrorCode.MEMBER_ID_REQUIRED:
            owner.ids[answer.member_id] = instance

    @rule(i=INSTANCES, protocols=PROTOCOLS, ms=TIMEOUTS_MS, v=st.sampled_from([3, 5, 9]))
    def join(self, i: str | None, protocols: tuple[Protocol, ...], ms: int, v: int) -> None:
        self._join(NO_MEMBER_ID, i, protocols, ms, v)

    @precondition(lambda self: self.owner.ids)
    @rule(n=NUMBERS, protocols=PROTOCOLS, ms=TIMEOUTS_MS)
    def join_again(self, n: int, protocols: tuple[Protocol, ...], ms: int) -> None:
        self._join(*self._pick(n), protocols, ms, 9)

    @rule(ms=TIMEOUTS_MS)
    def all_join_again(self, ms: int) -> None:
        for member in self.owner.group.members:
            self._join(member.member_id, member.instance_id, member.protocols, ms, 9)

    @precondition(lambda self: self.owner.ids)
    @rule(n=NUMBERS, late=st.integers(0, 4))
    def sync(self, n: int, late: int) -> None:
        member_id, instance = self._pick(n)
        group = self.owner.group
        given = {m.member_id: f"{n}{m.member_id}".encode() for m in group.members}
        self.owner.sync_as(member_id, instance, given, group.generation - (late == 4))

    @rule()
    def all_sync(self) -> None:
        group = self.owner.group
        given = {m.member_id: m.member_id.encode() for m in group.members}
        for member in group.members:
            if member.member_id in self.owner.ids:  # a static member's new id may not be told yet
                self.owner.sync_as(member.member_id, member.instance_id, given, group.generation)

    @precondition(lambda self: self.owner.ids)
    @rule(n=NUMBERS)
    def heartbeat(self, n: int) -> None:
        member_id, instance = self._pick(n)
        error = self.owner.heartbeat(member_id, instance_id=instance)
        commit = Commit(member_id, self.owner.group.generation, instance)
        committed = self.owner.group.commit(commit, self.owner.now_ms)
        unknown = {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID}
        assert (error in unknown) == (committed in unknown)

    @precondition(lambda self: self.owner.ids)
    @rule(n=NUMBERS, by_instance=st.booleans())
    def leave(self, n: int, by_instance: bool) -> None:
        member_id, instance = self._pick(n)
        by_instance = by_instance and instance is not None
        self.owner.leave(Leaving(NO_MEMBER_ID if by_instance else member_id, instance))

    # --- what happens to them -------------------------------------------------------------------

    @rule(ms=st.sampled_from([1, 1_000, 3_000, 6_000, 60_000]))
    def sleep(self, ms: int) -> None:
        """Without storing anything; time may also have passed without a tick."""
        self.owner.now_ms += ms
        self.owner.take(self.owner.group.tick(self.owner.now_ms))
        next_ms = self.owner.group.next_deadline_ms
        assert next_ms is None or next_ms > self.owner.now_ms

    @precondition(lambda self: self.owner.to_store)
    @rule(error=ERRORS)
    def store(self, error: ErrorCode) -> None:
        self.owner.store_one(error)

    @rule()
    def store_all(self) -> None:
        self.owner.store()

    @rule()
    def delete(self) -> None:
        was = self.owner.group.state
        error, effects = self.owner.group.delete(self.owner.now_ms)
        self.owner.take(effects)
        assert (error is ErrorCode.NONE) == (was is State.EMPTY)

    @rule()
    def move(self) -> None:
        """The coordinator moves; what was not stored by then is lost."""
        self.owner.take(self.owner.group.unload(self.owner.now_ms))
        assert not self.owner.waiting
        self._begin(self.owner.log[-1] if self.owner.log else None)

    @precondition(lambda self: self.owner.group.state is State.DEAD and not self.owner.to_store)
    @rule()
    def create_again(self) -> None:
        self._begin(None)

    # --- what always holds ----------------------------------------------------------------------

    @invariant()
    def everybody_who_waits_is_held(self) -> None:
        group = self.owner.group
        held = [t for m in group.members for t in (m.joining, m.syncing) if t is not None]
        held += [s.leave.token for s in group.storing.values() if s.leave is not None]
        assert len(held) == len(set(held))
        assert set(held) == self.owner.waiting

    @invariant()
    def one_member_leads(self) -> None:
        members = self.owner.group.members
        assert (members.leader in members) if len(members) else members.leader is None
        assert members.joining_count == sum(m.joining is not None for m in members)

    @invariant()
    def generations_go_up(self) -> None:
        assert self.owner.group.generation >= self.generation
        self.generation = self.owner.group.generation

    @invariant()
    def states_are_what_they_say(self) -> None:
        group, members = self.owner.group, self.owner.group.members
        events = {s.event for s in group.storing.values()}
        match group.state:
            case State.EMPTY | State.DEAD:
                assert not len(members)
            case State.PREPARING:
                assert not any(m.syncing for m in members)
                assert group.initial is not None or not members.all_joined
            case State.COMPLETING:
                assert not any(m.joining for m in members)
                assert members.unsynced or Event.ASSIGNED in events
            case State.STABLE:
                assert not any(m.syncing for m in members)
                assert Event.REPLACED in events or not any(m.joining for m in members)
        if group.state in {State.COMPLETING, State.STABLE}:
            protocol = group.protocol
            assert all(protocol in {p.name for p in m.protocols} for m in members)
        else:
            assert not members.unsynced
        assert members.joining_count <= SETTINGS.size_max

    @invariant()
    def nothing_hangs(self) -> None:
        """Whoever is waited for has a deadline."""
        group = self.owner.group
        due = set(group.deadlines._at_ms)
        ids = {m.member_id for m in group.members} | set(group.members.pending)
        assert set(group.members.pending) <= due <= ids | set(Phase)
        assert due >= {m.member_id for m in group.members if not m.is_waiting}
        assert (Phase.JOIN in due) == (group.state is State.PREPARING)
        assert (Phase.SYNC in due) == bool(group.members.unsynced)
        next_ms = group.next_deadline_ms
        assert next_ms is None or next_ms <= min(group.deadlines._at_ms.values())

    @invariant()
    def the_log_gives_the_same_group(self) -> None:
        owner, group = self.owner, self.owner.group
        is_settled = group.state in {State.EMPTY, State.STABLE} and not owner.to_store
        if not is_settled or not owner.log or owner.log[-1] is None or owner.log_is_behind:
            return
        record = owner.log[-1]
        loaded = ClassicGroup.load(GROUP, record, SETTINGS, owner.new_id, owner.now_ms)
        assert loaded.record() == record
        now, then = (replace(g.record(), current_state_timestamp=0) for g in (group, loaded))
        # An empty group that members came to and left knows their type before the log does.
        if record.generation:
            assert now == then
            assert loaded.state is group.state or len(loaded.members) > SETTINGS.size_max
            assert loaded.topics == group.topics


TestClassicGroup = ClassicGroupLife.TestCase
