"""Markers in logs and in `__consumer_offsets`, and what administrators see and end by them."""

from __future__ import annotations

import asyncio

import pytest

from lapse.base.errors import ErrorCode
from lapse.base.ids import TopicPartition
from lapse.broker.coordinators.coordinator_log import Writer
from lapse.broker.coordinators.groups import OFFSETS_TOPIC
from lapse.broker.node import Node
from lapse.client.connection import BrokerConnection
from lapse.coordination.partitioning import partition_for
from lapse.log.markers import EndMarker
from lapse.wire.schema.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    TopicRequest,
)
from lapse.wire.schema.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from lapse.wire.schema.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from tests.support.broker.running import connect, create, fetch
from tests.support.broker.transaction_requests import TransactionalProducer, committed_offset

ONE, TWO = TopicPartition("t", 0), TopicPartition("t", 1)
E = ErrorCode
OK = E.NONE


@pytest.fixture
async def producer(node: Node, connection: BrokerConnection) -> TransactionalProducer:
    """With a transaction of one record, and an offset of group g."""
    await create(node, "t", 2)
    made = TransactionalProducer(connection, "x")
    await made.start()
    assert await made.add(ONE) == {ONE: OK}
    assert await made.send(ONE, b"a") == OK
    assert await made.add_offsets("g") == OK
    assert await made.commit_offsets("g", ONE, 5) == OK
    return made


async def described(connection: BrokerConnection, tp: TopicPartition) -> PartitionResponse:
    topic = TopicRequest(name=tp.topic, partition_indexes=(tp.partition,))
    request = DescribeProducersRequest(topics=(topic,))
    answer = await connection.request(request, DescribeProducersResponse)
    return answer.topics[0].partitions[0]


async def write(
    connection: BrokerConnection,
    producer: TransactionalProducer,
    epoch: int,
    *where: TopicPartition,
) -> list[ErrorCode]:
    marker = WritableTxnMarker(
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        transaction_result=False,
        topics=tuple(
            WritableTxnMarkerTopic(name=tp.topic, partition_indexes=(tp.partition,)) for tp in where
        ),
        coordinator_epoch=epoch,
    )
    request = WriteTxnMarkersRequest(markers=(marker,))
    answer = await connection.request(request, WriteTxnMarkersResponse)
    (only,) = answer.markers
    assert only.producer_id == producer.producer_id
    return [ErrorCode(p.error_code) for t in only.topics for p in t.partitions]


async def test_an_administrator_ends_a_hanging_transaction(
    node: Node, connection: BrokerConnection, producer: TransactionalProducer
) -> None:
    before = (await described(connection, ONE)).active_producers[0]
    assert (before.producer_id, before.producer_epoch) == (producer.producer_id, 0)
    assert (before.last_sequence, before.current_txn_start_offset) == (0, 0)
    offsets = TopicPartition(OFFSETS_TOPIC, partition_for("g", 50))
    missing = TopicPartition("t", 9)
    told = await write(connection, producer, 3, ONE, offsets, missing)
    assert told == [OK, OK, E.UNKNOWN_TOPIC_OR_PARTITION]
    after = (await described(connection, ONE)).active_producers[0]
    assert (after.coordinator_epoch, after.current_txn_start_offset) == (3, -1)
    assert await committed_offset(connection, "g", ONE, stable=True) == (-1, OK)
    assert await write(connection, producer, 2, ONE) == [E.TRANSACTION_COORDINATOR_FENCED]
    producer.epoch = -1
    assert await write(connection, producer, 3, ONE) == [E.INVALID_PRODUCER_EPOCH]
    assert node.services.partitions.get(ONE).log_end_offset == 2


async def test_a_marker_wakes_readers_of_committed_data(
    node: Node, producer: TransactionalProducer
) -> None:
    async with await connect(node) as reader:
        waits = asyncio.ensure_future(
            fetch(reader, "t", (0, 0), isolation_level=1, max_wait_ms=60_000)
        )
        done, _ = await asyncio.wait([waits], timeout=0.3)
        assert not done
        writer = Writer(producer.producer_id, producer.epoch)
        written = await node.services.transactions.markers.write(writer, EndMarker(True, 0), [ONE])
        assert written == {ONE: OK}
        (found,) = await asyncio.wait_for(waits, 10)
        assert found.records


async def test_what_cannot_be_added(
    connection: BrokerConnection, producer: TransactionalProducer
) -> None:
    internal, missing = TopicPartition(OFFSETS_TOPIC, 0), TopicPartition("x", 0)
    assert await producer.add(TWO, internal, missing) == {
        TWO: E.OPERATION_NOT_ATTEMPTED,
        internal: E.TOPIC_AUTHORIZATION_FAILED,
        missing: E.UNKNOWN_TOPIC_OR_PARTITION,
    }
    topics = (await producer.described()).topics
    assert [(t.topic, t.partitions) for t in topics] == [
        (OFFSETS_TOPIC, (partition_for("g", 50),)), ("t", (0,)),
    ]  # fmt: skip


async def test_listing(connection: BrokerConnection, producer: TransactionalProducer) -> None:
    async def listed(version: int | None = None, **filters: object) -> tuple[object, ...]:
        fields = {"state_filters": (), "producer_id_filters": (), **filters}
        request = ListTransactionsRequest(**fields)  # type: ignore[arg-type]
        answer = await connection.request(request, ListTransactionsResponse, version=version)
        rows = tuple((t.transactional_id, t.transaction_state) for t in answer.transaction_states)
        return ErrorCode(answer.error_code), answer.unknown_state_filters, rows

    found = (("x", "Ongoing"),)
    assert await listed(version=0) == (OK, (), found)
    assert await listed(state_filters=("Ongoing", "Odd")) == (OK, ("Odd",), found)
    assert await listed(state_filters=("Empty",)) == (OK, (), ())
    assert await listed(producer_id_filters=(producer.producer_id,)) == (OK, (), found)
    assert await listed(duration_filter=3_600_000) == (OK, (), ())
    assert await listed(transactional_id_pattern="y|x") == (OK, (), found)
    assert await listed(transactional_id_pattern="(") == (E.INVALID_REGULAR_EXPRESSION, (), ())


async def test_producers_of_no_log(connection: BrokerConnection) -> None:
    missing = await described(connection, TopicPartition("x", 0))
    assert (missing.error_code, missing.active_producers) == (E.UNKNOWN_TOPIC_OR_PARTITION, ())
    assert "x-0" in (missing.error_message or "")
