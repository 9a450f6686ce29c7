"""What a cluster knows of one partition: who has it, who leads it, and whose copy can be trusted.

Kept in the tree, a node each. The controller and the partition's leader change it, each by naming
the version that it goes by: who knows an older one changes nothing. A lone broker keeps none: it
leads all that it has.
"""

from __future__ import annotations

import uuid
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import NamedTuple

NO_LEADER = -1


@dataclass(frozen=True, slots=True)
class Away:
    """A replica that is not in sync, and whose broker is not there, or was not since it was.

    Attributes:
        since_ms: when the controller first saw it so.
        counted: whether the other replicas wait for it with tombstones and markers (L3). One that
            has left the count is emptied before it fetches anything, and counts again from then on.
    """

    broker: int
    since_ms: int
    counted: bool = True


@dataclass(frozen=True, slots=True, order=True)
class LogEnd:
    """How far a log goes: what has the greater one has all that the other has, and was committed.

    Attributes:
        epoch: the leader epoch of its last batch.
        offset: where it ends.
    """

    epoch: int
    offset: int


@dataclass(frozen=True, slots=True)
class LeftWith:
    """A replica, and how far its log went when its broker stopped, or was started again."""

    broker: int
    end: LogEnd


@dataclass(frozen=True, slots=True)
class PartitionState:
    """One partition.

    Attributes:
        replicas: ids of the brokers that shall have it, the preferred leader first.
        isr: those that have all that was acknowledged (in-sync replicas); never empty, in the order
            of `replicas`. Who is not among them is not elected.
        leader: one of `isr`, or -1 while none of them is alive.
        leader_epoch: one more with each election, also of nobody.
        version: how often its node was changed; Kafka's partition epoch.
        away: whose replicas are away, and whose do not count (`metadata.absence`).
        adding: those of `replicas` that come by a reassignment; it ends once all are in sync.
        removing: those of `replicas` that go once it ends.
        left_at: brokers that had a replica, and may still have its files.
        lost: those of `isr` whose log is gone with its disk. Nobody is elected whose log is not
            there, as long as it may come back; and nobody else has all that was acknowledged.
        log_start: where its log starts at least. Kept once it has moved while a replica was away,
            which may lead one day, by an unclean election: log starts never go back (KIP-107).
        left_with: how far the logs of replicas go that may be needed: of brokers that stopped, and
            left one in sync, and of those that may have lost the end of their log. Should the last
            one in sync have lost some of its own, the one that has most is the one to lead.
    """

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    version: int = 0
    away: tuple[Away, ...] = ()
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    left_at: tuple[int, ...] = ()
    lost: tuple[int, ...] = ()
    log_start: int = 0
    left_with: tuple[LeftWith, ...] = ()

    @property
    def is_reassigned(self) -> bool:
        """Whether replicas of it are moving (KIP-455)."""
        return bool(self.adding or self.removing)

    @property
    def target(self) -> tuple[int, ...]:
        """Those that shall have it for good."""
        return tuple(b for b in self.replicas if b not in self.removing)

    @property
    def uncounted(self) -> AbstractSet[int]:
        """Those that nobody waits for; none of them is in sync."""
        return frozenset(one.broker for one in self.away if not one.counted)


class Life(NamedTuple):
    """Of a broker, from one start to the next: the epoch of its registration."""

    broker: int
    epoch: int


@dataclass(frozen=True, slots=True)
class StateChange:
    """Another state for a partition; its `version` is that of the state before.

    Attributes:
        joins: who comes to the in-sync replicas, by what it fetched in this life of its; None where
            nobody does. In its next life it may have lost that.
    """

    topic_id: uuid.UUID
    number: int
    state: PartitionState
    joins: Life | None = None


def with_isr(state: PartitionState, isr: tuple[int, ...]) -> PartitionState:
    """The state with other in-sync replicas: who comes to them is not away, nor left."""
    return replace(
        state,
        isr=isr,
        away=tuple(one for one in state.away if one.broker not in isr),
        lost=tuple(b for b in state.lost if b in isr),
        left_with=tuple(
            one for one in state.left_with if one.broker not in isr or one.broker in state.isr
        ),
    )


def first_state(replicas: tuple[int, ...]) -> PartitionState:
    """Of a new partition, which has no records that anybody could lack."""
    return PartitionState(replicas, replicas, replicas[0], 0)
