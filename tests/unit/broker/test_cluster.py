"""A broker that is not among those it sees judges nobody, and registers."""

from __future__ import annotations

import asyncio
import errno
import logging
import uuid
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from lapse.base.clock import SystemClock
from lapse.base.config import broker_config
from lapse.base.errors import ConfigError, CorruptData, ErrorCode, KafkaError, LapseError
from lapse.base.fs import Fs, RealFs
from lapse.base.ids import TopicPartition
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
from tests.support.broker.failing import FullFs, storage_error
from tests.support.broker.running import until


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


def made(path: Path, tree: MemoryTree, fs: Fs | None = None) -> Node:
    settings = {
        "log.dirs": str(path), "listeners": "PLAINTEXT://127.0.0.1:0", "node.id": "1",
        "lapse.http.port": "-1", "zookeeper.connect": "here:1",
        "zookeeper.session.timeout.ms": "500",
    }  # fmt: skip
    env = LogEnv(fs or RealFs(), SystemClock())
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


# --- what ends it, and what does not --------------------------------------------------------------


class LackingFs(FullFs):
    """Where it lacks something, nothing can be written or made."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def check(self, _path: Path, _doing: str) -> None:
        if self.is_full:
            raise storage_error(self._number)

    def make_dir(self, path: Path) -> None:
        self.check(path, "creating")
        super().make_dir(path)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EMFILE])
async def test_it_stays_where_a_disk_is_full_as_a_topic_comes(tmp_path: Path, number: int) -> None:
    """What is there is led and followed; a broker that left would have others lead all of it."""
    ensemble, fs = MemoryEnsemble(), LackingFs(number)
    node = made(tmp_path, ensemble.connect(), fs)
    try:
        await node.start()
        assert node._cluster is not None
        topics, other = node.services.topics, TreeStore(ensemble.connect(), list, str, 2)
        fs.is_full = True
        for name in ("t", "u"):
            other.create_topics([TopicRecord(name, uuid.uuid4(), 1, {}, (first_state((1,)),))])
            await until(lambda name=name: name in topics.image.topics)
        assert TopicPartition("t", 0) in node.services.partitions.not_open
        assert node._cluster.refused is None
        fs.is_full = False
        other.create_topics([TopicRecord("v", uuid.uuid4(), 1, {}, (first_state((1,)),))])
        await until(lambda: node.services.partitions.is_online(TopicPartition("v", 0)))
    finally:
        fs.is_full = False
        await node.stop()


@pytest.mark.parametrize(
    "error",
    [
        storage_error(errno.ENOSPC),
        CorruptData("/topics", 0, "a node that must be there is missing"),
        KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "it is gone"),
        OSError(errno.EMFILE, "Too many open files"),
    ],
)
async def test_what_cannot_be_read_again_is_shown_and_tried_again(
    tmp_path: Path, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "AGAIN_SECONDS", 0.01)
    ensemble = MemoryEnsemble()
    node, fails, tries = made(tmp_path, ensemble.connect()), True, 0
    try:
        await node.start()
        assert node._cluster is not None
        topics, rereads = node.services.topics, node._cluster.rereads

        async def read() -> None:
            nonlocal tries
            tries += 1
            if fails:
                raise error
            await topics.reread()

        node._cluster.rereads = {**rereads, TOPICS_CHANGED: read}
        other = TreeStore(ensemble.connect(), list, str, 2)
        other.create_topics([TopicRecord("t", uuid.uuid4(), 1, {}, (first_state((1,)),))])
        await until(lambda: tries > 2)
        assert [one.words for one in node._cluster.conditions()] == [str(error)]
        fails = False
        await until(lambda: "t" in topics.image.topics)
        await until(lambda: not node._cluster.conditions())
        assert node._cluster.refused is None
    finally:
        await node.stop()


async def test_it_leaves_where_it_cannot_go_by_what_is_stored(tmp_path: Path) -> None:
    """It would lead and follow by what was stored before, and others would wait for it."""
    ensemble = MemoryEnsemble()
    node, refusal = made(tmp_path, ensemble.connect()), ConfigError("retention.ms=soon")
    try:
        await node.start()
        assert node._cluster is not None

        async def read() -> None:
            raise refusal

        node._cluster.rereads = {**node._cluster.rereads, TOPICS_CHANGED: read}
        other = TreeStore(ensemble.connect(), list, str, 2)
        other.create_topics([TopicRecord("t", uuid.uuid4(), 1, {}, (first_state((1,)),))])
        with pytest.raises(LapseError) as left:
            async with asyncio.timeout(60):
                await node.wait_for_stop_request()
        assert left.value is refusal
    finally:
        await node.stop()


async def refused_by(topics: Topics) -> bool:
    try:
        await topics.create(NewTopic("late", 1, {}, 1, ()))
    except KafkaError as e:
        return e.code is ErrorCode.NOT_CONTROLLER
    return False
