"""A follower whose leader, or metadata store, cannot be reached: it waits, and says so once."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from lapse.base.config import broker_config, topic_config
from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition
from lapse.broker.limits.quotas import Windows
from lapse.broker.limits.replication_quotas import ReplicationQuotas
from lapse.broker.logs.disk import DiskThreads
from lapse.broker.logs.members import Members
from lapse.broker.logs.partitions import Partitions
from lapse.broker.replicas import fetcher
from lapse.broker.replicas.cleaned import Copy
from lapse.broker.replicas.fetcher import Fetcher, Followed
from lapse.broker.replicas.peers import NotLetIn, Peers
from lapse.client.connection import BrokerConnection
from lapse.client.login import Login
from lapse.log.env import LogEnv
from lapse.metadata.image import Topic
from lapse.metadata.membership import Registration
from lapse.metadata.partition_states import first_state
from lapse.metadata.settings import BrokerSettings
from lapse.metadata.tree import Unreachable
from lapse.testing.clock import ManualClock
from lapse.wire.schema.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from lapse.wire.schema.fetch import FetchPartition, FetchRequest
from tests.support.broker.running import batch_of, connect, produce, until
from tests.support.broker.two_nodes import BRIEF_SESSIONS, two_nodes
from tests.support.client.peers import Peer, running_peers
from tests.support.log.logs import NOW, batch

TOPIC = Topic("t", uuid.uuid4(), 1, {}, topic_config({}), (first_state((2, 1)),))
CLOCK = ManualClock(NOW)
TRIES = 3


class CountedPeers(Peers):
    """Knows no other broker."""

    def __init__(self, asked: Callable[[], None]) -> None:
        super().__init__(Members(1), "PLAINTEXT", CLOCK, Login)
        self._asked = asked

    async def connect(self, broker: int) -> BrokerConnection:
        self._asked()
        return await super().connect(broker)


class Following:
    """A follower of broker 2, which is not there."""

    def __init__(self, path: Path, settings: Mapping[str, str] | None = None) -> None:
        self.config = broker_config({"log.dirs": str(path), "node.id": "1", **(settings or {})})
        self.partitions = Partitions([path], self.config, LogEnv(RealFs(), CLOCK))
        self.partitions.lock()
        self.partitions.create(TOPIC)
        self.tries, self._tried_enough = 0, asyncio.Event()

    def tried(self) -> None:
        self.tries += 1
        if self.tries == TRIES:
            self._tried_enough.set()

    async def run(self, prepare: Callable[[Copy], None], asked: Callable[[], None]) -> float:
        """How long it takes until it has tried some times."""
        disk, [log] = DiskThreads("test"), self.partitions.all()
        quotas = ReplicationQuotas.of(1, Windows(), lambda: BrokerSettings({}))
        fetching = Fetcher(
            2, CountedPeers(asked), self.partitions, disk, disk, self.config, prepare,
            quotas.follower, lambda _: None,
        )  # fmt: skip
        fetching.follow({log.partition: Followed(0, Copy(TOPIC, log, (2,)))})
        begun_s = time.monotonic()
        running = asyncio.create_task(fetching.run())
        async with asyncio.timeout(60):
            await self._tried_enough.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await disk.close()
        return time.monotonic() - begun_s


@pytest.fixture
def following(tmp_path: Path) -> Iterator[Following]:
    made = Following(tmp_path)
    yield made
    made.partitions.close()


async def test_a_partition_that_cannot_be_followed_is_left_out_for_a_while(
    following: Following,
) -> None:
    loop = asyncio.get_running_loop()

    def unreachable(_: Copy) -> None:
        loop.call_soon_threadsafe(following.tried)
        raise Unreachable("the store does not answer")

    seconds = await following.run(unreachable, lambda: None)
    assert seconds >= (TRIES - 1) * fetcher.AGAIN_SECONDS
    assert following.partitions.directories  # no disk has failed


async def test_who_is_not_let_in_does_not_use_up_the_attempts_of_others(
    following: Following,
) -> None:
    """All brokers log in as one user, whose attempts a minute are counted."""

    def refused() -> None:
        following.tried()
        raise NotLetIn("another password")

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(4 * fetcher.AGAIN_SECONDS):
            await following.run(lambda _: None, refused)
    assert following.tries == 1


async def test_a_leader_that_cannot_be_reached_is_said_once(
    following: Following, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        await following.run(lambda _: None, following.tried)
    said = [r.getMessage() for r in caplog.records if r.name == fetcher.__name__]
    assert said == [
        "broker 2 cannot be followed just now: broker 2 is not there, or has no listener PLAINTEXT"
    ]


async def test_a_leader_that_does_not_answer_is_asked_anew_for_what_is_lacking_by_then(
    tmp_path: Path,
) -> None:
    """replica.socket.timeout.ms; by its default it would take half a minute for each."""
    soon = {"replica.socket.timeout.ms": "1", "replica.fetch.wait.max.ms": "0"}
    following, silent, disk = Following(tmp_path, soon), Peer({}), DiskThreads("test")
    [log] = following.partitions.all()
    members = Members(1)
    quotas = ReplicationQuotas.of(1, Windows(), lambda: BrokerSettings({}))

    async def asked(count: int) -> FetchPartition:
        await until(lambda: len(silent.of(FetchRequest)) >= count)
        [topic] = silent.of(FetchRequest)[-1].topics
        [one] = topic.partitions
        return one

    async with running_peers(silent), asyncio.timeout(20):
        at = {"PLAINTEXT": ("127.0.0.1", silent.port)}
        members.brokers = {2: Registration(2, epoch=1, listeners=at)}
        fetching = Fetcher(
            2, Peers(members, "PLAINTEXT", CLOCK, Login), following.partitions, disk, disk,
            following.config, lambda _: None, quotas.follower, lambda _: None,
        )  # fmt: skip
        fetching.follow({log.partition: Followed(0, Copy(TOPIC, log, (2,)))})
        running = asyncio.create_task(fetching.run())
        first, again = await asked(1), await asked(3)
        assert (first.fetch_offset, first.current_leader_epoch) == (0, 0)
        assert again == first
        log.append_raw(batch())
        grown = await asked(len(silent.of(FetchRequest)) + 2)
        assert grown.fetch_offset == log.log_end_offset > 0
        fetching.follow({log.partition: Followed(1, Copy(TOPIC, log, (2,)))})
        elected = await asked(len(silent.of(FetchRequest)) + 2)
        assert elected.current_leader_epoch == 1
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    await disk.close()
    following.partitions.close()


async def test_a_session_that_ends_interrupts_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The connection was cut, and a follower paused half a second, once a session (KIP-368)."""
    caplog.set_level(logging.INFO)
    clock, more = ManualClock(), {**BRIEF_SESSIONS, "replica_fetch_wait_max_ms": "20"}
    async with two_nodes(tmp_path, clock, **more) as (leader, follower):
        ids = [one.services.config.node_id for one in (leader, follower)]
        placed = CreatableReplicaAssignment(partition_index=0, broker_ids=tuple(ids))
        topic = CreatableTopic(
            name="t", num_partitions=-1, replication_factor=-1, assignments=(placed,), configs=()
        )
        logins = leader.services.counters.logins
        async with await connect(leader) as connection, asyncio.timeout(10):
            await connection.request(CreateTopicsRequest(topics=(topic,)), CreateTopicsResponse)
            while (await produce(connection, "t", (0, batch_of(b"v"))))[0].error_code:
                pass  # it does not lead yet
            for number in range(2, 4):
                before = logins["BROKERS"]
                clock.advance(61_000)
                await until(lambda before=before: logins["BROKERS"] > before)
                [answer] = await produce(connection, "t", (0, batch_of(b"v")))
                assert answer.error_code == 0
                copy = follower.services.partitions.get(TopicPartition("t", 0))
                await until(lambda number=number, copy=copy: copy.log_end_offset == number)
        assert leader.services.counters.connections_refused == 0
        assert "cannot be followed" not in caplog.text
