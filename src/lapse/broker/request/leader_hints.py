"""Who leads instead, told with the error (KIP-951): the client need not ask for metadata first.

What this broker knows; a client takes it where it is newer than what it knows itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from lapse.base.errors import ErrorCode
from lapse.base.ids import TopicPartition
from lapse.broker.access.listeners import Address
from lapse.broker.request.context import Services, Session
from lapse.metadata.partition_states import NO_LEADER

ELSEWHERE = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})


class LeaderHints:
    """Those of one answer."""

    def __init__(self, services: Services, session: Session) -> None:
        self._services, self._session = services, session
        self._leaders: set[int] = set()

    def of(self, partition: TopicPartition, error: int) -> tuple[int, int] | None:
        """The id of the broker that leads a partition, and its epoch; None: nothing to tell."""
        if error not in ELSEWHERE:
            return None
        state = self._services.partitions.state_of(partition)
        if state is None or state.leader in {NO_LEADER, self._services.config.node_id}:
            return None
        self._leaders.add(state.leader)
        return state.leader, state.leader_epoch

    def addresses(self) -> Sequence[tuple[int, Address, str | None]]:
        """Where those brokers are, by the listener that the client came by, and their racks."""
        if not self._leaders:
            return ()
        found = self._services.addresses_for(self._session)
        racks = self._services.topics.members.racks
        known = sorted(self._leaders & found.keys())
        return [(broker, found[broker], racks.get(broker)) for broker in known]
