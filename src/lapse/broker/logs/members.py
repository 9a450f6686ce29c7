"""Who is in the cluster, as this broker knows it: the other brokers, and which one is controller.

A lone broker has no others, and is its own controller. In a cluster `broker.cluster` keeps this
up to date; all else reads it, in the event loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lapse.base.errors import ErrorCode, KafkaError
from lapse.metadata.election import Brokers
from lapse.metadata.membership import Registration


class Members:
    """The brokers.

    Attributes:
        node_id: of this one.
        brokers: those that are registered, by id; empty where this one is alone.
        epoch: of this broker's registration.
        controller_id: who changes topics, settings and users; None while nobody does.
        reads: how often this broker has begun to read what is stored of topics.
    """

    def __init__(self, node_id: int, rack: str | None = None) -> None:
        """`rack`: of this broker."""
        self.node_id, self._rack = node_id, rack
        self.brokers: Mapping[int, Registration] = {}
        self.controller_id: int | None = node_id
        self.epoch = self.reads = 0
        self.is_alone = True

    @property
    def alive(self) -> Brokers:
        """Those that may lead, and be in sync: not who is starting."""
        return brokers_of(self.brokers)

    @property
    def able(self) -> Sequence[int]:
        """Ids of those that may get new partitions."""
        return [self.node_id] if self.is_alone else sorted(self.alive.staying)

    @property
    def racks(self) -> Mapping[int, str]:
        """Where brokers stand that say it."""
        found = {broker: one.rack for broker, one in self.brokers.items()}
        found.setdefault(self.node_id, self._rack)
        return {broker: rack for broker, rack in found.items() if rack is not None}

    def require(self, replication_factor: int, subject: str) -> None:
        """Raise INVALID_REPLICATION_FACTOR where there are too few brokers."""
        count = len(self.able)
        if not 1 <= replication_factor <= count:
            brokers = "there is one broker, so it must be 1" if count == 1 else f"{count} brokers"
            raise KafkaError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"{subject}: replication factor {replication_factor}; {brokers}",
            )


def brokers_of(registered: Mapping[int, Registration]) -> Brokers:
    """Those of the registered brokers that can be reached."""
    there = {b: one for b, one in registered.items() if one.listeners}
    return Brokers(frozenset(there), frozenset(b for b, one in there.items() if one.leaving))
