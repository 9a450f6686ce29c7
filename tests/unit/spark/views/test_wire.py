"""What brokers say of their logs is what the files say."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lapse.base.config import LONG_MAX
from lapse.base.errors import ConfigError, KafkaError, StorageError
from lapse.base.ids import TopicPartition
from lapse.broker.api import describe_outlook
from lapse.broker.node import Node
from lapse.cli.main import main
from lapse.client.connection import ConnectionLost
from lapse.metadata.membership import Registration
from lapse.metadata.partition_states import first_state
from lapse.spark.views.read import read_unit, view_units
from lapse.spark.views.spec import KEYS, LEDGER, PLAN, SEGMENTS, ViewOptions, ViewUnit
from lapse.spark.views.wire import BrokersAway
from lapse.testing.clock import ManualClock
from tests.support.broker.running import batch_of, connect, create, produce, running_node
from tests.support.spark.views.fleet import Rows, rows

COMPACTED = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0.01"}


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    """Logs that rounds have been through, one of them with a tombstone; and one without any."""
    data = tmp_path / "data"
    async with running_node(data) as first:
        for topic in ("a", "b"):
            await create(first, topic, 2, **COMPACTED, internal_segment_bytes="200")
        await create(first, "plain", 1)
        async with await connect(first) as connection:
            for n in range(20):
                for topic in ("a", "b"):
                    records = batch_of(b"%d" % n, b"x")
                    await produce(connection, topic, (n % 2, records))
            await produce(connection, "plain", (0, batch_of(b"x")))
    assert main(["clean", str(data), "--engine", "inline", "--force"]) == 0
    async with running_node(data) as again:
        yield again


def address(node: Node) -> str:
    return f"{node.services.address.host}:{node.services.address.port}"


async def said(node: Node, view: str, **changes: Any) -> Rows:
    """By the broker."""
    now_ms = node.services.clock.now_ms() + 5000
    wire = {"paths": (), "settings": (), "bootstrap": address(node), "now_ms": now_ms}
    return await asyncio.to_thread(rows, view, Path(), **{**wire, **changes})


@pytest.mark.parametrize("view", [PLAN, SEGMENTS, LEDGER])
async def test_it_is_what_the_files_say(
    node: Node, view: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(describe_outlook, "ROWS_BYTES_MAX", 1)  # one log an answer
    data, now_ms = node.services.partitions.data_dir, node.services.clock.now_ms() + 5000
    in_files = rows(view, data, now_ms, settings=())
    told = await said(node, view, now_ms=now_ms)
    assert {row["broker"] for row in told} == {0}
    assert {row["broker"] for row in in_files} == {None}
    assert len(told) >= 4
    for told_row, row in zip(told, in_files, strict=True):
        unknown = {"broker": None}
        if row.get("sealed") is False:  # whose index entries may be in memory still
            unknown["index_bytes"] = row["index_bytes"]
        assert {**told_row, **unknown} == row


async def test_only_what_is_asked_for(node: Node) -> None:
    for topics, logs in (
        (("b",), [("b", 0), ("b", 1)]),
        (("a", "plain"), [("a", 0), ("a", 1), ("plain", 0)]),
    ):
        found = await said(node, PLAN, topics=topics)
        assert [(row["topic"], row["partition"]) for row in found] == logs
    with pytest.raises(ConfigError, match="there is no topic c at 127"):
        await said(node, PLAN, topics=("a", "c"))


async def test_who_is_away_has_no_rows_only_where_that_is_wanted(node: Node) -> None:
    topics = node.services.topics
    theirs = replace(topics.image.topics["b"], states=(first_state((0, 7)), first_state((0, 9))))
    topics.image = topics.image.with_topics((theirs,))
    topics.members.brokers = {0: Registration(0)}
    lenient = ViewOptions(PLAN, (), 5, bootstrap=address(node), fail_on_data_loss=False)
    strict = replace(lenient, fail_on_data_loss=True)
    with pytest.raises(BrokersAway, match="broker 7, 9 has"):
        await asyncio.to_thread(view_units, strict, ManualClock(5))
    [unit] = await asyncio.to_thread(view_units, lenient, ManualClock(5))
    unit = replace(unit, options=strict)
    with pytest.raises(BrokersAway, match="broker 7, 9 has"):  # who were there at the start
        await asyncio.to_thread(read, unit)
    assert await said(node, SEGMENTS, fail_on_data_loss=False)
    assert await said(node, SEGMENTS, topics=("a",))  # of which they have none


async def test_one_that_has_gone_since_it_was_listed(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    options = ViewOptions(PLAN, (), 5, bootstrap=address(node))
    [unit] = await asyncio.to_thread(view_units, options, ManualClock(5))
    lenient = replace(unit, options=replace(options, fail_on_data_loss=False))
    await node.stop()
    with pytest.raises(ConnectionLost):
        await asyncio.to_thread(read, unit)
    with caplog.at_level(logging.WARNING):
        assert await asyncio.to_thread(read, lenient) == []
    assert "no rows of what a broker has" in caplog.text


def read(unit: ViewUnit) -> list[pa.RecordBatch]:
    return list(read_unit(unit, ManualClock(5)))


async def test_a_log_that_has_gone_meanwhile_has_no_rows(node: Node) -> None:
    topics = node.services.topics
    ghost = replace(topics.image.topics["b"], name="ghost", topic_id=uuid.uuid4())
    topics.image = topics.image.with_topics((ghost,))
    for view in (PLAN, SEGMENTS, LEDGER):
        assert {row["topic"] for row in await said(node, view)} >= {"a", "b"}
        assert not [row for row in await said(node, view) if row["topic"] == "ghost"]


@pytest.mark.parametrize("now_ms", [0, LONG_MAX])
async def test_any_moment_may_be_asked_for(node: Node, now_ms: int) -> None:
    told = await said(node, PLAN, now_ms=now_ms)
    in_files = rows(PLAN, node.services.partitions.data_dir, now_ms, settings=())
    assert [{**row, "broker": None} for row in told] == in_files


async def test_a_log_that_is_offline_is_a_row_of_the_plan_and_an_error_else(node: Node) -> None:
    node.services.partitions.get(TopicPartition("a", 1))._core.go_offline(StorageError("no disk"))
    found = {(row["topic"], row["partition"]): row for row in await said(node, PLAN)}
    assert found["a", 1]["rule"] == "unreadable"
    assert "no disk" in found["a", 1]["explanation"]
    assert found["a", 0]["rule"] != "unreadable"
    with pytest.raises(KafkaError, match="no disk"):
        await said(node, SEGMENTS)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"view": KEYS}, "the view keys reads files"),
        ({"settings": (("cleanup.policy", "compact"),)}, "cleanup.policy: allowed with a path"),
        ({"paths": ("/logs",)}, "exactly one is needed"),
        ({"bootstrap": ""}, "exactly one is needed"),
    ],
)
def test_what_brokers_cannot_say(changes: dict[str, Any], says: str) -> None:
    options = ViewOptions(PLAN, (), 5, bootstrap="b:1")
    with pytest.raises(ConfigError, match=says):
        replace(options, **changes).check()


def test_secrets_are_not_shown() -> None:
    options = ViewOptions(PLAN, (), 5, bootstrap="b:1", client=(("sasl.jaas.config", "hush"),))
    assert "hush" not in repr(options)
