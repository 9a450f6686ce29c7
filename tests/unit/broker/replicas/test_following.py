"""Who lags far behind is fetched apart, and by one fetcher at a time."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path

import pytest

from lapse.base.ids import TopicPartition
from lapse.broker.replicas.cleaned import Copy
from lapse.broker.replicas.fetcher import Followed, WhenTaken
from lapse.broker.replicas.following import APART_FROM, Following
from lapse.log.directory import LogDirectory
from lapse.metadata.image import Topic
from lapse.metadata.partition_states import first_state
from tests.support.log.logs import TP, config, env

LONG = 1000
ALL = [TopicPartition("t", n) for n in range(APART_FROM)]


class Recorded:
    """A lane that notes what it is told, as no other connection is there."""

    def __init__(self, when_taken: WhenTaken) -> None:
        self.when_taken = when_taken
        self.followed: set[TopicPartition] = set()

    def follow(self, followed: Mapping[TopicPartition, Followed]) -> None:
        self.followed = set(followed)

    async def run(self) -> None:
        """Nothing."""


@pytest.fixture
def one(tmp_path: Path) -> Followed:
    directory = LogDirectory.open(tmp_path, env())
    log = directory.create_log(TP, config(), replicated=True)
    topic = Topic("t", uuid.uuid4(), 1, {}, config(), (first_state((2, 1)),))
    return Followed(0, Copy(topic, log, (2,)))


def made(partitions: list[TopicPartition], one: Followed) -> tuple[Following, Recorded, Recorded]:
    lanes: list[Recorded] = []

    def make(when_taken: WhenTaken) -> Recorded:
        lanes.append(Recorded(when_taken))
        return lanes[-1]

    both = Following(make, LONG)
    both.follow(dict.fromkeys(partitions, one))
    return both, lanes[0], lanes[1]


def test_a_long_answer_sets_a_partition_apart_until_one_is_short(one: Followed) -> None:
    _, steady, apart = made(ALL, one)
    assert (steady.followed, apart.followed) == (set(ALL), set())
    steady.when_taken(ALL, {ALL[1]: LONG - 1, ALL[2]: LONG, ALL[3]: 2 * LONG})
    assert apart.followed == {ALL[2], ALL[3]}
    assert steady.followed == set(ALL) - apart.followed
    apart.when_taken([ALL[2]], {ALL[2]: LONG})  # of the other one it was not asked yet
    assert apart.followed == {ALL[2], ALL[3]}
    apart.when_taken([ALL[2], ALL[3]], {ALL[2]: LONG})  # in a session, who has nothing says nothing
    assert apart.followed == {ALL[2]}
    apart.when_taken([ALL[2]], {ALL[2]: 1})
    assert (steady.followed, apart.followed) == (set(ALL), set())


def test_a_leader_of_few_is_followed_by_one(one: Followed) -> None:
    few = ALL[1:]
    _, steady, apart = made(few, one)
    steady.when_taken(few, {few[0]: 9 * LONG})
    assert (steady.followed, apart.followed) == (set(few), set())


def test_what_is_followed_no_more_is_with_neither(one: Followed) -> None:
    both, steady, apart = made(ALL, one)
    steady.when_taken(ALL, {ALL[0]: LONG, ALL[1]: LONG})
    both.follow(dict.fromkeys(ALL[1:], one))
    assert (steady.followed, apart.followed) == (set(ALL[2:]), {ALL[1]})
    steady.when_taken(ALL, {ALL[0]: LONG})  # an answer that was under way
    assert apart.followed == {ALL[1]}
    both.follow(dict.fromkeys(ALL, one))  # again: it begins with the others
    assert (steady.followed, apart.followed) == (set(ALL) - {ALL[1]}, {ALL[1]})
