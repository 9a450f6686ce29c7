"""`--bootstrap-server`: plan and explain go by what the broker says, and by nothing else."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from pathlib import Path

import pytest

from lapse.base.config import TopicConfig
from lapse.base.errors import ConfigError
from lapse.base.ids import TopicPartition
from lapse.broker.node import Node
from lapse.cli import served_policies
from lapse.cli.main import main
from lapse.cli.served_policies import ask_broker
from lapse.client.admin import Admin
from lapse.client.connection import ConnectionLost
from lapse.client.settings import ALL_BROKERS, BROKER, ConfigChange, Resource
from lapse.metadata.policies import Policies
from tests.support.broker.running import batch_of, connect, create, produce, running_node

NOBODY = Policies({}, {}, {"t": {"retention.ms": "1"}}, {"log.retention.ms": "2"}, "nobody")
FILE = {"log.cleanup.policy": "compact", "log.retention.hours": "3"}


def address(node: Node) -> str:
    return f"127.0.0.1:{node.services.address.port}"


def config_of(policies: Policies, topic: str) -> TopicConfig:
    config = policies.config_of(TopicPartition(topic, 0))
    assert config is not None
    return config


@pytest.mark.parametrize("at_once", [1, 500])
async def test_the_brokers_word_is_in_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(served_policies, "TOPICS_AT_ONCE", at_once)
    async with running_node(tmp_path, FILE) as node, await connect(node) as connection:
        await create(node, "t", min_cleanable_dirty_ratio="0.1", internal_segment_bytes="9999")
        await create(node, "u", cleanup_policy="delete")
        await Admin(connection).incremental_alter_configs({
            Resource(BROKER, ALL_BROKERS): [ConfigChange("log.segment.delete.delay.ms", "7")]
        })  # fmt: skip
        topics = ["t", "u", "stranger"]
        found = await asyncio.to_thread(ask_broker, address(node), topics, NOBODY)
        for topic in "tu":
            in_force = node.services.topics.image.topics[topic].config
            assert config_of(found, topic) == in_force
            assert in_force.file_delete_delay_ms == 7
        assert found.config_of(TopicPartition("stranger", 0)) is None
        assert found.source == f"the broker at {address(node)}"


async def test_what_is_said_wins_over_the_broker(tmp_path: Path) -> None:
    async with running_node(tmp_path, FILE) as node:
        await create(node, "t", retention_bytes="5")
        said = Policies({"retention.bytes": "6"}, {"log.retention.hours": "1"}, {}, {}, "-c")
        found = await asyncio.to_thread(ask_broker, address(node), ["t"], said)
        config = config_of(found, "t")
        assert (config.retention_bytes, config.retention_ms) == (6, 3_600_000)
        assert config.compacts


async def test_plan_and_explain_learn_the_policy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a copy without metadata, so that nothing but the broker can tell."""
    data, bare = tmp_path / "data", tmp_path / "bare"
    async with running_node(data, {"log.cleanup.policy": "compact"}) as node:
        await create(node, "t", min_compaction_lag_ms="86400000")
        async with await connect(node) as connection:
            await produce(connection, "t", (0, batch_of(b"a", b"b")))
        bare.mkdir()
        shutil.copytree(data / "t-0", bare / "t-0")
        shutil.copytree(data / "t-0", bare / "left-0")
        told = {}
        for command in ("plan", "explain"):
            words = [command, str(bare), "--json", "--bootstrap-server", address(node)]
            assert await asyncio.to_thread(main, words) == 1  # a log of no known topic
            lines = map(json.loads, capsys.readouterr().out.splitlines())
            told[command] = {line["partition"]: line["policy"] for line in lines}
            assert told[command] == {"t-0": "compact", "left-0": "unknown"}
            assert await asyncio.to_thread(main, words[:3]) == 1
            lines = map(json.loads, capsys.readouterr().out.splitlines())
            assert {line["policy"] for line in lines} == {"unknown"}


def test_nobody_there() -> None:
    with pytest.raises(ConnectionLost, match=r"cannot connect to 127\.0\.0\.1:1"):
        ask_broker("127.0.0.1:1", ["t"], NOBODY)


def test_addresses() -> None:
    for text in ("h", ":9", "h:", "h:0", "h:65536", "h:x", "h:1,"):
        with pytest.raises(ConfigError, match=re.escape(text)):
            ask_broker(text, ["t"], NOBODY)


async def test_any_of_several_will_do(tmp_path: Path) -> None:
    """Those of a cluster, of which one is away."""
    async with running_node(tmp_path) as node:
        await create(node, "t", cleanup_policy="compact")
        several = f"127.0.0.1:1,{address(node)}"
        found = await asyncio.to_thread(ask_broker, several, ["t"], NOBODY)
        assert config_of(found, "t").compacts
