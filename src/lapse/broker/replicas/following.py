"""Following one leader by two connections: who lags far behind has one of its own.

A fetch looks at all partitions that it is for, on both sides, which takes a while where there are a
thousand; and a partition that is new, or was away, takes hundreds of fetches. So those that are not
in sync and whose answers are long are fetched apart, and the others wait for none of it.

A partition is with one of the two fetchers at a time, and goes over between two requests of the one
that has it: the other would append the same once more. The one that gets it may be waiting for an
answer just then, for up to `replica.fetch.wait.max.ms`. So no replica that is in sync is set apart:
producers wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from lapse.base.ids import TopicPartition
from lapse.broker.replicas.fetcher import Fetcher, Followed, WhenTaken

APART_FROM = 16  # partitions of a leader; with fewer a fetch of all costs no more


class Following:
    """One leader; lives in the event loop.

    Attributes:
        lanes: what is to be run.
    """

    def __init__(self, make: Callable[[WhenTaken], Fetcher], node_id: int, long_bytes: int) -> None:
        """`node_id`: who follows. `long_bytes`: an answer of so many says that there are more."""
        self._node_id, self._long_bytes = node_id, max(long_bytes, 1)
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
        lagging = {
            tp
            for tp, size in sizes.items()
            if size >= self._long_bytes
            and (one := self._followed.get(tp)) is not None
            and self._node_id not in one.copy.state.isr
        }
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
