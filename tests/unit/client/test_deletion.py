"""KIP-107 from the client: every leader for itself, and never more than was asked for."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from lapse.base.errors import ConfigError, ErrorCode
from lapse.base.ids import TopicPartition
from lapse.broker.node import Node
from lapse.client.admin import Admin
from lapse.client.cluster import Cluster, parse_bootstrap
from lapse.client.deletion import delete_records_before
from lapse.client.producer import Producer
from lapse.client.settings import DeleteRecordsResult
from lapse.wire.schema.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from lapse.wire.schema.list_offsets import (
    LATEST_TIMESTAMP,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from lapse.wire.schema.metadata import MetadataRequest, MetadataResponse
from tests.support.broker.running import create, running_node
from tests.support.client.peers import HANG_UP, Peer, in_turn, metadata, running_peers

T0, T1, T2 = (TopicPartition("t", n) for n in range(3))


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with running_node(tmp_path) as running:
        yield running


def address(node: Node) -> str:
    return f"{node.services.address.host}:{node.services.address.port}"


def at(ms: int) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=ms)


async def test_by_offset_by_time_and_to_the_end(node: Node) -> None:
    await create(node, "t", partitions=3, message_timestamp_before_max_ms=str((1 << 63) - 1))
    async with Producer(address(node)) as producer:
        for n in range(10):
            for partition in range(3):
                await producer.send("t", b"k", b"v", create_time=1000 * n, partition=partition)
    async with await Admin.open(address(node)) as admin:
        first = await admin.delete_records_before({T0: 4, T1: at(6000), T2: -1})
        assert first == {
            T0: DeleteRecordsResult(4), T1: DeleteRecordsResult(6), T2: DeleteRecordsResult(10),
        }  # fmt: skip
        # A moment between two records, and one after all of them.
        then = await admin.delete_records_before({T0: at(6001), T1: at(60_000)})
        assert then == {T0: DeleteRecordsResult(7), T1: DeleteRecordsResult(10)}


async def test_refusals_are_each_partitions_own(node: Node) -> None:
    await create(node, "t", partitions=2)
    nowhere, missing = TopicPartition("nowhere", 0), TopicPartition("t", 7)
    async with await Admin.open(address(node)) as admin:
        done = await admin.delete_records_before({T0: -1, T1: 5, nowhere: 0, missing: at(5)})
        with pytest.raises(ConfigError, match="time zone"):
            admin.delete_records_before({T0: datetime(2020, 1, 1)})  # noqa: DTZ001
        with pytest.raises(ConfigError, match=f"t-0: offset {1 << 63}: allowed"):
            admin.delete_records_before({T1: 1, T0: 1 << 63})
        with pytest.raises(ConfigError, match="t-0: offset"):
            await admin.delete_records({T0: -(1 << 64)})
    assert done[T0] == DeleteRecordsResult(0)
    codes = {p: r.error.code for p, r in done.items() if r.error is not None}
    assert codes == {
        T1: ErrorCode.OFFSET_OUT_OF_RANGE,
        nowhere: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        missing: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert {r.low_watermark for p, r in done.items() if p != T0} == {-1}


# --- several leaders, some of them unwell ---------------------------------------------------------


def deletes(code: int = 0) -> Callable[[DeleteRecordsRequest], DeleteRecordsResponse]:
    """What it is asked is done, or refused."""

    def answer(request: DeleteRecordsRequest) -> DeleteRecordsResponse:
        return DeleteRecordsResponse(
            topics=tuple(
                DeleteRecordsTopicResult(
                    name=topic.name,
                    partitions=tuple(
                        DeleteRecordsPartitionResult(
                            partition_index=p.partition_index,
                            low_watermark=-1 if code else p.offset,
                            error_code=code,
                        )
                        for p in topic.partitions
                    ),
                )
                for topic in request.topics
            )
        )

    return answer


def peers(*scripts: dict[type[Any], Any]) -> list[Peer]:
    """Brokers 0, 1, … each the leader of the partition of its number."""
    made = [Peer(dict(script)) for script in scripts]
    who = metadata(dict(enumerate(made)), {"t": list(range(len(made)))})
    for peer in made:
        peer.script[MetadataRequest] = who
    return made


async def test_a_silent_leader_times_out_for_its_own_partitions_only() -> None:
    some = peers({DeleteRecordsRequest: deletes()}, {}, {DeleteRecordsRequest: deletes()})
    async with running_peers(*some), await Admin.open(some[0].address, 600) as admin:
        started = asyncio.get_running_loop().time()
        done = await admin.delete_records_before({T0: 3, T1: 4, T2: 5})
        took = asyncio.get_running_loop().time() - started
    assert (done[T0], done[T2]) == (DeleteRecordsResult(3), DeleteRecordsResult(5))
    assert done[T1].low_watermark == -1
    assert done[T1].error is not None
    assert done[T1].error.code is ErrorCode.REQUEST_TIMED_OUT
    assert "t-1" in str(done[T1].error)
    assert took < 2
    assert len(some[1].of(DeleteRecordsRequest)) == 1
    assert some[1].of(DeleteRecordsRequest)[0].timeout_ms < 600


async def test_who_does_not_lead_is_asked_no_more_and_the_leader_is() -> None:
    """D-14."""
    some = peers({DeleteRecordsRequest: deletes()}, {DeleteRecordsRequest: deletes(6)})
    moved = metadata(dict(enumerate(some)), {"t": [0, 0]})
    some[0].script[MetadataRequest] = in_turn(some[0].script[MetadataRequest], moved)
    async with running_peers(*some), await Admin.open(some[0].address, 5000) as admin:
        done = await admin.delete_records_before({T1: 4})
    assert done == {T1: DeleteRecordsResult(4)}
    assert len(some[0].of(DeleteRecordsRequest)) == 1


@pytest.mark.parametrize(("before", "calls"), [(4, 2), (-1, 1)])
async def test_a_call_that_may_have_been_done_is_repeated_only_with_an_offset(
    before: int, calls: int
) -> None:
    """D-14; -1 would delete what was appended since."""
    (one,) = some = peers({})
    one.script[DeleteRecordsRequest] = in_turn(lambda _: HANG_UP, deletes())
    async with running_peers(*some), await Admin.open(one.address, 5000) as admin:
        done = await admin.delete_records_before({T0: before})
    assert len(one.of(DeleteRecordsRequest)) == calls
    if before < 0:
        assert done[T0].low_watermark == -1
        assert done[T0].error is not None
        assert done[T0].error.code is ErrorCode.NETWORK_EXCEPTION
    else:
        assert done == {T0: DeleteRecordsResult(4)}


async def test_a_topic_made_anew_before_a_call_is_repeated_keeps_its_records() -> None:
    """The id is asked before each call, of the leader."""
    judged, other = uuid.UUID(int=1), uuid.UUID(int=2)
    (one,) = some = peers({})
    one.script[DeleteRecordsRequest] = in_turn(lambda _: HANG_UP, deletes())
    is_anew = False

    def who(request: MetadataRequest) -> MetadataResponse:
        now = other if is_anew or len(one.of(DeleteRecordsRequest)) else judged
        return metadata({0: one}, {"t": [0]}, now)(request)

    one.script[MetadataRequest] = who
    async with running_peers(*some):
        for calls in (1, 1):  # the second time it is another from the first
            async with Cluster(parse_bootstrap(one.address)) as cluster:
                done = await delete_records_before(cluster, {T0: 4}, 5000, {"t": judged})
            assert done[T0].low_watermark == -1
            assert done[T0].error is not None
            assert done[T0].error.code is ErrorCode.UNKNOWN_TOPIC_ID
            assert len(one.of(DeleteRecordsRequest)) == calls
            is_anew = True
        async with Cluster(parse_bootstrap(one.address)) as cluster:
            done = await delete_records_before(cluster, {T0: 4}, 5000, {"t": other})
    assert done == {T0: DeleteRecordsResult(4)}


async def test_what_is_appended_while_we_ask_for_a_time_stays() -> None:
    """The log ends at 8 when asked; then a record comes, and the time is later than all."""
    (one,) = some = peers({DeleteRecordsRequest: deletes()})

    def offsets(request: ListOffsetsRequest) -> ListOffsetsResponse:
        ((asked,),) = (topic.partitions for topic in request.topics)
        offset = 8 if asked.timestamp == LATEST_TIMESTAMP else 9
        found = ListOffsetsPartitionResponse(partition_index=0, error_code=0, offset=offset)
        return ListOffsetsResponse(
            topics=(ListOffsetsTopicResponse(name="t", partitions=(found,)),), by=request.by
        )

    one.script[ListOffsetsRequest] = offsets
    async with running_peers(*some), await Admin.open(one.address, 5000) as admin:
        done = await admin.delete_records_before({T0: at(5)})
    assert done == {T0: DeleteRecordsResult(8)}
    asked = [r.topics[0].partitions[0].timestamp for r in one.of(ListOffsetsRequest)]
    assert asked == [LATEST_TIMESTAMP, 5]
