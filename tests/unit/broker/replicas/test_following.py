"""Who lags far behind is fetched apart, and by one fetcher at a time."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lapse.base.config import broker_config
from lapse.base.ids import TopicPartition
from lapse.broker.limits.quotas import Windows
from lapse.broker.limits.replication_quotas import ReplicationQuotas
from lapse.broker.logs.disk import DiskThreads
from lapse.broker.logs.members import Members
from lapse.broker.logs.partitions import Partitions
from lapse.broker.replicas.cleaned import Copy
from lapse.broker.replicas.fetcher import Fetcher, Followed, WhenTaken
from lapse.broker.replicas.following import APART_FROM, Following
from lapse.broker.replicas.peers import Peers
from lapse.client.login import Login
from lapse.log.directory import LogDirectory
from lapse.metadata.image import Topic
from lapse.metadata.partition_states import first_state
from lapse.metadata.settings import BrokerSettings
from tests.support.log.logs import TP, config, env

ME, LEADER = 1, 2
LONG = 1000
ALL = [TopicPartition("t", n) for n in range(APART_FROM)]
NOT_IN_SYNC = replace(first_state((LEADER, ME)), isr=(LEADER,))


class Lanes:
    """Two fetchers that do not run, and what each is told."""

    def __init__(self, path: Path, long_bytes: int) -> None:
        settings = broker_config({"log.dirs": str(path), "node.id": str(ME)})
        self._told: list[WhenTaken] = []

        def make(when_taken: WhenTaken) -> Fetcher:
            self._told.append(when_taken)
            peers = Peers(Members(ME), "PLAINTEXT", env().clock, Login)
            quotas = ReplicationQuotas.of(ME, Windows(), lambda: BrokerSettings({}))
            return Fetcher(
                LEADER, peers, Partitions([path], settings, env()), DiskThreads("test"),
                DiskThreads("test"), settings,
                lambda _: None, quotas.follower, lambda _: None, when_taken,
            )  # fmt: skip

        self.both = Following(make, ME, long_bytes)
        self.steady_took, self.apart_took = self._told

    @property
    def steady(self) -> set[TopicPartition]:
        return set(self.both.lanes[0]._followed)

    @property
    def apart(self) -> set[TopicPartition]:
        return set(self.both.lanes[1]._followed)


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Followed]:
    """A replica that is not in sync."""
    directory = LogDirectory.open(tmp_path / "log", env())
    log = directory.create_log(TP, config(), replicated=True)
    topic = Topic("t", uuid.uuid4(), 1, {}, config(), (NOT_IN_SYNC,) * (TP.partition + 1))
    yield Followed(0, Copy(topic, log, (LEADER,)))
    directory.close()


@pytest.fixture
def made(tmp_path: Path, one: Followed) -> Callable[..., Lanes]:
    def made(partitions: list[TopicPartition], long_bytes: int = LONG) -> Lanes:
        lanes = Lanes(tmp_path / "data", long_bytes)
        lanes.both.follow(dict.fromkeys(partitions, one))
        return lanes

    return made


def test_a_long_answer_sets_a_partition_apart_until_one_is_short(
    made: Callable[..., Lanes],
) -> None:
    lanes = made(ALL)
    assert (lanes.steady, lanes.apart) == (set(ALL), set())
    lanes.steady_took(ALL, {ALL[1]: LONG - 1, ALL[2]: LONG, ALL[3]: 2 * LONG})
    assert lanes.apart == {ALL[2], ALL[3]}
    assert lanes.steady == set(ALL) - lanes.apart
    lanes.apart_took([ALL[2]], {ALL[2]: LONG})  # of the other one it was not asked yet
    assert lanes.apart == {ALL[2], ALL[3]}
    lanes.apart_took([ALL[2], ALL[3]], {ALL[2]: LONG})  # in a session, who has nothing is left out
    assert lanes.apart == {ALL[2]}
    lanes.apart_took([ALL[2]], {ALL[2]: 1})
    assert (lanes.steady, lanes.apart) == (set(ALL), set())


def test_a_replica_in_sync_stays_where_no_request_has_to_end_first(
    made: Callable[..., Lanes], one: Followed
) -> None:
    """A producer of large batches waits for it: it would go to and fro, half a second each time."""
    lanes = made(ALL)
    topic = replace(one.copy.topic, states=(first_state((LEADER, ME)),) * (TP.partition + 1))
    in_sync = replace(one, copy=replace(one.copy, topic=topic))
    lanes.both.follow({**dict.fromkeys(ALL, one), ALL[0]: in_sync})
    lanes.steady_took(ALL, {ALL[0]: 9 * LONG, ALL[1]: 9 * LONG})
    assert lanes.apart == {ALL[1]}


@pytest.mark.parametrize("long_bytes", [0, 1])
def test_an_empty_answer_is_never_long(made: Callable[..., Lanes], long_bytes: int) -> None:
    """replica.fetch.max.bytes may be 0."""
    lanes = made(ALL, long_bytes)
    lanes.steady_took(ALL, {ALL[0]: 0, ALL[1]: 1})
    assert lanes.apart == {ALL[1]}
    lanes.apart_took([ALL[1]], {})
    assert lanes.apart == set()


def test_a_leader_of_few_is_followed_by_one(made: Callable[..., Lanes]) -> None:
    few = ALL[1:]
    lanes = made(few)
    lanes.steady_took(few, {few[0]: 9 * LONG})
    assert (lanes.steady, lanes.apart) == (set(few), set())


def test_what_is_followed_no_more_is_with_neither(
    made: Callable[..., Lanes], one: Followed
) -> None:
    lanes = made(ALL)
    lanes.steady_took(ALL, {ALL[0]: LONG, ALL[1]: LONG})
    lanes.both.follow(dict.fromkeys(ALL[1:], one))
    assert (lanes.steady, lanes.apart) == (set(ALL[2:]), {ALL[1]})
    lanes.steady_took(ALL, {ALL[0]: LONG})  # an answer that was under way
    assert lanes.apart == {ALL[1]}
    lanes.both.follow(dict.fromkeys(ALL, one))  # again: it begins with the others
    assert (lanes.steady, lanes.apart) == (set(ALL) - {ALL[1]}, {ALL[1]})
