"""KIP-87: no switch of cleanup.policy makes a flagged tombstone a value, or the other way."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from lapse.base.errors import ErrorCode
from lapse.base.ids import TopicPartition
from lapse.broker.node import Node
from lapse.client.admin import Admin
from lapse.client.connection import BrokerConnection
from lapse.client.settings import BROKER, TOPIC, ConfigChange, Resource
from lapse.log.partition_log import PartitionLog
from lapse.metadata.policies import find_policies
from lapse.metadata.store import TopicRecord
from lapse.records.batch import records_of, scan_batches
from lapse.records.builder import NewRecord, build_batch
from tests.support.broker.running import connect, create, fetch, produce, running_node

FLAGGED = build_batch([NewRecord(b"user-1", b"erased by order 17", 1000, tombstone=True)])
PLAIN = build_batch([NewRecord(b"user-2", b"v", 1000), NewRecord(b"user-3", None, 1000)])
POLICY = "cleanup.policy"
EVERY = Resource(BROKER, "")


def log_of(node: Node, topic: str) -> PartitionLog:
    return node.services.partitions.get(TopicPartition(topic, 0))


async def change(
    connection: BrokerConnection, resource: Resource, name: str, value: str | None, **more: bool
) -> tuple[int, str]:
    asked = {resource: [ConfigChange(name, value)]}
    error = (await Admin(connection).incremental_alter_configs(asked, **more))[resource]
    return (0, "") if error is None else (int(error.code), str(error))


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ("compact", "delete", "0 holds tombstones with a value .* would be live values; allowed"),
        ("compact,delete", "delete", "0 holds tombstones with a value"),
        ("compact", "compact,delete", None),
        ("delete", "compact", "0 holds values flagged as tombstones .* would be deleted; allowed"),
        ("delete", "compact,delete", "0 holds values flagged"),
    ],
)
async def test_a_topic_keeps_what_its_records_are(
    before: str, after: str, why: str | None, tmp_path: Path
) -> None:
    async with running_node(tmp_path) as node, await connect(node) as connection:
        settings = {"cleanup_policy": before, "lapse_tombstone_values_enable": "true"}
        await create(node, "t", **settings)
        await produce(connection, "t", (0, PLAIN))
        resource = Resource(TOPIC, "t")
        for value in (after, before):
            assert await change(connection, resource, POLICY, value) == (0, "")
        await produce(connection, "t", (0, FLAGGED))
        log_of(node, "t").roll(1000)
        off = await change(connection, resource, "lapse.tombstone.values.enable", "false")
        assert off == (0, "")  # that switch changes no record
        for only in (True, False):
            code, said = await change(connection, resource, POLICY, after, validate_only=only)
            assert (code != 0) == (why is not None)
            if why is not None:
                assert code == ErrorCode.INVALID_CONFIG
                assert re.search(f"t-{why}", said), said
        held = (after if why is None else before).split(",")
        assert log_of(node, "t").config.cleanup_policy == set(held)
        (got,) = await fetch(connection, "t", (0, 2))
        data = bytes(got.records or b"")
        [record] = [r for row in scan_batches(data, "t") for r in records_of(data, row, "t")]
        assert record.value == (b"erased by order 17" if before == "delete" else None)


async def test_a_broker_default_is_no_way_around(tmp_path: Path) -> None:
    file = {"log.cleanup.policy": "compact", "lapse.tombstone.values.enable": "true"}
    async with running_node(tmp_path, file) as node, await connect(node) as connection:
        await create(node, "inherits")
        await create(node, "other")
        await create(node, "own", cleanup_policy="compact")
        for topic in ("inherits", "own"):
            await produce(connection, topic, (0, FLAGGED))
        for resource in (EVERY, Resource(BROKER, "0")):
            code, said = await change(connection, resource, "log.cleanup.policy", "delete")
            assert code == ErrorCode.INVALID_CONFIG
            assert "topic inherits: cleanup.policy=delete: inherits-0 holds" in said
        assert log_of(node, "other").config.compacts
        assert await change(connection, EVERY, "log.cleanup.policy", "delete,compact") == (0, "")
        assert log_of(node, "other").config.deletes


async def test_what_is_appended_meanwhile_stands_against_it_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_node(tmp_path) as node, await connect(node) as connection:
        await create(node, "t", cleanup_policy="compact")
        log, store = log_of(node, "t"), node.services.topics._store
        kept = store.change_topic

        def late(record: TopicRecord, instead_of: TopicRecord) -> None:
            if not log.log_end_offset:
                log.append_raw(FLAGGED)
            kept(record, instead_of)

        monkeypatch.setattr(store, "change_topic", late)
        code, _ = await change(connection, Resource(TOPIC, "t"), POLICY, "delete")
        assert code == ErrorCode.INVALID_CONFIG
        assert log.config.compacts
        assert node.services.topics.image.topics["t"].config.compacts
    async with running_node(tmp_path) as node:
        assert log_of(node, "t").config.compacts


@pytest.mark.parametrize(("last", "now"), [("compact", "delete"), (None, "compact")])
async def test_another_policy_in_the_file_turns_no_record(
    last: str | None, now: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The topic keeps the last one, as its own: nobody was there to be refused."""
    more = {"lapse.tombstone.values.enable": "true"}
    before = more if last is None else {"log.cleanup.policy": last, **more}
    edited = {"log.cleanup.policy": now, **more}
    async with running_node(tmp_path, before) as node, await connect(node) as connection:
        for topic in ("held", "other"):
            await create(node, topic)
        await produce(connection, "held", (0, FLAGGED))
        await produce(connection, "other", (0, PLAIN))
    for _ in range(2):
        async with running_node(tmp_path, edited) as node:
            assert log_of(node, "held").config.compacts == (last == "compact")
            assert log_of(node, "other").config.compacts == (now == "compact")
    (line,) = [r for r in caplog.records if r.name == "lapse.broker.logs.policy_switch"]
    assert line.levelno == logging.ERROR
    kept = last or "delete"
    assert f"topic held keeps cleanup.policy={kept}, as its own setting" in line.getMessage()
    assert "held-0 holds" in line.getMessage()
    # Who looks at the directory while nobody serves it knows the file's word too.
    policies = find_policies(tmp_path, {}, {})
    assert policies.flags_count(TopicPartition("held", 0)) == (last == "compact")
    assert policies.flags_count(TopicPartition("other", 0)) == (now == "compact")
    assert policies.config_of(TopicPartition("stranger", 0)) is None


async def test_a_switch_is_allowed_once_they_are_gone(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, await connect(node) as connection:
        await create(node, "t", cleanup_policy="compact", lapse_tombstone_values_enable="true")
        await produce(connection, "t", (0, FLAGGED))
        resource = Resource(TOPIC, "t")
        assert (await change(connection, resource, POLICY, "delete"))[0] != 0
        log_of(node, "t").delete_records(1)
        assert await change(connection, resource, POLICY, "delete") == (0, "")


async def test_a_log_that_is_offline_may_hold_some(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        await create(node, "t", cleanup_policy="compact")
    for path in (tmp_path / "t-0").glob("*.log"):
        path.unlink()
        path.mkdir()
    async with running_node(tmp_path) as node, await connect(node) as connection:
        assert not node.services.partitions.is_online(TopicPartition("t", 0))
        code, said = await change(connection, Resource(TOPIC, "t"), POLICY, "delete")
        assert (code, "t-0 is offline" in said) == (ErrorCode.INVALID_CONFIG, True)
        again = await change(connection, Resource(TOPIC, "t"), "retention.ms", "5")
        assert again == (0, "")
