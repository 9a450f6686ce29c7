"""Shards of groups while leadership moves: who waits for one is told, nothing waits for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from lapse.base.errors import ErrorCode, KafkaError
from lapse.base.ids import TopicPartition
from lapse.broker.coordinators.coordinator_log import StateLog
from lapse.broker.coordinators.groups import OFFSETS_TOPIC
from lapse.broker.node import Node
from lapse.coordination.classic.events import Heartbeat
from lapse.coordination.transactions.views import TransactionFilter
from lapse.metadata.partition_states import PartitionState
from lapse.wire.schema.heartbeat import HeartbeatRequest, HeartbeatResponse
from tests.support.broker.running import connect, create, running_node, until
from tests.support.broker.transaction_requests import TransactionalProducer, committed_offset
from tests.unit.broker.coordinators.test_groups import NONE, commit, fetched

SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}
G = "g"
OFFSETS, T0 = TopicPartition(OFFSETS_TOPIC, 0), TopicPartition("t", 0)
OTHER_BROKER = 99
_tokens = count()


class Loads:
    """Loads of the offsets topic, which take as long as a test wants.

    Attributes:
        may_end: cleared, they wait.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.ended = 0, 0
        self.may_end = asyncio.Event()
        self.may_end.set()
        load = StateLog.load

        async def slow(log: StateLog, types: Any) -> Any:
            if log._log.partition.topic != OFFSETS_TOPIC:
                return await load(log, types)
            self.begun += 1
            await self.may_end.wait()
            try:
                return await load(log, types)
            finally:
                self.ended += 1

        monkeypatch.setattr(StateLog, "load", slow)


@pytest.fixture
async def loads(monkeypatch: pytest.MonkeyPatch) -> Loads:
    return Loads(monkeypatch)


@pytest.fixture
async def node(tmp_path: Path, loads: Loads, request: pytest.FixtureRequest) -> AsyncIterator[Node]:
    settings = {**SETTINGS, **getattr(request, "param", {})}
    async with running_node(tmp_path / "data", settings) as running:
        await create(running, "t")
        loads.may_end.clear()
        await running.services.groups.require_topic()
        yield running
        loads.may_end.set()


def elect(node: Node, broker: int) -> None:
    """Another broker leads the offsets from now on, or this one does again."""
    partitions = node.services.partitions
    log, known = partitions.get(OFFSETS), partitions.state_of(OFFSETS)
    epoch = 1 if known is None else known.leader_epoch + 1
    (log.lead if broker == partitions.node_id else log.follow)(epoch)
    partitions.set_state(OFFSETS, PartitionState((broker,), (broker,), broker, epoch))
    node.services.groups.leave_others()


def heartbeat() -> Heartbeat:
    return Heartbeat(next(_tokens), "m", 1)


async def test_who_waits_for_a_load_hears_at_once_that_leadership_moves(
    node: Node, loads: Loads
) -> None:
    groups = node.services.groups
    waiting = asyncio.create_task(groups.handle(G, heartbeat()))
    asking = asyncio.create_task(groups.shard_of(G))
    await until(lambda: loads.begun)
    elect(node, OTHER_BROKER)
    async with asyncio.timeout(10):
        assert (await waiting).error is ErrorCode.NOT_COORDINATOR
        with pytest.raises(KafkaError) as refused:
            await asking
    assert refused.value.code is ErrorCode.NOT_COORDINATOR
    assert not loads.ended


async def test_so_does_a_client_on_a_connection_that_goes_on(node: Node, loads: Loads) -> None:
    request = HeartbeatRequest(group_id=G, generation_id=1, member_id="m")
    async with await connect(node) as connection:
        waiting = asyncio.create_task(connection.request(request, HeartbeatResponse))
        await until(lambda: loads.begun)
        elect(node, OTHER_BROKER)
        async with asyncio.timeout(10):
            for answer in (await waiting, await connection.request(request, HeartbeatResponse)):
                assert answer.error_code == ErrorCode.NOT_COORDINATOR


async def test_a_transaction_whose_marker_waits_for_the_load_ends(node: Node, loads: Loads) -> None:
    """Its markers go out again; it stayed PrepareCommit, and its id busy, until a restart."""
    async with await connect(node) as connection:
        producer = TransactionalProducer(connection, "x")
        await producer.start()
        loads.may_end.set()
        assert await producer.add_offsets(G) == NONE
        assert await producer.commit_offsets(G, T0, 7) == NONE
        elect(node, OTHER_BROKER)
        loads.may_end.clear()
        elect(node, node.services.partitions.node_id)
        begun = loads.begun
        assert await producer.end(commit=True) == NONE
        await until(lambda: loads.begun > begun)
        elect(node, OTHER_BROKER)
        elect(node, node.services.partitions.node_id)
        loads.may_end.set()
        await until(lambda: states(node) == ["CompleteCommit"])
        assert await committed_offset(connection, G, T0, stable=True) == (7, NONE)


def states(node: Node) -> list[str]:
    listing = node.services.transactions.list(TransactionFilter())
    return [row.state for row in listing.transactions]


@pytest.mark.parametrize("node", [{"offsets.retention.check.interval.ms": "20"}], indirect=True)
async def test_offsets_expire_after_a_load_that_leadership_ended(node: Node, loads: Loads) -> None:
    await until(lambda: loads.begun)  # the broker looks for itself
    elect(node, OTHER_BROKER)
    elect(node, node.services.partitions.node_id)
    loads.may_end.set()
    await until(lambda: loads.begun > 1 and loads.ended == loads.begun)
    assert await commit(node, G, {T0: 5}) == {NONE}
    expiring = node.services.groups._expiring
    assert expiring is not None
    assert not expiring.done()


async def test_a_shard_that_is_left_while_it_loads_is_ended(node: Node, loads: Loads) -> None:
    """Its timers would go on, and what it appends in the next tenure would be unknown to that."""
    asking = asyncio.create_task(node.services.groups.shard_of(G))
    await until(lambda: loads.begun)
    left = node.services.groups._shards[0].shard
    elect(node, OTHER_BROKER)
    with pytest.raises(KafkaError):
        await asking
    elect(node, node.services.partitions.node_id)
    loads.may_end.set()
    assert await commit(node, G, {T0: 5}) == {NONE}
    await until(lambda: not node.services.groups._closing)
    assert left.result().consumers._is_closed
    assert await fetched(node, G) == {T0: 5}


async def test_the_broker_stops_while_a_shard_loads(node: Node, loads: Loads) -> None:
    asking = asyncio.create_task(node.services.groups.shard_of(G))
    await until(lambda: loads.begun)
    closing = asyncio.create_task(node.services.groups.close())
    async with asyncio.timeout(10):
        with pytest.raises(KafkaError) as refused:
            await asking
        assert refused.value.code is ErrorCode.NOT_COORDINATOR
        loads.may_end.set()
        await closing
    assert loads.ended == loads.begun
