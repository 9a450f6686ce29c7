"""Partitions that begin to be followed wait for the metadata store, and the others not for them."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lapse.base.config import broker_config, topic_config
from lapse.base.errors import ErrorCode
from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition
from lapse.broker.limits.quotas import Windows
from lapse.broker.limits.replication_quotas import ReplicationQuotas
from lapse.broker.logs.disk import DiskThreads
from lapse.broker.logs.members import Members
from lapse.broker.logs.partitions import Partitions
from lapse.broker.replicas.cleaned import Copy
from lapse.broker.replicas.fetcher import Fetcher, Followed
from lapse.broker.replicas.peers import Peers
from lapse.client.connection import BrokerConnection
from lapse.client.login import Login
from lapse.log.env import LogEnv
from lapse.metadata.image import Topic
from lapse.metadata.partition_states import first_state
from lapse.metadata.settings import BrokerSettings
from lapse.testing.clock import ManualClock
from lapse.wire.schema.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from tests.support.broker.running import until
from tests.support.log.logs import NOW, append, batch

STEADY, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)
TOPIC = Topic("t", uuid.uuid4(), 2, {}, topic_config({}), (first_state((2, 1)),) * 2)
CLOCK = ManualClock(NOW)
SOME = 3
NOTHING = PartitionData(partition_index=0, error_code=0, high_watermark=0, records=b"")


class Leader:
    """Has nothing for the first partition; `of_other` is its answer for the other one.

    It keeps no session: each request names all that it is for.
    """

    is_lost = False

    def __init__(self) -> None:
        self.asked = {STEADY: 0, OTHER: 0}
        self.of_other = NOTHING

    async def request(self, request: FetchRequest, *_: object, **_more: object) -> FetchResponse:
        await asyncio.sleep(0)  # others have their turn
        [topic] = request.topics
        answers = []
        for one in topic.partitions:
            self.asked[TopicPartition("t", one.partition)] += 1
            answer = self.of_other if one.partition == OTHER.partition else NOTHING
            answers.append(replace(answer, partition_index=one.partition))
        found = FetchableTopicResponse(topic_id=TOPIC.topic_id, partitions=tuple(answers))
        return FetchResponse(responses=(found,))

    def close(self) -> None:
        pass


class OnePeer(Peers):
    def __init__(self, leader: Any) -> None:
        super().__init__(Members(1), "PLAINTEXT", CLOCK, Login)
        self._leader: BrokerConnection = leader

    async def connect(self, _: int) -> BrokerConnection:
        return self._leader


class Following:
    """A follower of that leader, and a store that is silent once `answers` is cleared."""

    def __init__(self, path: Path) -> None:
        config = broker_config({"log.dirs": str(path), "node.id": "1"})
        self.partitions = Partitions([path], config, LogEnv(RealFs(), CLOCK))
        self.partitions.lock()
        self.partitions.create(TOPIC)
        self.leader, self.disk = Leader(), DiskThreads("test")
        self.asking = DiskThreads("asking", 1)
        self.answers = threading.Event()
        self.answers.set()
        self.begun: list[TopicPartition] = []
        quotas = ReplicationQuotas.of(1, Windows(), lambda: BrokerSettings({}))
        self.fetcher = Fetcher(
            2, OnePeer(self.leader), self.partitions, self.disk, self.asking, config,
            self.prepare, quotas.follower, lambda _: None,
        )  # fmt: skip

    def prepare(self, copy: Copy) -> None:
        self.begun.append(copy.log.partition)
        self.answers.wait()

    def follow(self, **epochs: int) -> None:
        logs = {log.partition: log for log in self.partitions.all()}
        self.fetcher.follow({
            tp: Followed(epochs.get(name, 0), Copy(TOPIC, logs[tp], (2,)))
            for name, tp in (("steady", STEADY), ("other", OTHER))
        })  # fmt: skip

    async def is_asked_for(self, partition: TopicPartition) -> None:
        before = self.leader.asked[partition]
        await until(lambda: self.leader.asked[partition] >= before + SOME)


@pytest.fixture
async def following(tmp_path: Path) -> AsyncIterator[Following]:
    one = Following(tmp_path)
    one.follow()
    running = asyncio.create_task(one.fetcher.run())
    await one.is_asked_for(OTHER)
    yield one
    one.answers.set()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    one.partitions.close()
    await one.disk.close()
    await one.asking.close()


async def test_one_that_is_left_out_for_a_while_need_not_begin_again(following: Following) -> None:
    """Its leader has an error of it; each time that it was tried again, all waited for the store.

    Something else waits there already: the word of this broker's replicas.
    """
    following.answers.clear()
    waiting = asyncio.create_task(following.asking.run(following.answers.wait))
    error = int(ErrorCode.KAFKA_STORAGE_ERROR)
    following.leader.of_other = replace(NOTHING, error_code=error)
    await following.is_asked_for(OTHER)
    await following.is_asked_for(STEADY)
    assert following.begun == [STEADY, OTHER]
    following.answers.set()
    await waiting


CUT = replace(NOTHING, diverging_epoch=EpochEndOffset(epoch=0, end_offset=0))
UNFIT = replace(NOTHING, records=batch()[:-1] + b"?")


@pytest.mark.parametrize("answer", [CUT, UNFIT])
async def test_one_that_was_cut_begins_again_before_it_is_fetched(
    following: Following, answer: PartitionData
) -> None:
    """L3: it may have said more of itself than is true now. Also where a cut may have failed."""
    append(following.partitions.get(OTHER), batch())
    following.answers.clear()
    following.leader.of_other = answer
    await until(lambda: following.begun == [STEADY, OTHER, OTHER])
    asked = following.leader.asked[OTHER]
    following.leader.of_other = NOTHING
    await following.is_asked_for(STEADY)
    assert following.leader.asked[OTHER] == asked
    following.answers.set()
    await following.is_asked_for(OTHER)
    assert following.begun == [STEADY, OTHER, OTHER]


async def test_one_of_a_later_epoch_begins_and_the_others_go_on(following: Following) -> None:
    following.answers.clear()
    following.follow(other=1)
    await until(lambda: following.begun == [STEADY, OTHER, OTHER])
    asked = following.leader.asked[OTHER]
    await following.is_asked_for(STEADY)
    following.follow(other=2)  # what began for the epoch before is not enough
    await following.is_asked_for(STEADY)
    assert following.leader.asked[OTHER] == asked
    following.answers.set()
    await following.is_asked_for(OTHER)
    assert following.begun == [STEADY, OTHER, OTHER, OTHER]


@pytest.mark.parametrize("begins_just_then", [False, True])
async def test_one_that_is_followed_no_more_for_a_moment_begins_again(
    following: Following, begins_just_then: bool
) -> None:
    """Somebody else may have followed it meanwhile, and cut it."""
    begun = [STEADY, OTHER]
    if begins_just_then:
        following.answers.clear()
        following.follow(other=1)
        begun.append(OTHER)
        await until(lambda: following.begun == begun)
    followed = dict(following.fetcher._followed)
    following.fetcher.follow({STEADY: followed[STEADY]})
    following.fetcher.follow(followed)
    following.answers.set()
    await until(lambda: following.begun == [*begun, OTHER])
    await following.is_asked_for(OTHER)
