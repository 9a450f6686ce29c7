"""How far each replica of this broker's compacted logs is cleaned: told to the others, and asked.

Tombstones and markers stay until all replicas have lost what they delete (L3); rounds learn from
`PartitionLog.replicas` how far the others are. A replica that is away holds them for as long as it
is, up to `lapse.replica.absence.max.ms`: `explain` names it. Until the others were asked nothing is
known of them, and all stays.

All but `start` and `close` is called in worker threads, and waits for the metadata store.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from lapse.base.errors import LapseError
from lapse.base.ids import TopicPartition
from lapse.broker.logs.disk import DiskThreads
from lapse.broker.logs.partitions import Partitions
from lapse.log.facts import CleanedTo, ReplicaFacts
from lapse.log.partition_log import PartitionLog
from lapse.metadata.image import Topic
from lapse.metadata.partition_states import PartitionState
from lapse.metadata.tree_store import Said
from lapse.replication.cleaned import said, taken_back

logger = logging.getLogger(__name__)

IN_SYNC = 0  # for `away_since_ms`
TELL_SECONDS = 5.0  # high watermarks, too, are kept so often, as in Kafka


class SaidStore(Protocol):
    """Where replicas tell each other: `metadata.tree_store`."""

    def said(self, wanted: Sequence[Said]) -> Sequence[tuple[CleanedTo, ...]]: ...

    def say(self, said: Mapping[Said, tuple[CleanedTo, ...]]) -> None: ...

    def states(self, wanted: Sequence[tuple[uuid.UUID, int]]) -> Sequence[PartitionState | None]:
        """States of partitions as they are now. Raises Unreachable."""


@dataclass(frozen=True, slots=True, eq=False)
class Copy:
    """A replica of this broker's; two are the same where nothing of this partition differs.

    Else each of a thousand would be compared by the states of the topic's thousand partitions.

    Attributes:
        others: the brokers whose replicas it waits for.
        elsewhere: other brokers that may have files of the partition: their replicas have left the
            count, or have moved away.
    """

    topic: Topic
    log: PartitionLog
    others: tuple[int, ...]
    elsewhere: tuple[int, ...] = ()

    @property
    def state(self) -> PartitionState:
        """Of its partition, as the image has it."""
        return self.topic.states[self.log.partition.partition]

    def _key(self) -> tuple[object, ...]:
        return self.topic.topic_id, self.state, self.others, self.elsewhere

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Copy):
            return NotImplemented
        return self.log is other.log and self._key() == other._key()

    def __hash__(self) -> int:
        return hash((id(self.log), self.topic.topic_id))


class Cleaned:
    """The word of this broker, and the others'."""

    def __init__(
        self,
        partitions: Partitions,
        disk: DiskThreads,
        asking: DiskThreads,
        store: SaidStore | None,
    ) -> None:
        """`asking`: where it waits for the store."""
        self._partitions, self._disk, self._store = partitions, disk, store
        self._asking = asking
        self._copies: Mapping[TopicPartition, Copy] = {}
        self._said: dict[Said, tuple[CleanedTo, ...]] = {}
        self._is_older: dict[Said, bool] = {}  # of those that were looked at in this life
        self._saying = threading.Lock()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Tell and ask from now on."""
        self._task = asyncio.get_running_loop().create_task(self._tell_for_ever())

    async def close(self) -> None:
        """Stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def set_copies(self, copies: Mapping[TopicPartition, Copy]) -> None:
        """Those that there are from now on; of their others that are new nothing is known yet.

        Called before anybody who was not waited for so far can fetch.
        """
        for partition, copy in copies.items():
            known = self._copies.get(partition)
            if known is None or known.log is not copy.log or set(copy.others) - set(known.others):
                self._await(copy, copy.others)
            else:  # some may be waited for no longer
                kept = tuple(one for one in copy.log.replicas if one.node_id in copy.others)
                self._keep(copy, kept)
        self._copies = copies

    def _await(self, copy: Copy, others: Sequence[int]) -> None:
        """Go by nothing that was known; offline tools are to wait for the new ones, too."""
        unknown = tuple(ReplicaFacts(other, (), 0, counted=False) for other in others)
        known = {one.node_id for one in copy.log.replicas}
        if known != set(others) or copy.log.elsewhere != copy.elsewhere:
            self._keep(copy, unknown)
        copy.log.replicas = unknown

    def _keep(self, copy: Copy, found: tuple[ReplicaFacts, ...]) -> None:
        try:
            copy.log.learn_of_others(found, copy.elsewhere)
        except LapseError as e:
            self._partitions.report(copy.log.partition, e)

    async def _tell_for_ever(self) -> None:
        while True:
            try:
                await self._disk.run(self._partitions.checkpoint_high_watermarks)
                await self._asking.run(self.tell)
            except LapseError as e:
                logger.info("replicas cannot tell how far they are cleaned just now: %s", e)
            except Exception:  # or tombstones would wait for ever
                logger.exception("replicas could not tell how far they are cleaned")
            await asyncio.sleep(TELL_SECONDS)

    def tell(self) -> None:
        """Say what is new here, and learn what the others have said. Raises Unreachable."""
        copies = [
            copy
            for copy in self._copies.values()
            if copy.log.config.compacts and len(copy.state.replicas) > 1
        ]
        now_ms = self._partitions.noting_ms()
        with self._saying:
            self._learn_own(copies)
            new = {}
            for copy in copies:
                own = self._own(copy)
                if copy.state.leader == self._partitions.node_id:
                    self._is_older[own] = False  # the others go by this log now
                elif self._is_older[own]:
                    continue
                cleaned_to = copy.log.cleaner_checkpoint or 0
                retention_ms = copy.log.config.delete_retention_ms
                words = said(self._said[own], cleaned_to, now_ms, retention_ms)
                if words != self._said[own]:
                    new[own] = words
            self._say(new)
        wanted = [
            Said(copy.topic.topic_id, copy.log.partition.partition, other)
            for copy in copies
            for other in copy.others
        ]
        words_of = dict(zip(wanted, self._asked(wanted), strict=True))
        # Read after the words. Who fetches what another one cleans after that counts before: so
        # whoever goes by a word knows of all that had to be waited for when it was said.
        for copy, state in zip(copies, self._states(copies), strict=True):
            number = copy.log.partition.partition
            counted = () if state is None else _others(state, self._partitions.node_id)
            if not set(counted) <= set(copy.others):  # the image is older; it comes soon
                self._await(copy, counted)
                continue
            away_ms = {one.broker: one.since_ms for one in copy.state.away}
            found = tuple(
                ReplicaFacts(
                    other,
                    words_of[Said(copy.topic.topic_id, number, other)],
                    away_ms.get(other, IN_SYNC),
                )
                for other in copy.others
            )
            copy.log.learn_of_others(found, copy.elsewhere)

    def is_older_than_said(self, copy: Copy) -> bool:
        """Whether a replica was cleaned less far, when this broker found it, than it had said.

        Then it is of an earlier time. (Or the broker died after it was cut back, and before that
        was said.) So it is until `take_back`. Raises Unreachable.
        """
        with self._saying:
            self._learn_own([copy])
            return self._is_older[self._own(copy)]

    def take_back(self, copy: Copy) -> None:
        """Say no more than what is true; before a follower fetches. Raises Unreachable."""
        own = self._own(copy)
        with self._saying:
            self._learn_own([copy])
            self._is_older[own] = False
            left = taken_back(self._said[own], copy.log.cleaner_checkpoint or 0)
            if left != self._said[own]:
                self._say({own: left})

    def _own(self, copy: Copy) -> Said:
        return Said(copy.topic.topic_id, copy.log.partition.partition, self._partitions.node_id)

    def _learn_own(self, copies: Sequence[Copy]) -> None:
        """What this broker has said in an earlier life."""
        unknown = {own: copy for copy in copies if (own := self._own(copy)) not in self._said}
        words = dict(zip(unknown, self._asked(list(unknown)), strict=True))
        self._said |= words
        for own, copy in unknown.items():
            cleaned_to = copy.log.cleaner_checkpoint or 0
            said_more = any(one.offset > cleaned_to for one in words[own])
            self._is_older.setdefault(own, said_more)

    def _states(self, copies: Sequence[Copy]) -> Sequence[PartitionState | None]:
        assert self._store is not None or not copies, copies
        wanted = [(copy.topic.topic_id, copy.log.partition.partition) for copy in copies]
        return self._store.states(wanted) if self._store is not None else ()

    def _asked(self, wanted: Sequence[Said]) -> Sequence[tuple[CleanedTo, ...]]:
        assert self._store is not None, wanted
        return self._store.said(wanted)

    def _say(self, new: Mapping[Said, tuple[CleanedTo, ...]]) -> None:
        if new:
            assert self._store is not None, new
            for own in new:  # what is in the store is not known if this fails
                del self._said[own]
            self._store.say(new)
            self._said |= new


def _others(state: PartitionState, me: int) -> tuple[int, ...]:
    """Whose replicas this broker's waits for: not one that has left the count."""
    return tuple(b for b in state.replicas if b != me and b not in state.uncounted)


def copy_of(topic: Topic, state: PartitionState, log: PartitionLog, me: int) -> Copy:
    """The replica of broker `me`, by a state of its partition."""
    elsewhere = sorted({*state.uncounted, *state.left_at} - {me})
    return Copy(topic, log, _others(state, me), tuple(elsewhere))
