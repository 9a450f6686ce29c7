"""Shards of groups while leadership moves: who waits for one is told, nothing waits for ever."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from lapse.base.errors import ErrorCode, KafkaError
from lapse.base.ids import TopicPartition
from lapse.broker.coordinators.coordinator_log import StateLog
from lapse.broker.coordinators.groups import OFFSETS_TOPIC
from lapse.broker.coordinators.transaction_markers import MarkerWriter
from lapse.broker.node import Node
from lapse.coordination.classic.events import Heartbeat
from lapse.coordination.offsets.store import NO_RETENTION_MS, NewOffset
from lapse.coordination.records.transactions import TOPIC as TRANSACTIONS_TOPIC
from lapse.coordination.transactions.views import TransactionFilter
from lapse.metadata.partition_states import NO_LEADER, PartitionState
from lapse.wire.schema.heartbeat import HeartbeatRequest, HeartbeatResponse
from tests.support.broker.running import connect, create, running_node, until
from tests.support.broker.transaction_requests import TransactionalProducer, committed_offset
from tests.unit.broker.coordinators.test_groups import NONE, OUTSIDE, commit, fetched

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

        async def slow(log: StateLog, *given: Any) -> Any:
            if log._log.partition.topic != OFFSETS_TOPIC:
                return await load(log, *given)
            self.begun += 1
            await self.may_end.wait()
            try:
                return await load(log, *given)
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


def lead_on(node: Node) -> None:
    """Nobody leads the offsets for a moment, and then this broker does, in the same epoch."""
    partitions = node.services.partitions
    me, known = partitions.node_id, partitions.state_of(OFFSETS)
    assert known is not None
    for leader in (NO_LEADER, me):
        partitions.set_state(OFFSETS, replace(known, leader=leader))
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


# --- in one epoch ---------------------------------------------------------------------------------


class Writes:
    """Appends of a coordinator's topic, which take as long as a test wants: its disk is slow."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, topic: str) -> None:
        self.has_begun = False
        self._may_go_on = threading.Event()
        write = StateLog._write

        def slow(log: StateLog, taken: Any) -> Any:
            if log._log.partition.topic == topic:
                self.has_begun = True
                assert self._may_go_on.wait(20)
            return write(log, taken)

        monkeypatch.setattr(StateLog, "_write", slow)

    async def go_on_before(self, waits: asyncio.Task[Any]) -> None:
        """As who waits for them must; who does not has gone by."""
        await asyncio.wait([waits], timeout=0.2)
        self._may_go_on.set()


async def test_a_second_replica_ends_no_shard(node: Node, loads: Loads) -> None:
    """Where the epoch begins is written down only then; it is the same epoch."""
    loads.may_end.set()
    partitions = node.services.partitions
    elect(node, partitions.node_id)
    shard = await node.services.groups.shard_of(G)
    state = partitions.state_of(OFFSETS)
    assert state is not None
    two = replace(state, replicas=(state.leader, OTHER_BROKER))
    topic_ids = {OFFSETS_TOPIC: partitions.get(OFFSETS).topic_id}
    partitions.set_states({OFFSETS: two}, {OFFSETS: 3}, topic_ids)
    node.services.groups.leave_others()
    assert partitions.led(OFFSETS).begins_at == 3
    assert await node.services.groups.shard_of(G) is shard


async def test_a_load_waits_for_what_the_tenure_before_it_appends(
    node: Node, loads: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit is acknowledged, as its epoch is the present one."""
    loads.may_end.set()
    elect(node, node.services.partitions.node_id)
    assert await commit(node, G, {T0: 5}) == {NONE}
    writes = Writes(monkeypatch, OFFSETS_TOPIC)
    committing = asyncio.create_task(commit(node, G, {T0: 77}))
    await until(lambda: writes.has_begun)
    lead_on(node)
    fetching = asyncio.create_task(fetched(node, G))
    await writes.go_on_before(fetching)
    assert (await committing, await fetching) == ({NONE}, {T0: 77})


async def test_who_has_a_shard_that_has_ended_appends_nothing(node: Node, loads: Loads) -> None:
    """As a request that has looked it up, and waited for something else since."""
    loads.may_end.set()
    elect(node, node.services.partitions.node_id)
    assert await commit(node, G, {T0: 5}) == {NONE}
    old = await node.services.groups.shard_of(G)
    lead_on(node)
    await until(lambda: not node.services.groups._closing)
    refused = await old.commit(G, OUTSIDE, {T0: NewOffset(77)}, NO_RETENTION_MS)
    assert refused == {T0: ErrorCode.NOT_COORDINATOR}
    assert await fetched(node, G) == {T0: 5}


async def test_a_transactions_step_that_the_tenure_before_has_begun_counts(
    node: Node, loads: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the log says that a partition is in the transaction, and the coordinator does not."""
    partitions, transactions = node.services.partitions, TopicPartition(TRANSACTIONS_TOPIC, 0)
    async with await connect(node) as connection:
        producer = TransactionalProducer(connection, "x")
        await producer.start()
        me, epoch = partitions.node_id, partitions.get(transactions).leader_epoch
        partitions.set_state(transactions, PartitionState((me,), (me,), me, epoch))
        writes = Writes(monkeypatch, TRANSACTIONS_TOPIC)
        adding = asyncio.create_task(producer.add(T0))
        await until(lambda: writes.has_begun)
        partitions.set_state(transactions, PartitionState((me,), (me,), NO_LEADER, epoch))
        node.services.transactions._tick()
        partitions.set_state(transactions, PartitionState((me,), (me,), me, epoch))
        node.services.transactions._led_anew()
        describing = asyncio.create_task(node.services.transactions.describe("x"))
        await writes.go_on_before(describing)
        assert await adding == {T0: ErrorCode.NOT_COORDINATOR}
        assert (await describing).state == "Ongoing"


def lead_transactions(node: Node, *leaders: int) -> None:
    """These lead them, one after the other, in the epoch that there is."""
    partitions, tp = node.services.partitions, TopicPartition(TRANSACTIONS_TOPIC, 0)
    me, epoch = partitions.node_id, partitions.get(tp).leader_epoch
    for leader in leaders:
        partitions.set_state(tp, PartitionState((me,), (me,), leader, epoch))
        node.services.transactions._tick()
    node.services.transactions._led_anew()


async def test_a_load_waits_for_markers_of_the_tenure_before_it(
    node: Node, loads: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that comes later would end the producer's next transaction, in the same epoch."""
    me, held, begun = node.services.partitions.node_id, asyncio.Event(), []
    write = MarkerWriter.write

    async def slow(markers: MarkerWriter, *args: Any) -> Any:
        begun.append(args)
        await held.wait()
        return await write(markers, *args)

    async with await connect(node) as connection:
        producer = TransactionalProducer(connection, "x")
        await producer.start()
        lead_transactions(node, me)
        assert await producer.add(T0) == {T0: NONE}
        monkeypatch.setattr(MarkerWriter, "write", slow)
        assert await producer.end(commit=True) == NONE
        await until(lambda: begun)
        lead_transactions(node, NO_LEADER, me)
        describing = asyncio.create_task(node.services.transactions.describe("x"))
        await asyncio.wait([describing], timeout=0.2)
        assert not describing.done()
        held.set()
        assert (await describing).error is NONE
        await until(lambda: states(node) == ["CompleteCommit"])


async def test_a_load_that_ends_late_is_not_that_of_the_next_tenure(
    node: Node, loads: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It read the log before what was appended since."""
    me, load = node.services.partitions.node_id, StateLog.load
    ends: list[asyncio.Event] = []

    async def late(log: StateLog, *given: Any) -> Any:
        read = await load(log, *given)
        ends.append(asyncio.Event())
        await ends[-1].wait()
        return read

    async with await connect(node) as connection:
        await TransactionalProducer(connection, "x").start()
        lead_transactions(node, me)
        await until(lambda: states(node) == ["Empty"])
        monkeypatch.setattr(StateLog, "load", late)
        for count in (1, 2):
            lead_transactions(node, NO_LEADER, me)
            await until(lambda count=count: len(ends) == count)
        ends[0].set()
        for _ in range(20):
            await asyncio.sleep(0)
        assert states(node) == []  # it loads still
        ends[1].set()
        await until(lambda: states(node) == ["Empty"])


# --- the end --------------------------------------------------------------------------------------


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
