"""A broker that is not among those it sees judges nobody, and registers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from lapse.base.clock import SystemClock
from lapse.base.config import broker_config
from lapse.base.errors import ConfigError
from lapse.base.fs import RealFs
from lapse.broker import cluster
from lapse.broker.logs.topics import NewTopic
from lapse.broker.node import Node
from lapse.log.env import LogEnv
from lapse.metadata.membership import BROKERS, Registration
from lapse.metadata.tree import Create, Remove
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
