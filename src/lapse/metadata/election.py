"""Who leads a partition when brokers come and go: decisions of the controller, and no more.

A leader is one of the in-sync replicas, which have all that was acknowledged; while none of those
is alive nobody leads, and the partition waits for one of them. (Kafka elects another if
`unclean.leader.election.enable` says so, and loses records.)
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from lapse.metadata.partition_states import NO_LEADER, PartitionState, with_isr


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
    staying = tuple(b for b in state.isr if b in brokers.staying)
    isr = staying or tuple(b for b in state.isr if b in brokers.alive)
    if not isr:
        return None if state.leader == NO_LEADER else _led(state, NO_LEADER, state.isr)
    if state.leader in isr and isr == state.isr:
        return None
    return led_by(state, isr, brokers)


def led_by(state: PartitionState, isr: tuple[int, ...], brokers: Brokers) -> PartitionState:
    """The state with these in-sync replicas; another of them leads where the leader is none."""
    if state.leader in isr:
        return with_isr(state, isr)
    able = [b for b in state.replicas if b in isr and b in brokers.alive]
    staying = [b for b in able if b in brokers.staying]
    return _led(state, next(iter(staying or able), NO_LEADER), isr)


def preferred(state: PartitionState, brokers: Brokers) -> PartitionState | None:
    """The state in which the preferred leader leads; None where it does, or cannot."""
    first = state.replicas[0]
    if state.leader == first or first not in state.isr or first not in brokers.staying:
        return None
    return _led(state, first, state.isr)


def resigned(state: PartitionState, broker: int, *, lost_nothing: bool) -> PartitionState | None:
    """The state once a broker has started again; None where that changes nothing."""
    if len(state.replicas) == 1:
        return None
    others = tuple(b for b in state.isr if b != broker)
    isr = others if others and not lost_nothing else state.isr
    if state.leader == broker:
        return _led(state, NO_LEADER, isr)
    return None if isr == state.isr else with_isr(state, isr)


def _led(state: PartitionState, leader: int, isr: tuple[int, ...]) -> PartitionState:
    led = replace(state, leader=leader, leader_epoch=state.leader_epoch + 1)
    return with_isr(led, isr)
