"""A partition's own leader epoch: everything that names one names the same."""

from __future__ import annotations

import pytest

from lapse.base.errors import ErrorCode
from lapse.broker.node import Node
from lapse.client.connection import BrokerConnection
from lapse.records.batch import scan_batches
from lapse.wire.schema.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    TopicRequest,
)
from lapse.wire.schema.fetch import (
    EpochEndOffset,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from lapse.wire.schema.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tests.support.broker.epoch_requests import CURRENT, T0, led_before
from tests.support.broker.running import BY_NAME, batch_of, create, list_offset, produce
from tests.support.broker.transaction_requests import TransactionalProducer

LONG_MS = 60_000
SECONDS_MAX = 10


async def leader_epochs(connection: BrokerConnection) -> tuple[int, int]:
    """By Metadata, by DescribeTopicPartitions."""
    metadata = await connection.request(
        MetadataRequest(topics=(MetadataRequestTopic(name="t"),)), MetadataResponse
    )
    pages = await connection.request(
        DescribeTopicPartitionsRequest(topics=(TopicRequest(name="t"),)),
        DescribeTopicPartitionsResponse,
    )
    return (
        metadata.topics[0].partitions[0].leader_epoch,
        pages.topics[0].partitions[0].leader_epoch,
    )


async def test_clients_are_told_the_epoch_of_the_log(
    node: Node, connection: BrokerConnection
) -> None:
    await create(node, "t")
    assert await leader_epochs(connection) == (0, 0)
    led_before(node)
    assert await leader_epochs(connection) == (CURRENT, CURRENT)
    node.services.partitions._logs.pop(T0)
    assert await leader_epochs(connection) == (-1, -1)


@pytest.mark.parametrize(
    ("timestamp", "epoch"),
    [(-1, 5), (-2, 2), (-3, 5), (-4, 2), (-5, -1), (100, 2), (400, 2), (401, 5), (999, -1)],
)
async def test_an_offset_is_told_with_its_epoch(
    node: Node, connection: BrokerConnection, timestamp: int, epoch: int
) -> None:
    await create(node, "t")
    led_before(node)
    answer = await list_offset(connection, "t", timestamp)
    assert (answer.error_code, answer.leader_epoch) == (0, epoch)


async def test_the_start_has_the_epoch_in_force_there(
    node: Node, connection: BrokerConnection
) -> None:
    await create(node, "t")
    led_before(node)
    log = node.services.partitions.get(T0)
    for start, epoch in ((3, 2), (4, 5), (6, 5)):
        log.delete_records(start)
        answer = await list_offset(connection, "t", -2)
        assert (answer.offset, answer.leader_epoch) == (start, epoch)


async def test_all_that_is_appended_carries_it(node: Node, connection: BrokerConnection) -> None:
    """Records, and markers of transactions; for what coordinators note see `test_state_log`."""
    await create(node, "t")
    led_before(node)
    log = node.services.partitions.get(T0)
    start = log.log_end_offset
    await produce(connection, "t", (0, batch_of(b"a")))
    producer = TransactionalProducer(connection, "a")
    await producer.start()
    await producer.add(T0)
    assert await producer.send(T0, b"b") == ErrorCode.NONE
    with node.services.purgatory.watch([T0]) as marker:
        assert await producer.end(commit=True) == ErrorCode.NONE
        await marker.wait(1, SECONDS_MAX)  # it may come after the answer
    rows = scan_batches(log.read(start, 1 << 20).read(), "t")
    assert rows["leader_epoch"].tolist() == [CURRENT] * 3


# --- who has another log -------------------------------------------------------------------------


async def fetch_after(
    connection: BrokerConnection, offset: int, epoch: int, *, current: int = -1
) -> PartitionData:
    partition = FetchPartition(
        partition=0, current_leader_epoch=current, fetch_offset=offset, last_fetched_epoch=epoch,
        partition_max_bytes=1 << 20,
    )  # fmt: skip
    topics = (FetchTopic(topic="t", partitions=(partition,)),)
    request = FetchRequest(max_wait_ms=LONG_MS, min_bytes=1, topics=topics)
    answer = await connection.request(request, FetchResponse, version=BY_NAME)
    return answer.responses[0].partitions[0]


@pytest.mark.parametrize(
    ("offset", "epoch", "diverging"),
    [(3, 2, None), (4, 2, None), (5, 5, None), (5, 2, (2, 4)), (4, 3, (2, 4)), (9, 5, (5, 6))],
)
async def test_who_left_our_log_is_told_where(
    node: Node, connection: BrokerConnection, offset: int, epoch: int,
    diverging: tuple[int, int] | None,
) -> None:  # fmt: skip
    """KIP-595, at once however long it would wait; the log start may be above all of its own."""
    await create(node, "t")
    led_before(node)
    got = await fetch_after(connection, offset, epoch, current=CURRENT)
    assert got.error_code == 0
    ends = (-1, -1) if diverging is None else diverging
    assert got.diverging_epoch == EpochEndOffset(epoch=ends[0], end_offset=ends[1])
    assert bool(got.records) == (diverging is None)
    assert got.high_watermark == 6


async def test_an_epoch_nobody_knows_and_what_is_gone_are_out_of_range(
    node: Node, connection: BrokerConnection
) -> None:
    await create(node, "t")
    led_before(node)
    node.services.partitions.get(T0).delete_records(3)
    for offset, epoch in ((5, 6), (2, 2)):
        got = await fetch_after(connection, offset, epoch)
        assert got.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize(
    ("current", "error"),
    [(CURRENT - 1, ErrorCode.FENCED_LEADER_EPOCH), (CURRENT + 1, ErrorCode.UNKNOWN_LEADER_EPOCH)],
)
async def test_another_leader_epoch_reads_nothing(
    node: Node, connection: BrokerConnection, current: int, error: ErrorCode
) -> None:
    await create(node, "t")
    led_before(node)
    got = await fetch_after(connection, 0, -1, current=current)
    assert got.error_code == error
