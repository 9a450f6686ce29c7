"""A replica before it follows: it says nothing of itself that is not true, and brings nothing back.

Some replicas may have records that the others may have deleted for good, tombstones and all (L3):
those that left the count while they were away, those that come by a reassignment, whose broker may
have had one before, and those on a disk that is older than what this broker said of it, as one that
was put back from a copy. All remove what they have, and fetch it anew. Until that is done they do
not count, and so cannot be in sync.
"""

from __future__ import annotations

import logging
from typing import Protocol

from lapse.base.errors import ErrorCode, KafkaError
from lapse.broker.logs.partitions import Partitions
from lapse.broker.replicas.cleaned import Cleaned, Copy, SaidStore
from lapse.metadata.absence import counted_again, left_out
from lapse.metadata.partition_states import PartitionState, StateChange
from lapse.metadata.tree import Conflict

logger = logging.getLogger(__name__)


class ReplicaStore(SaidStore, Protocol):
    """What replicas of different brokers share, durably: `metadata.tree_store`."""

    def set_own_state(self, change: StateChange) -> None:
        """Store a partition's state. Raises Conflict and Unreachable."""


class Returning:
    """The replicas of a broker; called in worker threads, by one at a time for a replica."""

    def __init__(
        self, partitions: Partitions, cleaned: Cleaned, store: ReplicaStore | None
    ) -> None:
        self._partitions, self._cleaned, self._store = partitions, cleaned, store
        self._me = partitions.node_id

    def prepare(self, copy: Copy) -> None:
        """Before a follower fetches. Raises Unreachable, and KafkaError where it cannot be now."""
        is_old = self._cleaned.is_older_than_said(copy)
        if is_old or self._me in copy.state.uncounted:
            self._begin_anew(copy, is_old=is_old)
        self._cleaned.take_back(copy)

    def _begin_anew(self, copy: Copy, *, is_old: bool) -> None:
        """By what is stored: the image may be of before this replica counted again."""
        state = self._stored(copy)
        if is_old and self._me not in state.uncounted:
            if set(state.isr) == {self._me}:
                raise _not_now(copy, "no other replica is in sync")
            logger.error("%s: the disk is older than what this broker said of it", _name(copy))
            self._set(copy, left_out(state, self._me, self._partitions.noting_ms()))
            state = self._stored(copy)
        if self._me in state.uncounted:
            self._empty(copy, state.leader_epoch)
            self._cleaned.take_back(copy)
            self._set(copy, counted_again(state, self._me))

    def _empty(self, copy: Copy, leader_epoch: int) -> None:
        log = copy.log
        if log.log_start_offset < log.log_end_offset:  # a new replica has nothing
            logger.warning(
                "%s: is emptied and fetched anew: the others may have removed tombstones of what "
                "is here", _name(copy),
            )  # fmt: skip
            directory = self._partitions.directory_of(log.partition)
            directory.restart_log(log, log.log_start_offset, leader_epoch)

    def _stored(self, copy: Copy) -> PartitionState:
        assert self._store is not None, copy
        wanted = (copy.topic.topic_id, copy.log.partition.partition)
        [state] = self._store.states([wanted])
        if state is None:
            raise _not_now(copy, "its topic is gone")
        return state

    def _set(self, copy: Copy, state: PartitionState) -> None:
        assert self._store is not None, copy
        change = StateChange(copy.topic.topic_id, copy.log.partition.partition, state)
        try:
            self._store.set_own_state(change)
        except Conflict as e:
            raise _not_now(copy, f"its state has changed meanwhile: {e}") from e


def _name(copy: Copy) -> str:
    return str(copy.log.partition)


def _not_now(copy: Copy, why: str) -> KafkaError:
    return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{_name(copy)}: {why}")
