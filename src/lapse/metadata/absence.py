"""Which replicas tombstones and markers wait for: decisions, and no more (L3).

A replica that is away still has what was deleted meanwhile, so the others keep the tombstones for
it. One that is away for longer than `lapse.replica.absence.max.ms` would have them kept for ever:
the controller has it leave the count, by a write like all of its writes. What such a replica holds
is not to be trusted any more. It cannot join the in-sync replicas, so it never leads; when it is
back it removes all that it has, counts again, and only then fetches (`broker.replicas.returning`).

Who is in sync never leaves: it has the tombstones itself. Nor does who is there and fetches,
however long that takes: it would begin anew again and again. That somebody is back is not noted
before it is in sync: a broker that starts would have each of its partitions written twice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from lapse.metadata.election import Brokers
from lapse.metadata.partition_states import Away, PartitionState, with_isr


@dataclass(frozen=True, slots=True)
class Moment:
    """When it is.

    Attributes:
        long_ago_ms: who is away since then or before is waited for no longer.
    """

    now_ms: int
    long_ago_ms: int


def noted(state: PartitionState, brokers: Brokers, moment: Moment | None) -> PartitionState:
    """The state in which is noted who is away, and who is waited for no longer.

    Nothing is, without a `moment`: no clock can be believed.
    """
    if moment is None:
        return state
    known = {one.broker: one for one in state.away}
    away = []
    for broker in state.replicas:
        if broker in brokers.alive and broker in known:
            away.append(known[broker])
        elif broker not in {*state.isr, *brokers.alive}:
            away.append(_aged(known.get(broker, Away(broker, moment.now_ms)), moment))
    return replace(state, away=tuple(away))


def left_out(state: PartitionState, broker: int, now_ms: int) -> PartitionState:
    """The state in which a replica that is not what it said it was does not count."""
    isr = tuple(one for one in state.isr if one != broker)
    away = tuple(one for one in state.away if one.broker != broker)
    return replace(with_isr(state, isr), away=(*away, Away(broker, now_ms, counted=False)))


def counted_again(state: PartitionState, broker: int) -> PartitionState:
    """The state once a replica has nothing left that the others did not wait for."""
    return replace(
        state,
        away=tuple(one for one in state.away if one.broker != broker),
        left_with=tuple(one for one in state.left_with if one.broker != broker),
    )


def _aged(one: Away, moment: Moment) -> Away:
    since_ms = min(one.since_ms, moment.now_ms)  # noted by a clock that was ahead
    stays = since_ms > moment.long_ago_ms
    return replace(one, since_ms=since_ms, counted=one.counted and stays)
