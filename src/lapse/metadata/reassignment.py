"""Moving replicas to other brokers (KIP-455): decisions of the controller, and no more.

A partition that is being reassigned has the replicas it shall have and those it loses, and ends
when all that are new are in sync: then the others go. Until then it may be called off, or sent
elsewhere.

A new replica begins as one that has left the count (`metadata.absence`): its broker may still have
files of it, of an earlier time, with what was deleted since. So it removes them, counts, and
fetches, in that order. Who loses its replica is remembered until its files are gone: so they go
though it was away, and whoever must know where a value may still be is told (`left_at`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from lapse.base.errors import ErrorCode, KafkaError
from lapse.metadata.election import Brokers, led_by
from lapse.metadata.partition_states import Away, PartitionState


@dataclass(frozen=True, slots=True)
class Wish:
    """What somebody asks of one partition.

    Attributes:
        target: which brokers shall have it, the preferred leader first; None: call it off.
        any_factor: whether there may be more or fewer than there were (KIP-860).
    """

    target: tuple[int, ...] | None
    any_factor: bool = True


def reassigned(state: PartitionState, wish: Wish, brokers: Brokers, now_ms: int) -> PartitionState:
    """The state once a reassignment has begun, is another, or is called off.

    Raises NO_REASSIGNMENT_IN_PROGRESS, INVALID_REPLICA_ASSIGNMENT, INVALID_REPLICATION_FACTOR.
    """
    before = tuple(b for b in state.replicas if b not in state.adding)
    if wish.target is None and not state.is_reassigned:
        raise KafkaError(
            ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "the partition is not being reassigned"
        )
    target = before if wish.target is None else wish.target
    _check(target, before, brokers.staying, wish)
    adding = tuple(b for b in target if b not in before)
    removing = tuple(b for b in before if b not in target)
    replicas = (*target, *removing)
    isr = tuple(b for b in replicas if b in state.isr)
    if not isr:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"none of {list(replicas)} is in sync; in sync are {list(state.isr)}",
        )
    away = [one for one in state.away if one.broker in replicas]
    new = [b for b in adding if b not in state.replicas]
    begun = replace(
        state, replicas=replicas, adding=adding, removing=removing,
        away=(*away, *(Away(b, now_ms, counted=False) for b in new)),
        left_at=_left(state, replicas),
    )  # fmt: skip
    begun = led_by(begun, isr, brokers)
    return completed(begun, brokers) or begun


def completed(state: PartitionState, brokers: Brokers) -> PartitionState | None:
    """The state once all that were to come are in sync; None until then.

    Who is to go stays while nobody else could lead.
    """
    target = state.target
    isr = tuple(b for b in target if b in state.isr)
    if not state.is_reassigned or not set(state.adding) <= set(isr):
        return None
    if not any(b in brokers.alive and b not in state.lost for b in isr):
        return None
    ended = replace(
        state, replicas=target, adding=(), removing=(), left_at=_left(state, target),
        away=tuple(one for one in state.away if one.broker in target),
    )  # fmt: skip
    return led_by(ended, isr, brokers)


def left(state: PartitionState, broker: int) -> PartitionState:
    """The state once a broker has removed what it had of the partition."""
    return replace(state, left_at=tuple(b for b in state.left_at if b != broker))


def _left(state: PartitionState, replicas: Collection[int]) -> tuple[int, ...]:
    had = (*state.left_at, *state.replicas)
    return tuple(b for b in dict.fromkeys(had) if b not in replicas)


def _check(target: Sequence[int], before: Sequence[int], able: Collection[int], wish: Wish) -> None:
    """As Kafka's ReplicationControlManager.validateManualPartitionAssignment."""
    wrong = ""
    if not target:
        wrong = "no broker is named"
    elif len(set(target)) < len(target):
        wrong = f"a broker is named twice: {list(target)}"
    elif strangers := [b for b in target if b not in before and b not in able]:
        wrong = f"no such broker, or not there: {', '.join(map(str, strangers))}"
    if wrong:
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, wrong)
    if len(target) != len(before) and not wish.any_factor:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"{len(target)} replicas are asked for, and there are {len(before)}; the request does "
            "not allow another number",
        )
