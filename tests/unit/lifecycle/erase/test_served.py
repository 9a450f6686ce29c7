"""The broker's side of an erasure, against a real broker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lapse.base.errors import ConfigError, ErrorCode, KafkaError
from lapse.base.ids import TopicPartition
from lapse.broker.logs.topics import NewTopic
from lapse.broker.node import Node
from lapse.client.admin import Admin
from lapse.client.connection import ConnectionLost
from lapse.client.login import PLAINTEXT
from lapse.client.settings import TOPIC, ConfigChange, Resource
from lapse.lifecycle.erase.order import Due, Forced
from lapse.lifecycle.erase.search import Bound
from lapse.lifecycle.erase.served import (
    MAX_LAG,
    Broker,
    ask,
    ask_replicas,
    force,
    is_refusal,
    lag_wanted,
    put_back,
    to_force,
    write_tombstones,
)
from tests.support.broker.running import batch_of, connect, create, fetch, produce, running_node

LAG = "max_compaction_lag_ms"
FOREVER = str((1 << 63) - 1)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with running_node(tmp_path / "data") as running, await connect(running) as connection:
        await create(running, "t", partitions=2, cleanup_policy="compact")
        await produce(connection, "t", (1, batch_of(b"a", b"b")))
        yield running


def broker_of(node: Node) -> Broker:
    address = node.services.address
    return Broker(f"{address.host}:{address.port}", PLAINTEXT)


async def set_lag(node: Node, value: str) -> None:
    async with await connect(node) as connection:
        changes = {Resource(TOPIC, "t"): [ConfigChange(MAX_LAG, value)]}
        assert not any((await Admin(connection).incremental_alter_configs(changes)).values())


async def lag_of(node: Node) -> tuple[str | None, int]:
    entry = (await ask(broker_of(node), "t")).settings[MAX_LAG]
    return entry.value, entry.source


async def test_an_order_is_about_what_no_follower_has_yet_too(node: Node) -> None:
    """Written with acks=1 before it, and above the high watermark: it was erased by nobody."""
    log = node.services.partitions.get(TopicPartition("t", 1))
    log.set_replicated(replicated=True)
    log.high_watermark = 1
    assert (log.high_watermark, log.log_end_offset) == (1, 2)
    assert (await ask(broker_of(node), "t")).ends == (Bound(0, 0, 0), Bound(1, 2, 0))


async def test_what_a_topic_is_asked(node: Node) -> None:
    told = await ask(broker_of(node), "t")
    assert told.ends == (Bound(0, 0, 0), Bound(1, 2, 0))
    node_id = node.services.config.node_id
    assert told.replicas == {0: (node_id,), 1: (node_id,)}
    assert await ask_replicas(broker_of(node), "t", told.topic_id) == told.replicas
    with pytest.raises(ConfigError, match="topic t is not the one"):
        await ask_replicas(broker_of(node), "t", "00" * 16)
    assert told.ms("delete.retention.ms") == 86_400_000
    assert told.ms("no.such.setting", 7) == 7
    await create(node, "plain")
    with pytest.raises(ConfigError, match=r"topic plain: cleanup\.policy=delete"):
        await ask(broker_of(node), "plain")
    with pytest.raises(KafkaError, match="none"):
        await ask(broker_of(node), "none")


async def test_an_internal_topic_is_refused_before_an_order_is_taken(node: Node) -> None:
    """No client may write the tombstones, and the settings would be changed in vain."""
    name = "__consumer_offsets"
    await node.services.topics.create(NewTopic(name, 1, {"cleanup.policy": "compact"}))
    with pytest.raises(ConfigError, match=rf"topic {name} is internal.*group"):
        await ask(broker_of(node), name)


async def test_tombstones_bring_no_topic_back(node: Node) -> None:
    """Somebody may have deleted it since it was looked at."""
    with pytest.raises(KafkaError, match=r"^gone: tombstones cannot be written"):
        await write_tombstones(broker_of(node), "gone", [b"k"], [Due(0, 0)])
    assert "gone" not in node.services.topics.image.topics


async def test_tombstones_go_where_they_are_due_whatever_the_key_says(node: Node) -> None:
    await write_tombstones(broker_of(node), "t", [b"k0", b"k1"], [Due(0, 1), Due(1, 0), Due(1, 1)])
    assert (await ask(broker_of(node), "t")).ends == (Bound(0, 1, 0), Bound(1, 4, 0))
    async with await connect(node) as connection:
        first, second = await fetch(connection, "t", (0, 0), (1, 2))
    assert b"k1" in bytes(first.records or b"")
    assert b"k0" not in bytes(first.records or b"")
    assert b"k0" in bytes(second.records or b"")


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({}, Forced(MAX_LAG, None, "1000")),
        ({LAG: "5000"}, Forced(MAX_LAG, "5000", "1000")),
        ({LAG: "900"}, None),
        ({LAG: "5000", "min_compaction_lag_ms": "2000"}, Forced(MAX_LAG, "5000", "2000")),
        ({LAG: "2000", "min_compaction_lag_ms": "2000"}, None),
    ],
)
async def test_which_lag_brings_rounds_on(
    settings: dict[str, str], wanted: Forced | None, node: Node
) -> None:
    await create(node, "u", cleanup_policy="compact", **settings)
    assert lag_wanted(await ask(broker_of(node), "u")) == wanted


@pytest.mark.parametrize("before", [None, "5000"])
async def test_a_setting_is_put_back_as_it_was(before: str | None, node: Node) -> None:
    if before is not None:
        await set_lag(node, before)
    was = await lag_of(node)
    forced = Forced(MAX_LAG, before, "1000")
    await force(broker_of(node), "t", forced)
    assert await lag_of(node) == ("1000", 1)
    assert await put_back(broker_of(node), "t", forced)
    assert await lag_of(node) == was
    assert await put_back(broker_of(node), "t", forced), "as it is already"


async def test_what_somebody_else_set_meanwhile_stays(node: Node) -> None:
    forced = Forced(MAX_LAG, None, "1000")
    await force(broker_of(node), "t", forced)
    await set_lag(node, "7000")
    assert not await put_back(broker_of(node), "t", forced)
    assert await lag_of(node) == ("7000", 1)


async def test_what_somebody_else_set_before_is_not_forced(node: Node) -> None:
    await set_lag(node, "7000")
    assert not await force(broker_of(node), "t", Forced(MAX_LAG, None, "1000"))
    assert await lag_of(node) == ("7000", 1)
    # Once or again.
    forced = Forced(MAX_LAG, "7000", "1000")
    assert [await force(broker_of(node), "t", forced) for _ in range(2)] == [True, True]
    assert await lag_of(node) == ("1000", 1)


@pytest.mark.parametrize(
    ("now", "wanted"),
    [
        ("1000", Forced(MAX_LAG, "5000", "1000")),  # done
        ("5000", Forced(MAX_LAG, "5000", "1000")),  # remembered, and not done
        ("7000", Forced(MAX_LAG, "7000", "1000")),  # set to another value since
        (None, Forced(MAX_LAG, None, "1000")),
        ("900", None),
    ],
)
async def test_what_an_order_remembers_is_held_against_what_is_there(
    now: str | None, wanted: Forced | None, node: Node
) -> None:
    if now is not None:
        await set_lag(node, now)
    remembered = Forced(MAX_LAG, "5000", "1000")
    assert to_force(await ask(broker_of(node), "t"), remembered) == wanted


def test_only_a_refusal_says_that_nothing_was_changed() -> None:
    errors = [
        ConnectionLost("it went away"),
        KafkaError(ErrorCode.REQUEST_TIMED_OUT, "late"),
        KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "a bug"),
    ]
    assert not any(is_refusal(error) for error in errors)
    assert is_refusal(KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "no"))
