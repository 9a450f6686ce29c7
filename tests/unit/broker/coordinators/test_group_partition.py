"""A partition of the offsets topic whose log says that a group is of both kinds."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from lapse.base.errors import ErrorCode
from lapse.base.ids import TopicPartition
from lapse.broker.coordinators import group_partition, transactions
from lapse.broker.coordinators.group_partition import Shard
from lapse.broker.coordinators.groups import OFFSETS_TOPIC
from lapse.broker.node import Node
from lapse.coordination.classic.events import Commit, Heartbeat, Sync
from lapse.coordination.consumer.events import Beat
from lapse.coordination.offsets.store import OffsetStore
from lapse.coordination.records import consumer_groups as kip848
from lapse.coordination.records.entries import encode_entry
from lapse.coordination.records.offsets import (
    GROUP_METADATA,
    OFFSET_COMMIT,
    GroupMetadataKey,
    GroupMetadataValue,
)
from lapse.records.builder import BatchSpec, NewRecord
from tests.support.broker.running import connect, running_node, until
from tests.support.broker.running import create as create_topic
from tests.support.broker.transaction_requests import TransactionalProducer, committed_offset
from tests.support.coordination.consumers import joining
from tests.unit.broker.coordinators import test_consumer_groups as of_kip848
from tests.unit.broker.coordinators.test_consumer_groups import T0, G, code_of, join, left, shard_of
from tests.unit.broker.coordinators.test_groups import create
from tests.unit.broker.coordinators.test_groups import joining as joining_classic
from tests.unit.broker.coordinators.test_late_requests import end

SETTINGS = {**of_kip848.SETTINGS, "group.consumer.migration.policy": "bidirectional"}
NONE = ErrorCode.NONE


async def loaded_anew(node: Node) -> Shard:
    node.services.groups._leave(0)
    return await shard_of(node)


async def test_a_classic_group_outlives_an_upgrade_that_too_few_replicas_had_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in the log all the same: the group was of both kinds, and no member could commit."""
    async with running_node(tmp_path / "data", SETTINGS) as node:
        await create(node, "t")
        member = await of_kip848.stable(node)

        async def late(appended: list[Any], *_: Any) -> list[ErrorCode]:
            return [ErrorCode.REQUEST_TIMED_OUT] * len(appended)

        with monkeypatch.context() as slow:
            slow.setattr(node.services.replicas, "committed", late)
            refused = await code_of(node, joining("n", "t"))
            assert refused is ErrorCode.COORDINATOR_NOT_AVAILABLE
        groups = node.services.groups
        again = await groups.handle(G, joining_classic(member.member_id))
        sync = Sync(object(), again.member_id, again.generation, assignments={})
        assert (await groups.handle(G, sync)).error is NONE
        shard = await loaded_anew(node)
        assert (set(shard.groups), set(shard.consumers.groups)) == ({G}, set())
        beat = Heartbeat(object(), again.member_id, again.generation)
        assert (await groups.handle(G, beat)).error is NONE
        committing = Commit(again.member_id, again.generation)
        assert await of_kip848.commit(node, {T0: 5}, committing) == {NONE}
        assert left(node) == {GROUP_METADATA.id, OFFSET_COMMIT.id}
    async with running_node(tmp_path / "data", SETTINGS) as node:
        shard = await shard_of(node)
        assert (set(shard.groups), set(shard.consumers.groups)) == ({G}, set())


async def test_a_group_of_kip_848_outlives_a_classic_one(tmp_path: Path) -> None:
    """As after a downgrade that too few replicas had in time."""
    async with running_node(tmp_path / "data", SETTINGS) as node:
        await create(node, "t")
        await shard_of(node)
        value = GroupMetadataValue(protocol_type="consumer", generation=4, protocol="range",
                                   leader=None, members=())  # fmt: skip
        record = encode_entry(GROUP_METADATA, GroupMetadataKey(group=G), value)
        log = node.services.partitions.get(TopicPartition(OFFSETS_TOPIC, 0))
        log.append_own([NewRecord(*record, 1)], BatchSpec(), now_ms=1)
        joined = await join(node, "a")
        shard = await loaded_anew(node)
        assert (set(shard.groups), set(shard.consumers.groups)) == (set(), {G})
        assert (await of_kip848.beat(node, Beat("a", joined.epoch))).epoch == joined.epoch
        await until(lambda: GROUP_METADATA.id not in left(node))
        assert left(node) == {
            kind.id
            for kind in (
                kip848.METADATA, kip848.MEMBER_METADATA, kip848.TARGET_METADATA,
                kip848.TARGET_MEMBER, kip848.CURRENT_MEMBER,
            )
        }  # fmt: skip
        shard = await loaded_anew(node)
        assert (set(shard.groups), set(shard.consumers.groups)) == (set(), {G})
        assert set(shard.consumers.groups[G].state.members) == {"a"}


async def test_a_log_is_taken_up_in_a_worker_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have millions of records, and the event loop serves all others meanwhile."""
    async with running_node(tmp_path, SETTINGS) as node, await connect(node) as c:
        await create_topic(node, "t")
        producer = TransactionalProducer(c, "x")
        await producer.start()
        assert await producer.add_offsets("g") == NONE
        assert await producer.commit_offsets("g", T0, 7) == NONE
        await end(producer, commit=True)
    threads: dict[str, set[str]] = {}

    def note(where: object, name: str) -> None:
        real = getattr(where, name)

        def noted(*args: object) -> object:
            threads.setdefault(name, set()).add(threading.current_thread().name)
            return real(*args)

        monkeypatch.setattr(where, name, noted)

    note(OffsetStore, "apply")
    note(group_partition, "fold")
    note(transactions, "fold_transactions")
    async with running_node(tmp_path, SETTINGS) as node, await connect(node) as c:
        assert await committed_offset(c, "g", T0, stable=True) == (7, NONE)
        assert await TransactionalProducer(c, "x").init() == NONE
    assert threads.keys() == {"apply", "fold", "fold_transactions"}
    names = [name for each in threads.values() for name in each]
    assert all(name.startswith("lapse-disk") for name in names), threads
