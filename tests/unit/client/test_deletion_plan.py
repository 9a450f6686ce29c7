"""What a deletion would come to, asked of our broker: exact, and with every group that lags."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from lapse.base.errors import ErrorCode, KafkaError
from lapse.base.ids import TopicPartition
from lapse.broker.node import Node
from lapse.client.cluster import Address, Cluster
from lapse.client.connection import ConnectionLost
from lapse.client.deletion_plan import Extent, Judged, extent, judge, objections
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.layout import Codec
from tests.support.broker.running import connect, create, produce, running_node
from tests.support.client.commits import commit

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
NEVER = {"message_timestamp_before_max_ms": str((1 << 63) - 1)}


def at(ms: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    """Partition 0: offsets 0-9 in five batches at 1000, 2000 …, three segments of 4, 4 and 2."""
    async with running_node(tmp_path) as running, await connect(running) as connection:
        await create(running, "t", 2, **NEVER)
        log = running.services.partitions.get(T0)
        for n in range(5):
            records = [NewRecord(b"k", b"v", 1000 * (2 * n + m + 1)) for m in (0, 1)]
            await produce(connection, "t", (0, build_batch(records, BatchSpec(codec=Codec.GZIP))))
            if n in {1, 3}:
                log.roll(running.services.clock.now_ms())
        yield running


def cluster_of(node: Node) -> Cluster:
    address = node.services.address
    return Cluster([Address(address.host, address.port)])


async def looked(node: Node, before: int | datetime) -> tuple[Judged, Extent]:
    async with cluster_of(node) as cluster:
        judged, ids = await judge(cluster, {T0: before}, 5000)
        assert ids == {"t": node.services.topics.image.topics["t"].topic_id}
        return judged[T0], await extent(cluster, T0, judged[T0])


@pytest.mark.parametrize(
    ("before", "until", "segments", "times"),
    [
        (0, 0, 0, (-1, -1)),
        (3, 3, 0, (1000, 3000)),
        (4, 4, 1, (1000, 4000)),
        (9, 9, 2, (1000, 9000)),
        (-1, 10, 3, (1000, 10_000)),
        (at(5000), 4, 1, (1000, 4000)),
        (at(1), 0, 0, (-1, -1)),
        (at(1 << 40), 10, 3, (1000, 10_000)),
    ],
)
async def test_what_would_go_is_what_then_goes(
    node: Node,
    before: int | datetime,
    until: int,
    segments: int,
    times: tuple[int, int],
) -> None:
    log = node.services.partitions.get(T0)
    judged, found = await looked(node, before)
    assert (judged.until, judged.start, judged.end) == (until, 0, 10)
    assert judged.goes == (until > 0)
    assert (found.records, found.segments) == (until, segments)
    assert (found.first_ms, found.last_ms) == times
    assert abs(found.size - until * log.size_bytes // 10) <= 10  # of equal batches, by records
    had = len(log.segments)
    log.delete_records(until)
    left = len([segment for segment in log.segments if segment.size])
    assert had - left == segments


async def test_what_is_deleted_already_does_not_count(node: Node) -> None:
    node.services.partitions.get(T0).delete_records(3)
    judged, found = await looked(node, 5)
    assert (judged.start, found.records, found.first_ms) == (3, 2, 4000)


async def test_a_marker_is_no_record_and_an_untimed_record_has_no_time(node: Node) -> None:
    async with await connect(node) as connection:
        spec = BatchSpec(producer_id=1, producer_epoch=0, base_sequence=0)
        untimed = build_batch([NewRecord(b"k", b"v", -1)], spec)
        await produce(connection, "t", (1, untimed))
    log = node.services.partitions.get(T1)
    log.append_marker(1, 0, False, 0, leader_epoch=0, now_ms=5)
    async with cluster_of(node) as cluster:
        judged, _ = await judge(cluster, {T1: -1}, 5000)
        found = await extent(cluster, T1, judged[T1])
    assert (judged[T1].until, found.records, found.first_ms, found.last_ms) == (2, 1, -1, -1)


async def test_every_group_that_stands_below_is_named(node: Node) -> None:
    async with await connect(node) as connection:
        await commit(connection, "behind", {T0: 3})
        await commit(connection, "there", {T0: 4, T1: 0})
        await commit(connection, "elsewhere", {T1: 0})
    judged, _ = await looked(node, 4)
    assert judged.standing == {"behind": 3}
    assert objections(judged) == ["group behind stands at 3, below 4"]
    judged, _ = await looked(node, 3)
    assert judged.standing == {}
    node.services.partitions.get(T0).delete_records(4)
    judged, _ = await looked(node, 4)
    assert not judged.standing  # nothing goes that is not gone


async def test_what_cannot_be_told_is_each_partitions_own(node: Node) -> None:
    nowhere = TopicPartition("nowhere", 0)
    async with cluster_of(node) as cluster:
        judged, ids = await judge(cluster, {T0: 11, T1: -2, nowhere: 0}, 5000)
    codes = {p: one.error.code for p, one in judged.items() if one.error is not None}
    assert codes == {
        T0: ErrorCode.OFFSET_OUT_OF_RANGE, T1: ErrorCode.OFFSET_OUT_OF_RANGE,
        nowhere: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }  # fmt: skip
    assert not any(one.goes for one in judged.values())
    assert set(ids) == {"t"}
    assert "nowhere" not in node.services.topics.image.topics


async def test_a_group_of_which_nobody_can_tell_counts_as_behind() -> None:
    error = KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED, "not for you")
    judged = Judged(5, 0, 9, {"g": error})
    assert objections(judged) == [f"group g: {error}"]


async def test_without_a_broker_nothing_is_told() -> None:
    async with Cluster([Address("127.0.0.1", 1)]) as cluster:
        with pytest.raises(ConnectionLost):
            await asyncio.wait_for(judge(cluster, {T0: 1}, 1000), 20)
