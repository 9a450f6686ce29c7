"""A follower's fetch session (KIP-227): its leader is told once what is fetched, then what changes.

Pure; `fetcher` sends what this says, and tells it what came of that.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import NamedTuple

from lapse.wire.schema.fetch import FetchPartition, FetchTopic, ForgottenTopic

NO_SESSION, FIRST_EPOCH = 0, 0
EPOCH_MAX = 0x7FFFFFFF

Key = tuple[uuid.UUID, int]


class Ask(NamedTuple):
    """The fields of a request that are of the session."""

    session_id: int
    session_epoch: int
    topics: tuple[FetchTopic, ...]
    forgotten_topics_data: tuple[ForgottenTopic, ...]


class FollowerSession:
    """One with one leader, over one connection after the other."""

    def __init__(self) -> None:
        self._id, self._epoch = NO_SESSION, FIRST_EPOCH
        self._told: dict[Key, FetchPartition] = {}

    def ask(self, wanted: Mapping[Key, FetchPartition]) -> Ask:
        """What to send, to fetch exactly that."""
        if self._id == NO_SESSION:
            self._told = dict(wanted)
            return Ask(NO_SESSION, FIRST_EPOCH, _by_topic(wanted), ())
        told = self._told
        new = {
            key: one
            for key, one in wanted.items()
            if (known := told.get(key)) is not one and known != one
        }
        gone: dict[uuid.UUID, list[int]] = {}
        for topic_id, number in self._told.keys() - wanted.keys():
            gone.setdefault(topic_id, []).append(number)
        self._told = dict(wanted)
        forgotten = tuple(
            ForgottenTopic(topic_id=topic_id, partitions=tuple(sorted(numbers)))
            for topic_id, numbers in gone.items()
        )
        return Ask(self._id, self._epoch, _by_topic(new), forgotten)

    def answered(self, session_id: int) -> None:
        """The leader has answered; with no session where it keeps none."""
        if session_id == NO_SESSION:
            self.begin_anew()
        else:
            self._id = session_id
            self._epoch = 1 if self._epoch == EPOCH_MAX else self._epoch + 1

    def begin_anew(self) -> None:
        """Nobody knows what the leader has heard: tell it everything the next time."""
        self._id, self._epoch = NO_SESSION, FIRST_EPOCH
        self._told = {}


def _by_topic(wanted: Mapping[Key, FetchPartition]) -> tuple[FetchTopic, ...]:
    found: dict[uuid.UUID, list[FetchPartition]] = {}
    for (topic_id, _), one in wanted.items():
        found.setdefault(topic_id, []).append(one)
    return tuple(
        FetchTopic(topic_id=topic_id, partitions=tuple(partitions))
        for topic_id, partitions in found.items()
    )
