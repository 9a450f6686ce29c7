"""Bringing one member nearer to its target, without ever giving a partition to two (KIP-848).

A member gives up first: while it has not said that it no longer owns what it is to lose, it stays
in its epoch (UNREVOKED). Then it enters the target's epoch with what is free, and waits for what
others still hold (UNRELEASED). As CurrentAssignmentBuilder of Kafka 4.3.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from lapse.base.errors import ErrorCode, KafkaError
from lapse.coordination.consumer.events import Partitions
from lapse.coordination.consumer.state import Holding, Member, Owners
from lapse.coordination.records.consumer_groups import MemberState

Numbers = dict[uuid.UUID, dict[int, int]]


@dataclass(frozen=True, slots=True)
class Aim:
    """What a member is to come to, and what stands in its way.

    Attributes:
        epoch: the target's.
        target: what it is to have.
        subscribed: ids of the topics it reads; of others it keeps nothing.
        has_resubscribed: whether it reads others than before.
        owned: what it says it has; None where it says nothing.
        owners: who holds each partition now.
    """

    epoch: int
    target: Partitions
    subscribed: frozenset[uuid.UUID]
    has_resubscribed: bool
    owned: Partitions | None
    owners: Owners


def reconciled(member: Member, aim: Aim) -> Member:
    """The member one step on; the same one where it cannot move.

    Raises FENCED_MEMBER_EPOCH for a member in a state that is not known.
    """
    return _STEPS[member.state](member, aim)


def _from_stable(member: Member, aim: Aim) -> Member:
    if member.epoch != aim.epoch:
        return _next(member, aim)
    return _without_topics(member, aim) if aim.has_resubscribed else member


def _from_unrevoked(member: Member, aim: Aim) -> Member:
    if not _owns_any(aim.owned, member.revoking):
        return _next(member, aim)
    return _without_topics(member, aim) if aim.has_resubscribed else member


def _from_unknown(member: Member, aim: Aim) -> Member:
    """A newer Kafka wrote a state that this one does not have: begin anew, with nothing."""
    if aim.owned is None or aim.owned:
        raise KafkaError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            "The consumer group member is in an unknown state. "
            "The member must abandon all its partitions and rejoin.",
        )
    return _next(replace(member, epoch=aim.epoch), aim)


def _owns_any(owned: Partitions | None, holding: Holding) -> bool:
    """Whether the member still has any of these; it does while it does not say."""
    if owned is None:
        return True
    return any(n in holding.get(topic_id, {}) for topic_id, ns in owned.items() for n in ns)


def _without_topics(member: Member, aim: Aim) -> Member:
    """A member that reads less gives that up at once, before there is a target for it."""
    gone = {t: epochs for t, epochs in member.assigned.items() if t not in aim.subscribed}
    if not gone:
        return member
    kept = {t: epochs for t, epochs in member.assigned.items() if t in aim.subscribed}
    revoking = _merged(member.revoking, gone)
    if not _owns_any(aim.owned, revoking):
        return _entering(member, member.epoch, member.state, kept, member.revoking)
    return _entering(member, member.epoch, MemberState.UNREVOKED_PARTITIONS, kept, revoking)


def _merged(one: Holding, other: Holding) -> Holding:
    topics = [*one, *(topic_id for topic_id in other if topic_id not in one)]
    return {t: {**one.get(t, {}), **other.get(t, {})} for t in topics}


def _next(member: Member, aim: Aim) -> Member:
    kept: Numbers = {}
    revoking: Numbers = {}
    free: Numbers = {}
    has_unreleased = False
    for topic_id in {*aim.target, *member.assigned}:
        target = aim.target.get(topic_id, frozenset()) if topic_id in aim.subscribed else ()
        now = member.assigned.get(topic_id, {})
        _put(kept, topic_id, {n: epoch for n, epoch in now.items() if n in target})
        _put(revoking, topic_id, {n: epoch for n, epoch in now.items() if n not in target})
        wanted = [n for n in target if n not in now]
        fine = {n: aim.epoch for n in wanted if _is_free(member, aim, topic_id, n)}
        has_unreleased = has_unreleased or len(fine) < len(wanted)
        _put(free, topic_id, fine)
    if revoking and _owns_any(aim.owned, revoking):
        return _entering(member, member.epoch, MemberState.UNREVOKED_PARTITIONS, kept, revoking)
    state = MemberState.UNRELEASED_PARTITIONS if has_unreleased else MemberState.STABLE
    return _entering(member, aim.epoch, state, _merged(kept, free), {})


def _is_free(member: Member, aim: Aim, topic_id: uuid.UUID, number: int) -> bool:
    """What the member itself was to give up counts as free: no other member has it."""
    owner = aim.owners.get((topic_id, number))
    return owner is None or (
        owner == member.member_id and number in member.revoking.get(topic_id, {})
    )


def _put(table: Numbers, topic_id: uuid.UUID, epochs: dict[int, int]) -> None:
    if epochs:
        table[topic_id] = epochs


def _entering(
    member: Member, epoch: int, state: MemberState, assigned: Holding, revoking: Holding
) -> Member:
    return replace(
        member,
        epoch=epoch,
        previous_epoch=member.epoch,
        state=state,
        assigned=assigned,
        revoking=revoking,
    )


_STEPS: Mapping[MemberState, Callable[[Member, Aim], Member]] = {
    MemberState.STABLE: _from_stable,
    MemberState.UNREVOKED_PARTITIONS: _from_unrevoked,
    MemberState.UNRELEASED_PARTITIONS: _next,
    MemberState.UNKNOWN: _from_unknown,
}
