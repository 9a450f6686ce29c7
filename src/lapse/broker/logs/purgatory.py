"""Requests that wait for something to happen to a partition: Fetch for bytes, others for replicas.

What Kafka calls DelayedFetch, DelayedProduce and DelayedDeleteRecords.

Lives in the event loop; nothing here is shared with threads. A `Watch` counts from the moment it
is made or reset, so what is appended between a look at the log and the wait is not missed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from enum import Enum
from types import TracebackType
from typing import Self

from lapse.base.ids import TopicPartition

NEVER_SO_MANY_BYTES = 1 << 62  # for `Watch.wait`: only a change ends it


class Operation(Enum):
    """What waits, as Kafka's metrics call it."""

    FETCH = "Fetch"
    PRODUCE = "Produce"
    DELETE_RECORDS = "DeleteRecords"


class Watch:
    """One request's wait. Use as a context manager; it is registered while inside.

    Attributes:
        is_given_up: nobody wants to know any more.
        for_commits: what is committed matters to it; a follower has it all before.
    """

    def __init__(
        self,
        purgatory: Purgatory,
        partitions: Iterable[TopicPartition],
        operation: Operation,
        *,
        for_commits: bool = True,
    ) -> None:
        self._purgatory, self.operation, self.for_commits = purgatory, operation, for_commits
        self._partitions = frozenset(partitions)
        self._bytes_new = 0
        self._bytes_wanted = 0
        self._woken = False
        self._future: asyncio.Future[None] | None = None
        self.is_given_up = False

    def __enter__(self) -> Self:
        self._purgatory.waiting_by_operation[self.operation] += 1
        for partition in self._partitions:
            self._purgatory.watches.setdefault(partition, {})[self] = None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._purgatory.waiting_by_operation[self.operation] -= 1
        for partition in self._partitions:
            watches = self._purgatory.watches[partition]
            watches.pop(self, None)
            if not watches:
                del self._purgatory.watches[partition]

    def reset(self) -> None:
        """Count from now on."""
        self._bytes_new = 0
        self._woken = False

    async def wait(self, bytes_wanted: int, seconds: float) -> None:
        """Return when that many bytes came since `reset`, when woken, or after `seconds`."""
        self._bytes_wanted = bytes_wanted
        if self._is_done():
            return
        loop = asyncio.get_running_loop()
        self._future = loop.create_future()
        timer = loop.call_later(seconds, self.wake)
        try:
            await self._future
        finally:
            timer.cancel()
            self._future = None

    def add(self, size_bytes: int) -> None:
        """So many bytes came."""
        self._bytes_new += size_bytes
        if self._is_done():
            self._finish()

    def give_up(self) -> None:
        """End the wait: whom it is for is gone."""
        self.is_given_up = True
        self.wake()

    def wake(self) -> None:
        """End the wait: there is another reason to look."""
        self._woken = True
        self._finish()

    def _is_done(self) -> bool:
        return self._woken or self._bytes_new >= self._bytes_wanted

    def _finish(self) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(None)


class Purgatory:
    """All watches, by partition.

    Attributes:
        watches: in the order in which they came, which is that of being woken.
        waiting_by_operation: how many there are, by what waits; any thread may read it.
    """

    def __init__(self) -> None:
        self.watches: dict[TopicPartition, dict[Watch, None]] = {}
        self.waiting_by_operation = dict.fromkeys(Operation, 0)

    def watch(
        self,
        partitions: Iterable[TopicPartition],
        operation: Operation = Operation.FETCH,
        *,
        for_commits: bool = True,
    ) -> Watch:
        """A watch over these partitions."""
        return Watch(self, partitions, operation, for_commits=for_commits)

    def appended(self, partition: TopicPartition, size_bytes: int) -> None:
        """Bytes became visible to readers of a partition."""
        for watch in tuple(self.watches.get(partition, ())):
            watch.add(size_bytes)

    def committed(self, partition: TopicPartition) -> None:
        """More of a partition is on all in-sync replicas."""
        for watch in tuple(self.watches.get(partition, ())):
            if watch.for_commits:
                watch.wake()

    def changed(self, partition: TopicPartition) -> None:
        """Something else happened to a partition, its deletion for one."""
        for watch in tuple(self.watches.get(partition, ())):
            watch.wake()

    @property
    def waiting(self) -> int:
        """Requests under watch."""
        return sum(self.waiting_by_operation.values())
