"""Following one leader by two connections: who lags far behind has one of its own.

A fetch looks at all partitions that it is for, on both sides, which takes a while where there are a
thousand; and a partition that is new, or was away, takes hundreds of fetches. So those whose
answers are long are fetched apart, and the others wait for none of it.

A partition is with one of the two fetchers at a time, and goes over between two requests of the one
that has it: the other would append the same once more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from lapse.base.ids import TopicPartition
from lapse.broker.replicas.fetcher import Followed, WhenTaken

APART_FROM = 16  # partitions of a leader; with fewer a fetch of all costs no more


class Lane(Protocol):
    """One connection: `fetcher`."""

    def follow(self, followed: Mapping[TopicPartition, Followed]) -> None: ...

    async def run(self) -> None: ...


class Following:
    """One leader; lives in the event loop.

    Attributes:
        lanes: what is to be run.
    """

    def __init__(self, make: Callable[[WhenTaken], Lane], long_bytes: int) -> None:
        """`long_bytes`: from which length on an answer says that there is more to come."""
        self._long_bytes = long_bytes
        self._followed: Mapping[TopicPartition, Followed] = {}
        self._behind: set[TopicPartition] = set()
        self._steady, self._apart = make(self._taken), make(self._taken_apart)
        self.lanes = (self._steady, self._apart)

    def follow(self, followed: Mapping[TopicPartition, Followed]) -> None:
        """Follow these from now on, and no others."""
        self._followed = followed
        self._behind &= followed.keys()
        self._part()

    def _part(self) -> None:
        behind = self._behind
        self._steady.follow({tp: one for tp, one in self._followed.items() if tp not in behind})
        self._apart.follow({tp: one for tp, one in self._followed.items() if tp in behind})

    def _taken(self, _: Collection[TopicPartition], sizes: Mapping[TopicPartition, int]) -> None:
        if len(self._followed) < APART_FROM:
            return
        lagging = {tp for tp, size in sizes.items() if size >= self._long_bytes}
        lagging &= self._followed.keys()
        if lagging:
            self._behind |= lagging
            self._part()

    def _taken_apart(
        self, fetched: Collection[TopicPartition], sizes: Mapping[TopicPartition, int]
    ) -> None:
        """One that has nothing more to say for now has caught up."""
        short = {tp for tp in fetched if sizes.get(tp, 0) < self._long_bytes}
        caught_up = short & self._behind
        if caught_up:
            self._behind -= caught_up
            self._part()
