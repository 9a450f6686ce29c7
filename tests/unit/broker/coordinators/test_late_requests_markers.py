"""A marker that the network brings when its transaction has long ended ends no other one."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from lapse.base.clock import SystemClock
from lapse.base.ids import TopicPartition
from lapse.broker.node import Node
from lapse.client.connection import BrokerConnection, ConnectionLost
from lapse.records.batch import records_of, scan_prefix
from lapse.wire.schema.write_txn_markers import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from tests.support.broker.running import connect, create, fetch, until
from tests.support.broker.transaction_requests import TransactionalProducer
from tests.support.broker.two_nodes import two_nodes
from tests.unit.broker.coordinators.test_late_requests import OK, end

STATE = TopicPartition("__transaction_state", 0)
SETTINGS = {
    "transaction_state_log_num_partitions": "1",
    "transaction_state_log_replication_factor": "1",
    "offsets_topic_num_partitions": "1",
}


def leads(node: Node, partition: TopicPartition) -> bool:
    state = node.services.partitions.state_of(partition)
    return state is not None and state.leader == node.services.config.node_id


async def shown(connection: BrokerConnection, partition: TopicPartition) -> list[bytes | None]:
    """What read_committed consumers are given."""
    (got,) = await fetch(connection, partition.topic, (partition.partition, 0), isolation_level=1)
    data = bytes(got.records or b"")
    rows, _, _ = scan_prefix(data)
    dropped = {(t.producer_id, t.first_offset) for t in got.aborted_transactions or ()}
    return [
        record.value
        for row in rows[rows["attributes"] & 0x20 == 0]
        if (int(row["producer_id"]), int(row["base_offset"])) not in dropped
        for record in records_of(data, row, "answer")
    ]


async def test_a_marker_that_comes_late_does_not_end_the_next_transaction(tmp_path: Path) -> None:
    """Its coordinator had no answer, and sent it again over another connection."""
    async with two_nodes(tmp_path, SystemClock(), **SETTINGS) as both:
        await create(both[0], "t", 2)
        async with await connect(both[0]) as somebody:
            assert await TransactionalProducer(somebody, "x").find() == OK
        await until(lambda: any(leads(node, STATE) for node in both))
        first, other = sorted(both, key=lambda node: leads(node, STATE), reverse=True)
        parts = [TopicPartition("t", 0), TopicPartition("t", 1)]
        await until(lambda: any(leads(other, tp) for tp in parts))
        tp = next(tp for tp in parts if leads(other, tp))
        peers = first.services.transactions.markers.peers
        request, held = peers.request, []

        async def held_up(broker: int, message: Any, answer: Any, **given: Any) -> Any:
            if isinstance(message, WriteTxnMarkersRequest) and not held:
                held.append(message)
                raise ConnectionLost("no answer within 30 s")
            return await request(broker, message, answer, **given)

        peers.request = held_up  # type: ignore[method-assign, assignment]
        older, to_coordinator = await connect(other), await connect(first)
        async with to_coordinator, await connect(other) as to_leader:
            producer = TransactionalProducer(to_coordinator, "x")
            await producer.start()
            writer = TransactionalProducer(to_leader, "x", producer.producer_id, producer.epoch)
            assert await producer.add(tp) == {tp: OK}
            assert await writer.send(tp, b"whole") == OK
            await end(producer, commit=True)
            assert len(held) == 1
            assert await producer.add(tp) == {tp: OK}
            assert await writer.send(tp, b"half") == OK
            with contextlib.suppress(ConnectionLost):
                await older.request(held[0], WriteTxnMarkersResponse)  # the network brings it now
            await end(producer, commit=False)
            assert await shown(to_leader, tp) == [b"whole"]
        older.close()
