"""A broker that is not among those it sees judges nobody, and registers."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from lapse.base.clock import SystemClock
from lapse.base.config import broker_config
from lapse.base.errors import ConfigError, ErrorCode, KafkaError
from lapse.base.fs import RealFs
from lapse.broker import cluster
from lapse.broker.logs.topics import NewTopic, Topics
from lapse.broker.node import Node
from lapse.log.env import LogEnv
from lapse.metadata.membership import BROKERS, CONTROLLER, CONTROLLER_EPOCH, Registration
from lapse.metadata.partition_states import first_state
from lapse.metadata.store import TopicRecord
from lapse.metadata.tree import Create, Remove
from lapse.metadata.tree_store import TOPICS_CHANGED, TreeStore
from lapse.testing.memory_tree import MemoryEnsemble, MemoryTree


class Losing(MemoryTree):
    """Loses the broker's registration right before it is asked for it once more."""

    asks_left = 0

    def children(self, path: str) -> Sequence[str]:
        if path == BROKERS and self.asks_left:
            self.asks_left -= 1
            if not self.asks_left:
                [node] = self.get([f"{BROKERS}/1"])
                assert node is not None
                self.commit([Remove(f"{BROKERS}/1", node.version)])
        return super().children(path)


def made(path: Path, tree: Losing) -> Node:
    settings = {
        "log.dirs": str(path), "listeners": "PLAINTEXT://127.0.0.1:0", "node.id": "1",
        "lapse.http.port": "-1", "zookeeper.connect": "here:1",
        "zookeeper.session.timeout.ms": "500",
    }  # fmt: skip
    env = LogEnv(RealFs(), SystemClock())
    return Node(broker_config(settings), env, connect=lambda *_: tree)


async def test_who_has_its_id_is_not_taken_for_it(tmp_path: Path) -> None:
    """Its session has ended, and another broker was quicker: it leaves, and judges nobody."""
    ensemble = MemoryEnsemble()
    tree, path = Losing(ensemble, ensemble.begin_session()), f"{BROKERS}/1"
    node = made(tmp_path, tree)
    try:
        await node.start()
        [mine] = tree.get([path])
        assert mine is not None
        other = msgspec.json.encode(Registration(1, {"PLAINTEXT": ("there", 9092)}, epoch=7))
        ensemble.connect().commit(
            [Remove(path, mine.version), Create(path, other, of_session=True)]
        )
        with pytest.raises(ConfigError, match="another broker with this id"):
            async with asyncio.timeout(60):
                await node.wait_for_stop_request()
        assert node.services.topics.members.brokers[1].epoch != 7
    finally:
        await node.stop()


@pytest.mark.parametrize("asks", [1, 2])
async def test_it_takes_no_leader_away(
    tmp_path: Path,
    asks: int,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster, "LOOK_SECONDS", 0.2)
    ensemble = MemoryEnsemble()
    tree = Losing(ensemble, ensemble.begin_session())
    node = made(tmp_path, tree)
    try:
        await node.start()
        topics = node.services.topics
        await topics.create(NewTopic("t", 1, {}, 1, ()))
        with caplog.at_level(logging.INFO, logger="lapse.broker.cluster"):
            tree.asks_left = asks
            async with asyncio.timeout(60):
                while "registered again" not in caplog.text:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        assert "get other leaders" not in caplog.text
        assert [state.leader_epoch for state in topics.image.topics["t"].states] == [0]
        assert topics.members.able == [1]
    finally:
        await node.stop()


async def test_who_takes_the_office_reads_before_it_changes_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It elects at once; what clients ask for it would make of what was in force before."""
    monkeypatch.setattr(cluster, "LOOK_SECONDS", 0.1)
    ensemble = MemoryEnsemble()
    other = ensemble.connect()
    node = made(tmp_path, Losing(ensemble, ensemble.begin_session()))
    epoch = Create(CONTROLLER_EPOCH, b"")
    other.commit([epoch, Create(CONTROLLER, b"2", of_session=True)])
    try:
        await node.start()
        assert node._cluster is not None
        topics, rereads = node.services.topics, node._cluster.rereads
        last = TreeStore(other, list, str, 2)
        asked: list[ErrorCode] = []
        told: list[int | None] = []

        async def read() -> None:
            with pytest.raises(KafkaError) as refused:
                await topics.create(NewTopic("early", 1, {}, 1, ()))
            asked.append(refused.value.code)
            told.append(topics.members.controller_id)
            await topics.reread()

        node._cluster.rereads = {**rereads, TOPICS_CHANGED: read}
        last.create_topics([TopicRecord("t", uuid.uuid4(), 1, {}, (first_state((1,)),))])
        other.close()  # the last controller is gone
        async with asyncio.timeout(60):
            while topics.members.controller_id != 1:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert not await refused_by(topics), "who says that it is the controller does what it is"
        assert set(asked) == {ErrorCode.NOT_CONTROLLER}
        assert set(told) == {None}, "nobody is sent to it yet"
        assert set(topics.image.topics) == {"t", "late"}
    finally:
        await node.stop()


async def refused_by(topics: Topics) -> bool:
    try:
        await topics.create(NewTopic("late", 1, {}, 1, ()))
    except KafkaError as e:
        return e.code is ErrorCode.NOT_CONTROLLER
    return False
