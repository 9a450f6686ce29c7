"""What each event does to a classic group in each state.

`TABLE` is the whole machine; a pair that is not in it cannot happen, because the checks before it
(`checks`) refuse such a request or no such deadline is set.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from lapse.base.errors import ErrorCode
from lapse.coordination.classic.events import (
    NO_LEADER,
    NO_MEMBER_ID,
    Heartbeat,
    HeartbeatTaken,
    Join,
    Joined,
    Sync,
    Synced,
)
from lapse.coordination.classic.members import Member
from lapse.coordination.classic.state import (
    Assignment,
    Event,
    GroupState,
    InitialDelay,
    Phase,
    Replacement,
    State,
    Stored,
    Storing,
)

GENERATION_MAX = 2**31 - 1


def handle(group: GroupState, event: Event, subject: object = None) -> None:
    """Let an event happen."""
    TABLE[group.state, event](group, subject)


# --- the rebalance ----------------------------------------------------------------------------


def rebalance(group: GroupState, _: object = None) -> None:
    """Begin a rebalance: all members are to join again."""
    if group.state is State.COMPLETING:
        _give_nothing(group, ErrorCode.REBALANCE_IN_PROGRESS)
    group.members.unsynced.clear()
    group.deadlines.clear(Phase.SYNC)
    is_initial = group.state is State.EMPTY
    group.move_to(State.PREPARING)
    timeout_ms = group.members.rejoin_timeout_ms
    if is_initial:
        delay_ms = group.settings.initial_rebalance_delay_ms
        group.initial = InitialDelay(delay_ms, max(timeout_ms - delay_ms, 0))
        group.wait(Phase.JOIN, delay_ms)
    elif group.members.all_joined:
        _end_join_phase(group)
    else:
        group.wait(Phase.JOIN, timeout_ms)


def go_on_if_all_joined(group: GroupState, _: object = None) -> None:
    """End the join phase if no member is missing, but not before the initial delay is over."""
    if group.initial is None and group.members.all_joined:
        _end_join_phase(group)


def _end_join_phase(group: GroupState) -> None:
    """Go on with those who joined. Static members keep their place without (KIP-345)."""
    group.deadlines.clear(Phase.JOIN)
    group.initial = None
    for member in group.members:
        if member.joining is None and member.instance_id is None:
            group.drop(member.member_id)
    if len(group.members) and not group.members.elect_joined_leader():
        # Only static members, and none of them there: until one joins or their sessions end.
        group.wait(Phase.JOIN, group.members.rejoin_timeout_ms)
        return
    group.generation = group.generation + 1 if group.generation < GENERATION_MAX else 0
    if len(group.members):
        _begin_sync_phase(group)
    else:
        group.protocol = None
        group.learn_topics()
        group.move_to(State.EMPTY)
        group.store(group.record(), Storing(Event.EMPTIED))


def _begin_sync_phase(group: GroupState) -> None:
    group.protocol = group.members.choose_protocol()
    group.learn_topics()
    group.move_to(State.COMPLETING)
    group.members.unsynced = dict.fromkeys(m.member_id for m in group.members)
    for member in group.members:
        group.answer_join(member, group.joined(member.member_id))
        group.members.put(replace(group.members[member.member_id], is_new=False))
        group.extend_session(member)
    group.wait(Phase.SYNC, group.members.rejoin_timeout_ms)


def _give_nothing(group: GroupState, error: ErrorCode) -> None:
    """Take assignments back, and answer the members that wait for one."""
    for member in group.members:
        group.members.put(replace(member, assignment=b""))
        if group.answer_sync(member, Synced(error)):
            group.extend_session(member)


def _go_on_early_if_all_joined(group: GroupState, _: object) -> None:
    """As Kafka does when a session ends: also the initial delay is over then."""
    if group.members.all_joined:
        _end_join_phase(group)


def _join_phase_over(group: GroupState, _: object) -> None:
    """The rebalance timeout, or the initial delay, which grows while members come."""
    initial, delay_ms = group.initial, 0
    if initial is not None and initial.somebody_joined:
        delay_ms = min(group.settings.initial_rebalance_delay_ms, initial.left_ms)
    if initial is None or not delay_ms:
        _end_join_phase(group)
        return
    group.initial = InitialDelay(delay_ms, max(initial.left_ms - initial.delay_ms, 0))
    group.wait(Phase.JOIN, delay_ms)


def _sync_phase_over(group: GroupState, _: object) -> None:
    """Members that joined and never synced hold up the other members no longer."""
    if group.members.unsynced:
        for member_id in tuple(group.members.unsynced):
            group.drop(member_id)
        rebalance(group)


# --- joins ------------------------------------------------------------------------------------


def _admit_or_send_back(group: GroupState, request: Join) -> None:
    """A new client: an id first, where the client knows what to do with it (KIP-394)."""
    prefix = request.client_id if request.instance_id is None else request.instance_id
    member_id = f"{prefix}-{group.new_id()}"
    if request.needs_member_id and request.instance_id is None:
        group.members.pending[member_id] = None
        group.wait(member_id, request.session_timeout_ms)
        group.reply(request.token, Joined(ErrorCode.MEMBER_ID_REQUIRED, member_id))
    else:
        _admit(group, replace(request, member_id=member_id))


def _admit(group: GroupState, request: Join) -> None:
    if not len(group.members):
        group.protocol_type = request.protocol_type
    if group.initial is not None:
        group.initial = replace(group.initial, somebody_joined=True)
    member = Member(
        request.member_id,
        request.instance_id,
        request.client_id,
        request.client_host,
        request.session_timeout_ms,
        request.rebalance_timeout_ms,
        request.protocols,
        is_new=True,
        joining=request.token,
    )
    group.members.put(member)
    # It knows no id yet, so it cannot send heartbeats, and a client that has gone away comes back
    # as another member: joins of new members must not wait for ever.
    group.wait(member.member_id, group.settings.new_member_join_timeout_ms)
    _rebalance_or_go_on(group)


def _rejoin(group: GroupState, request: Join) -> None:
    member = group.members[request.member_id]
    group.answer_join(member, Joined(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))
    group.members.put(_updated(group.members[request.member_id], request))
    _rebalance_or_go_on(group)


def _updated(member: Member, request: Join) -> Member:
    return replace(
        member,
        protocols=request.protocols,
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        joining=request.token,
    )


def _rebalance_or_go_on(group: GroupState) -> None:
    if group.state is State.PREPARING:
        go_on_if_all_joined(group)
    else:
        rebalance(group)


def _rejoin_if_changed(group: GroupState, request: Join) -> None:
    """A member that says the same again missed its answer; in a stable group, not its leader.

    A leader that joins again wants a rebalance, for reasons that only it sees (new partitions).
    """
    member = group.members[request.member_id]
    leads = group.members.leader == member.member_id and group.state is State.STABLE
    if leads or member.protocols != request.protocols:
        _rejoin(group, request)
    else:
        group.reply(request.token, group.joined(member.member_id))


def _take_over(group: GroupState, request: Join) -> tuple[Member, Member]:
    """An instance comes back without its member id: it gets a new one, the old is fenced."""
    old_id = group.members.static_id(request.instance_id)
    assert old_id is not None
    old = group.members[old_id]
    group.answer_join(old, Joined(ErrorCode.FENCED_INSTANCE_ID, old_id))
    group.answer_sync(old, Synced(ErrorCode.FENCED_INSTANCE_ID))
    group.deadlines.clear(old_id)
    new = group.members.rekey(old_id, f"{request.instance_id}-{group.new_id()}")
    group.extend_session(new)
    new = _updated(new, request)
    group.members.put(new)
    return old, new


def _take_over_and_go_on(group: GroupState, request: Join) -> None:
    _take_over(group, request)
    go_on_if_all_joined(group)


def _take_over_and_rebalance(group: GroupState, request: Join) -> None:
    """The leader may be assigning to the old id just now."""
    _take_over(group, request)
    rebalance(group)


def _take_over_quietly(group: GroupState, request: Join) -> None:
    """No rebalance for a restart, unless the group would now agree on another protocol."""
    leader = group.members.leader or NO_LEADER
    old, new = _take_over(group, request)
    if group.members.choose_protocol() != group.protocol:
        rebalance(group)
        return
    group.learn_topics()
    replacement = Replacement(
        group.generation, old, leader, new.member_id, request.may_skip_assignment
    )
    group.store(group.record(), Storing(Event.REPLACED, replacement))


def _instance_replaced(group: GroupState, stored: Stored) -> None:
    """Answer the instance, unless a rebalance has taken its join in meanwhile."""
    subject = stored.subject
    assert isinstance(subject, Replacement)
    new = group.members.get(subject.new_id)
    if stored.error is not ErrorCode.NONE and new is None:
        _come_back_further(group, subject)
    if new is None or new.joining is None or subject.generation != group.generation:
        return
    answer = group.joined(new.member_id)
    if stored.error is not ErrorCode.NONE:
        answer = replace(
            answer,
            error=stored.error,
            member_id=NO_MEMBER_ID,
            leader=subject.old_leader,
            members=(),
        )
    elif subject.may_skip_assignment:
        answer = replace(answer, skip_assignment=group.members.leader == new.member_id)
    else:
        # Told who led before, an older client does not take itself for the leader, and so does
        # not assign anew what no member would get (KIP-814).
        answer = replace(answer, leader=subject.old_leader, members=())
    group.answer_join(new, answer)
    if stored.error is ErrorCode.NONE:
        group.extend_session(new)
    else:
        group.deadlines.clear(new.member_id)
        group.members.rekey(new.member_id, subject.old.member_id)
        group.members.put(replace(subject.old, joining=None, syncing=None))
        group.learn_topics()
        group.extend_session(subject.old)


def _come_back_further(group: GroupState, lost: Replacement) -> None:
    """A later restart of the same instance must not come back to an id that the log never had."""
    for ticket, storing in group.storing.items():
        later = storing.subject
        if isinstance(later, Replacement) and later.old.member_id == lost.new_id:
            later = replace(later, old=lost.old, old_leader=lost.old_leader)
            group.storing[ticket] = replace(storing, subject=later)


# --- syncs and heartbeats ---------------------------------------------------------------------


def _sync_later(group: GroupState, request: Sync) -> None:
    group.reply(request.token, Synced(ErrorCode.REBALANCE_IN_PROGRESS))


def _wait_for_leader(group: GroupState, request: Sync) -> None:
    """Followers wait; what the leader assigned is stored first. Members it forgot get nothing."""
    member = group.members[request.member_id]
    group.answer_sync(member, Synced(ErrorCode.REBALANCE_IN_PROGRESS))
    group.members.put(replace(group.members[member.member_id], syncing=request.token))
    _synced(group, member)
    if group.members.leader == member.member_id and not _is_assigning(group):
        given = {m.member_id: request.assignments.get(m.member_id, b"") for m in group.members}
        group.store(
            group.record(given), Storing(Event.ASSIGNED, Assignment(group.generation, given))
        )


def _is_assigning(group: GroupState) -> bool:
    """Whether an assignment of this generation is being stored."""
    subjects = (s.subject for s in group.storing.values() if s.event is Event.ASSIGNED)
    return any(subject.generation == group.generation for subject in subjects)


def _synced(group: GroupState, member: Member) -> None:
    group.members.unsynced.pop(member.member_id, None)
    if not group.members.unsynced:
        group.deadlines.clear(Phase.SYNC)


def _assigned(group: GroupState, stored: Stored) -> None:
    """Each member gets what the leader assigned; a rebalance that began meanwhile makes it void."""
    subject = stored.subject
    assert isinstance(subject, Assignment)
    if subject.generation != group.generation:
        return
    if stored.error is not ErrorCode.NONE:
        _give_nothing(group, stored.error)
        rebalance(group)
        return
    group.move_to(State.STABLE)
    for member in group.members:
        assignment = subject.by_member.get(member.member_id, b"")
        group.members.put(replace(member, assignment=assignment))
        if group.answer_sync(member, _synced_answer(group, assignment)):
            # Sessions do not end while a sync waits, so this one may not be counted any more.
            group.extend_session(member)


def _synced_answer(group: GroupState, assignment: bytes) -> Synced:
    return Synced(ErrorCode.NONE, group.protocol_type, group.protocol, assignment)


def _sync_at_once(group: GroupState, request: Sync) -> None:
    member = group.members[request.member_id]
    _synced(group, member)
    group.reply(request.token, _synced_answer(group, member.assignment))


def _take_heartbeat(group: GroupState, request: Heartbeat) -> None:
    group.extend_session(group.members[request.member_id])
    group.reply(request.token, HeartbeatTaken(ErrorCode.NONE))


def _ask_to_rejoin(group: GroupState, request: Heartbeat) -> None:
    group.extend_session(group.members[request.member_id])
    group.reply(request.token, HeartbeatTaken(ErrorCode.REBALANCE_IN_PROGRESS))


# --- the group itself -------------------------------------------------------------------------


def _created(group: GroupState, stored: Stored) -> None:
    """A group the log does not have must not live, unless a later record made up for it."""
    if stored.error is not ErrorCode.NONE and group.generation == 0:
        for member in group.members:
            group.answer_join(member, Joined(stored.error))
        group.bury(stored.error)


def _delete(group: GroupState, _: object) -> None:
    since_ms = group.state_since_ms
    for member_id in tuple(group.members.pending):
        group.drop(member_id)
    group.move_to(State.DEAD)
    group.store(None, Storing(Event.DELETED, since_ms))


def _deleted(group: GroupState, stored: Stored) -> None:
    if stored.error is not ErrorCode.NONE:
        group.move_to(State.EMPTY)
        group.state_since_ms = stored.subject


def _nothing(group: GroupState, _: object) -> None:
    """The event has no bearing on this state any more."""


# What an event is about differs by event, which the table's type cannot say.
Handler = Callable[[GroupState, Any], None]

_ROWS: Mapping[Event, Mapping[State, Handler]] = {
    Event.JOIN_NEW: {
        State.EMPTY: _admit_or_send_back,
        State.PREPARING: _admit_or_send_back,
        State.COMPLETING: _admit_or_send_back,
        State.STABLE: _admit_or_send_back,
    },
    Event.JOIN_PENDING: {
        State.EMPTY: _admit,
        State.PREPARING: _admit,
        State.COMPLETING: _admit,
        State.STABLE: _admit,
    },
    Event.JOIN_INSTANCE: {
        State.PREPARING: _take_over_and_go_on,
        State.COMPLETING: _take_over_and_rebalance,
        State.STABLE: _take_over_quietly,
    },
    Event.JOIN_MEMBER: {
        State.PREPARING: _rejoin,
        State.COMPLETING: _rejoin_if_changed,
        State.STABLE: _rejoin_if_changed,
    },
    Event.SYNC: {
        State.PREPARING: _sync_later,
        State.COMPLETING: _wait_for_leader,
        State.STABLE: _sync_at_once,
    },
    Event.HEARTBEAT: {
        State.PREPARING: _ask_to_rejoin,
        State.COMPLETING: _take_heartbeat,
        State.STABLE: _take_heartbeat,
    },
    Event.LEFT: {
        State.EMPTY: _nothing,
        State.PREPARING: go_on_if_all_joined,
        State.COMPLETING: rebalance,
        State.STABLE: rebalance,
    },
    Event.EXPIRED: {
        State.PREPARING: _go_on_early_if_all_joined,
        State.COMPLETING: rebalance,
        State.STABLE: rebalance,
    },
    Event.PENDING_EXPIRED: {
        State.EMPTY: _nothing,
        State.PREPARING: _go_on_early_if_all_joined,
        State.COMPLETING: _nothing,
        State.STABLE: _nothing,
    },
    Event.JOIN_PHASE_OVER: {State.PREPARING: _join_phase_over},
    Event.SYNC_PHASE_OVER: {
        State.COMPLETING: _sync_phase_over,
        State.STABLE: _sync_phase_over,
    },
    Event.DELETE: {State.EMPTY: _delete},
    Event.CREATED: {
        State.EMPTY: _created,
        State.PREPARING: _created,
        State.COMPLETING: _nothing,
        State.STABLE: _nothing,
        State.DEAD: _nothing,
    },
    Event.ASSIGNED: {
        State.EMPTY: _nothing,
        State.PREPARING: _nothing,
        State.COMPLETING: _assigned,
        State.STABLE: _nothing,
        State.DEAD: _nothing,
    },
    Event.REPLACED: {
        State.EMPTY: _nothing,
        State.PREPARING: _nothing,
        State.COMPLETING: _nothing,
        State.STABLE: _instance_replaced,
        State.DEAD: _nothing,
    },
    Event.EMPTIED: dict.fromkeys(State, _nothing),
    Event.DELETED: {State.DEAD: _deleted},
}
TABLE: Mapping[tuple[State, Event], Handler] = {
    (state, event): handler for event, row in _ROWS.items() for state, handler in row.items()
}
