"""Who leads a partition when brokers come and go: decisions of the controller, and no more.

A leader is one of the in-sync replicas, which have all that was acknowledged; while none of those
is alive with its log nobody leads, and the partition waits for one of them. (Kafka elects another
if `unclean.leader.election.enable` says so, and loses records. Here somebody has to ask for it.)
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from lapse.metadata.partition_states import (
    NO_LEADER,
    LeftWith,
    LogEnd,
    PartitionState,
    with_isr,
)

_NOTHING = LogEnd(-1, 0)


@dataclass(frozen=True, slots=True)
class Brokers:
    """The brokers that are registered.

    Attributes:
        alive: their ids.
        leaving: those of them that are about to stop, and lead nothing that another one can.
    """

    alive: AbstractSet[int]
    leaving: AbstractSet[int] = frozenset()

    @property
    def staying(self) -> AbstractSet[int]:
        return self.alive - self.leaving


def settled(state: PartitionState, brokers: Brokers) -> PartitionState | None:
    """The state that a partition should have while these brokers are there; None if it has it.

    The dead leave the in-sync replicas at once, so that acks=all waits for them no longer, as long
    as one is left: the last ones stay, dead or not, since only they may lead again.
    """
    able = tuple(b for b in state.isr if b in brokers.alive and b not in state.lost)
    isr = tuple(b for b in able if b in brokers.staying) or able
    if not isr:
        return None if state.leader == NO_LEADER else _led(state, NO_LEADER, state.isr)
    if state.leader in isr and isr == state.isr:
        return None
    return led_by(state, isr, brokers)


def led_by(state: PartitionState, isr: tuple[int, ...], brokers: Brokers) -> PartitionState:
    """The state with these in-sync replicas; another of them leads where the leader is none."""
    if state.leader in isr:
        return with_isr(state, isr)
    able = [b for b in state.replicas if b in isr and b in brokers.alive and b not in state.lost]
    staying = [b for b in able if b in brokers.staying]
    return _led(state, next(iter(staying or able), NO_LEADER), isr)


def preferred(state: PartitionState, brokers: Brokers) -> PartitionState | None:
    """The state in which the preferred leader leads; None where it does, or cannot."""
    first = state.replicas[0]
    able = brokers.staying & set(state.isr) - set(state.lost)
    if state.leader == first or first not in able:
        return None
    return _led(state, first, state.isr)


def unclean(state: PartitionState, brokers: Brokers) -> PartitionState | None:
    """The state in which a replica leads that lacks what was acknowledged; None: nobody can.

    For partitions that nobody leads, and for people who want that; one that has all of it is taken
    where that can be. Never one that others did not
    wait for (L3): it would bring back what was deleted. One whose log is gone comes last, and the
    one that is known to have most first.
    """
    clean = settled(state, brokers)
    if clean is not None and clean.leader != NO_LEADER:
        return clean
    able = [b for b in state.replicas if b in brokers.staying and b not in state.uncounted]
    if not able:
        return None
    known = {one.broker: one.end for one in state.left_with}
    leader = max(able, key=lambda b: (b not in state.lost, known.get(b, _NOTHING)))
    return replace(_led(state, leader, (leader,)), lost=())


def resigned(
    state: PartitionState, broker: int, *, lost_nothing: bool, has_log: bool = True
) -> PartitionState | None:
    """The state once a broker has started again; None where that changes nothing.

    `has_log`: not where its disk is another one, and the partition is not on any that is there.
    """
    others = tuple(b for b in state.isr if b != broker)
    is_lost = not has_log and broker in state.isr and not others
    if len(state.replicas) == 1 and is_lost == (broker in state.lost):
        return None
    isr = others if others and not (lost_nothing and has_log) else state.isr
    lost = tuple(b for b in state.lost if b != broker)
    after = replace(state, lost=(*lost, broker) if is_lost else lost)
    if not has_log:
        after = replace(after, left_with=_without(after.left_with, broker))
    if state.leader == broker:
        return _led(after, NO_LEADER, isr)
    after = with_isr(after, isr)
    return None if after == state else after


def stopped(state: PartitionState, broker: int, end: LogEnd) -> PartitionState | None:
    """The state that a broker leaves when it stops in order; None: the same.

    How far its log goes is noted where one other is in sync at most: that one may be dead already,
    and be back without all of its log.
    """
    others = [b for b in state.isr if b != broker]
    if len(others) != 1:
        return None
    after = left_with(state, broker, end)
    return None if after == state else after


def left_with(state: PartitionState, broker: int, end: LogEnd) -> PartitionState:
    """The state that says how far a broker's log went when it left the in-sync replicas."""
    return replace(state, left_with=(*_without(state.left_with, broker), LeftWith(broker, end)))


def doubted(state: PartitionState, broker: int, end: LogEnd) -> PartitionState | None:
    """The state once a broker has looked at its log, whose end it may have lost; None: the same.

    It leaves the in-sync replicas to those that lost nothing. Where there are none, since all of
    them were killed or without power at once, the one that has most has all that is left: it alone
    is in sync then, and who is not leads nothing. (In Kafka the one that is back first leads, and
    others forget what it lacks.)
    """
    known = _without(state.left_with, broker)
    if broker not in state.isr and known == state.left_with:
        return None  # it lacks something anyway
    others = tuple(b for b in state.isr if b != broker)
    after = left_with(state, broker, end)
    isr = others or (_with_most(after, broker),)
    if isr == (broker,):
        after = replace(state, left_with=known)
    elif state.leader == broker:  # elected since it is registered: others would go by what it lacks
        after = _led(after, NO_LEADER, isr)
    else:
        after = with_isr(after, isr)
    return None if after == state else after


def _with_most(state: PartitionState, broker: int) -> int:
    """Who is known to have most; this broker where nobody has more, or counts (L3)."""
    able = set(state.replicas) - state.uncounted
    known = [one for one in state.left_with if one.broker in able]
    return max(known, key=lambda one: (one.end, one.broker == broker)).broker


def _without(known: tuple[LeftWith, ...], broker: int) -> tuple[LeftWith, ...]:
    return tuple(one for one in known if one.broker != broker)


def _led(state: PartitionState, leader: int, isr: tuple[int, ...]) -> PartitionState:
    led = replace(state, leader=leader, leader_epoch=state.leader_epoch + 1)
    return with_isr(led, isr)
