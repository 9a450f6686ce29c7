"""ListOffsets: special timestamps, timestamps, and which version may use which (T-17)."""

from __future__ import annotations

import pytest

from lapse.base.errors import ErrorCode
from lapse.base.ids import TopicPartition
from lapse.broker.node import Node
from lapse.client.connection import BrokerConnection
from lapse.metadata.partition_states import PartitionState
from lapse.records.builder import NewRecord, build_batch
from lapse.wire.schema.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tests.support.broker.running import create, list_offset, produce

T0 = TopicPartition("t", 0)
TIMES = ((100, 200), (500, 300), (400,))


async def filled(node: Node, connection: BrokerConnection) -> None:
    """Produce offsets 0 to 4 at 100, 200, 500, 300, 400."""
    await create(node, "t")
    for times in TIMES:
        records = [NewRecord(b"k", b"v", timestamp=t) for t in times]
        await produce(connection, "t", (0, build_batch(records)))


@pytest.mark.parametrize(
    ("timestamp", "offset", "found"),
    [
        (-1, 5, -1),
        (-2, 0, -1),
        (-3, 2, 500),
        (-4, 0, -1),
        (-5, -1, -1),
        (0, 0, 100),
        (101, 1, 200),
        (201, 2, 500),
        (500, 2, 500),
        (501, -1, -1),
    ],
)
async def test_where(
    node: Node, connection: BrokerConnection, timestamp: int, offset: int, found: int
) -> None:
    await filled(node, connection)
    answer = await list_offset(connection, "t", timestamp)
    assert (answer.error_code, answer.offset, answer.timestamp) == (0, offset, found)
    assert answer.leader_epoch == (-1 if offset < 0 else 0)


@pytest.mark.parametrize(
    ("timestamp", "oldest"), [(-1, 1), (-2, 1), (-3, 7), (-4, 8), (-5, 9), (-6, None)]
)
async def test_since_which_version(
    node: Node, connection: BrokerConnection, timestamp: int, oldest: int | None
) -> None:
    await filled(node, connection)
    for version in range(1, 11):
        answer = await list_offset(connection, "t", timestamp, version=version)
        served = oldest is not None and version >= oldest
        assert answer.error_code == (0 if served else ErrorCode.UNSUPPORTED_VERSION), version


async def test_an_empty_log_has_no_greatest_timestamp(
    node: Node, connection: BrokerConnection
) -> None:
    await create(node, "t")
    for timestamp in (-3, 0):
        answer = await list_offset(connection, "t", timestamp)
        assert (answer.error_code, answer.offset) == (0, -1)


async def test_a_record_without_a_time_is_never_the_one_with_the_greatest(
    node: Node, connection: BrokerConnection
) -> None:
    """T-19: the batch's timestamps are below the log start; its remaining records have none."""
    await create(node, "t")
    records = [NewRecord(b"k", b"v", timestamp=t) for t in (500, -1, -1)]
    await produce(connection, "t", (0, build_batch(records)))
    answer = await list_offset(connection, "t", -3)
    assert (answer.error_code, answer.offset, answer.timestamp) == (0, 0, 500)
    node.services.partitions.get(TopicPartition("t", 0)).delete_records(1)
    answer = await list_offset(connection, "t", -3)
    assert (answer.error_code, answer.offset, answer.timestamp) == (0, -1, -1)


async def test_errors_are_per_partition(node: Node, connection: BrokerConnection) -> None:
    await filled(node, connection)
    requested = tuple(
        ListOffsetsPartition(partition_index=n, timestamp=-1, current_leader_epoch=epoch)
        for n, epoch in ((0, -1), (1, -1), (3, -1), (3, -1))
    )
    request = ListOffsetsRequest(
        replica_id=-1, topics=(ListOffsetsTopic(name="t", partitions=requested),)
    )
    answer = await connection.request(request, ListOffsetsResponse)
    assert [p.error_code for p in answer.topics[0].partitions] == [
        0,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
    ]


# --- v0, for clients from before 0.10.1 -----------------------------------------------------------


async def old_style(
    connection: BrokerConnection, *requested: ListOffsetsPartition
) -> list[tuple[int, tuple[int, ...]]]:
    """(error, offsets) of each requested partition."""
    request = ListOffsetsRequest(
        replica_id=-1, topics=(ListOffsetsTopic(name="t", partitions=requested),)
    )
    answer = await connection.request(request, ListOffsetsResponse, version=0)
    return [(p.error_code, p.old_style_offsets) for p in answer.topics[0].partitions]


def at(timestamp: int, count_max: int = 10, partition: int = 0) -> ListOffsetsPartition:
    return ListOffsetsPartition(
        partition_index=partition, timestamp=timestamp, max_num_offsets=count_max
    )


async def test_old_style(node: Node, connection: BrokerConnection) -> None:
    """Segments begin at 0, 2 and 4; a request may name a partition any number of times."""
    await create(node, "t", internal_segment_bytes="80")
    before_ms = node.services.clock.now_ms() - 1
    for times in TIMES:
        await produce(
            connection, "t", (0, build_batch([NewRecord(b"k", b"v", timestamp=t) for t in times]))
        )
    after_ms = node.services.clock.now_ms() + 60_000
    expected = {
        at(-1): (5, 4, 2, 0),
        at(-1, 1): (5,),
        at(-1, 0): (),
        at(-2): (0,),
        at(-2, 0): (),
        at(-3): (),
        at(before_ms): (),
        at(after_ms, 2): (5, 4),
    }
    found = await old_style(connection, *expected)
    assert found == [(0, offsets) for offsets in expected.values()]


async def test_old_style_errors(node: Node, connection: BrokerConnection) -> None:
    await create(node, "t")
    assert await old_style(connection, at(-1, partition=1), at(-1, -1), at(-2)) == [
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ()),
        (ErrorCode.INVALID_REQUEST, ()),
        (0, (0,)),
    ]


@pytest.mark.parametrize(
    ("timestamp", "code", "offset"),
    [
        (-2, ErrorCode.NONE, 0),
        (-4, ErrorCode.NONE, 0),
        (150, ErrorCode.NONE, 1),  # below what it knows to be committed
        (450, ErrorCode.OFFSET_NOT_AVAILABLE, -1),  # the record at 2 has it
        (600, ErrorCode.OFFSET_NOT_AVAILABLE, -1),
        (-1, ErrorCode.OFFSET_NOT_AVAILABLE, -1),
        (-3, ErrorCode.OFFSET_NOT_AVAILABLE, -1),
    ],
)
async def test_a_new_leader_says_what_it_knows_for_certain(
    node: Node, connection: BrokerConnection, timestamp: int, code: ErrorCode, offset: int
) -> None:
    """KIP-207: it may not have heard yet how far the high watermark was. Kafka says these, too."""
    await filled(node, connection)
    me, partitions = node.services.config.node_id, node.services.partitions
    state, topic_id = PartitionState((me, 2), (me, 2), me, 1), partitions.get(T0).topic_id
    partitions.set_states({T0: state}, {T0: 5}, {"t": topic_id})
    partitions.get(T0).high_watermark = 2
    answer = await list_offset(connection, "t", timestamp)
    assert (answer.error_code, answer.offset) == (code, offset)
