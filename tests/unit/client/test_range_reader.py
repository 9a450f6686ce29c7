"""A range of offsets to its end, and no further: from our node, and from brokers on a bad day."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lapse.base.errors import CorruptData, ErrorCode, KafkaError
from lapse.base.ids import TopicPartition
from lapse.broker.node import Node
from lapse.client.cluster import Cluster, parse_bootstrap
from lapse.client.connection import ConnectionLost
from lapse.client.range_reader import FetchLimits, OffsetRange, read_range
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.wire.schema.fetch import FetchableTopicResponse, FetchRequest, FetchResponse
from lapse.wire.schema.fetch import PartitionData as Data
from lapse.wire.schema.metadata import MetadataRequest
from tests.support.broker.running import connect, create, produce, running_node
from tests.support.broker.transaction_requests import TransactionalProducer
from tests.support.client.peers import HANG_UP, Peer, in_turn, metadata, running_peers

T0 = TopicPartition("t", 0)
A_BATCH = FetchLimits(partition_bytes_max=1)  # an answer has one batch, however large
BRIEF = FetchLimits(api_timeout_ms=300, retry_backoff_ms=1, retry_backoff_max_ms=5)


def pair(base_offset: int = 0) -> bytes:
    records = [NewRecord(b"k", b"%d" % (base_offset + n)) for n in range(2)]
    return build_batch(records, BatchSpec(base_offset=base_offset))


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    """Ten batches of two records in t-0."""
    async with running_node(tmp_path) as running, await connect(running) as connection:
        await create(running, "t")
        for _ in range(10):
            await produce(connection, "t", (0, pair()))
        yield running


async def read(
    bootstrap: str,
    first: int,
    until: int,
    limits: FetchLimits = A_BATCH,
    *,
    committed: bool = False,
) -> list[int]:
    """Offsets of the records of a range."""
    async with Cluster(parse_bootstrap(bootstrap)) as cluster:
        reading = read_range(cluster, OffsetRange(T0, first, until), committed=committed,
                             limits=limits)  # fmt: skip
        return [r.offset async for one in reading for r in one.records()]


def of(node: Node) -> str:
    address = node.services.address
    return f"{address.host}:{address.port}"


@pytest.mark.parametrize("limits", [A_BATCH, FetchLimits()])
@pytest.mark.parametrize(
    ("first", "until", "offsets"),
    [
        (0, 20, range(20)),
        (3, 7, range(3, 8)),  # batches are whole at the end; at the start what is below is left out
        (0, 0, range(0)),
        (19, 20, range(19, 20)),
    ],
)
async def test_a_range(
    node: Node, first: int, until: int, offsets: range, limits: FetchLimits
) -> None:
    found = await read(of(node), first, until, limits)
    assert found[: len(offsets)] == list(offsets)
    if limits is A_BATCH:
        assert found == list(offsets)


async def test_aborted_transactions_are_left_out_and_their_end_is_an_end(node: Node) -> None:
    async with await connect(node) as connection:
        producer = TransactionalProducer(connection, "id")
        await producer.start()
        await producer.add(T0)
        await producer.send(T0, b"aborted")
        await producer.end(commit=False)
    found = await read(of(node), 18, 22, committed=True)
    assert found == [18, 19]
    assert await read(of(node), 18, 22) == [18, 19, 20]


async def test_offsets_that_are_gone(node: Node) -> None:
    node.services.partitions.get(T0).delete_records(6)
    with pytest.raises(KafkaError) as refused:
        await read(of(node), 2, 20)
    assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert await read(of(node), 6, 20) == list(range(6, 20))


async def test_who_stops_leaves_no_request_behind(node: Node) -> None:
    async with Cluster(parse_bootstrap(of(node))) as cluster:
        reading = read_range(cluster, OffsetRange(T0, 0, 20), committed=False, limits=A_BATCH)
        assert [r.offset for r in (await anext(reading)).records()] == [0, 1]
        await reading.aclose()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        assert not [task for task in others if "_Reader" in repr(task)]


async def test_a_topic_that_was_made_anew_is_another_one(node: Node) -> None:
    async with Cluster(parse_bootstrap(of(node))) as cluster:
        there = (await cluster.topic("t")).topic_id
        for topic_id, found in ((there, 10), (None, 10), (uuid.uuid4(), 0)):
            wanted = OffsetRange(T0, 0, 20, topic_id)
            limits = replace(BRIEF, partition_bytes_max=1)
            reading = read_range(cluster, wanted, committed=False, limits=limits)
            if found:
                assert len([one async for one in reading]) == found
            else:
                with pytest.raises(KafkaError, match="t has another id by now: ") as refused:
                    await anext(reading)
                assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_ID


# --- brokers on a bad day -------------------------------------------------------------------------


def fetched(data: bytes = b"", *, error: int = 0, high_watermark: int = 4, stable: int = 4) -> Any:
    def answer(request: FetchRequest) -> FetchResponse:
        [topic] = request.topics
        one = Data(
            partition_index=0, error_code=error, high_watermark=high_watermark,
            last_stable_offset=stable, records=data or None,
        )  # fmt: skip
        told = FetchableTopicResponse(topic=topic.topic, topic_id=topic.topic_id, partitions=(one,))
        return FetchResponse(responses=(told,))

    return answer


async def from_peer(
    *answers: Any, until: int = 4, committed: bool = False
) -> tuple[list[int], list[FetchRequest]]:
    """What a range of a broker that answers so has, and what it was asked."""
    peer = Peer({FetchRequest: in_turn(*answers)})
    peer.script[MetadataRequest] = metadata({0: peer}, {"t": [0]})
    async with running_peers(peer):
        found = await read(peer.address, 0, until, BRIEF, committed=committed)
        return found, peer.of(FetchRequest)


TWO, MORE = fetched(pair()), fetched(pair(2))


@pytest.mark.parametrize("error", [ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.UNKNOWN_SERVER_ERROR])
async def test_who_has_enough_is_not_told_what_became_of_the_next_request(error: ErrorCode) -> None:
    """It is under way meanwhile, for nobody then."""
    told = asyncio.Event()

    def refused(request: FetchRequest) -> FetchResponse:
        told.set()
        return fetched(error=error)(request)

    peer = Peer({FetchRequest: in_turn(TWO, refused)})
    peer.script[MetadataRequest] = metadata({0: peer}, {"t": [0]})
    async with running_peers(peer), Cluster(parse_bootstrap(peer.address)) as cluster:
        reading = read_range(cluster, OffsetRange(T0, 0, 4), committed=False, limits=BRIEF)
        async with aclosing(reading):
            first = await anext(reading)
            await told.wait()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            await asyncio.wait([task for task in others if "_Reader" in repr(task)])
        assert first.next_offset == 2


async def test_an_answer_without_records_says_that_there_are_none() -> None:
    found, asked = await from_peer(TWO, fetched())
    assert found == [0, 1]
    assert [request.topics[0].partitions[0].fetch_offset for request in asked] == [0, 2]
    assert all(r.max_wait_ms == 0 and r.tombstone_values for r in asked)


@pytest.mark.parametrize("committed", [False, True])
async def test_it_says_nothing_while_the_end_is_not_where_it_was(committed: bool) -> None:
    """A new leader has not heard yet how far its followers are (KIP-207)."""
    behind = fetched(high_watermark=9, stable=3) if committed else fetched(high_watermark=3)
    found, asked = await from_peer(TWO, behind, behind, MORE, committed=committed)
    assert (found, len(asked)) == ([0, 1, 2, 3], 4)
    with pytest.raises(KafkaError, match="ends at 3 for now"):
        await from_peer(TWO, behind, committed=committed)


async def test_what_may_pass_is_tried_again() -> None:
    moved = fetched(error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    throttled = lambda _: FetchResponse(throttle_time_ms=1)  # noqa: E731
    found, asked = await from_peer(moved, lambda _: HANG_UP, TWO, throttled, MORE)
    assert (found, len(asked)) == ([0, 1, 2, 3], 5)


async def test_until_time_is_up() -> None:
    with pytest.raises(KafkaError) as refused:
        await from_peer(fetched(error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with pytest.raises(ConnectionLost):
        await from_peer(lambda _: HANG_UP)
    with pytest.raises(ConnectionLost, match="t-0: no answer in time"):
        await from_peer(lambda _: None)


async def test_a_refusal_is_told_at_once() -> None:
    with pytest.raises(KafkaError) as refused:
        await from_peer(fetched(error=ErrorCode.TOPIC_AUTHORIZATION_FAILED), MORE)
    assert refused.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED


async def test_an_answer_that_does_not_go_on_is_no_end() -> None:
    """Who took it for one would leave records out."""
    with pytest.raises(CorruptData, match="t-0: what was fetched at offset 2 ends before it"):
        await from_peer(TWO, TWO)
