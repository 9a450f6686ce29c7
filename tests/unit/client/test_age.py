"""What is older for certain, where a broker that is not ours cannot tell."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from lapse.base.errors import ErrorCode, KafkaError
from lapse.base.ids import TopicPartition
from lapse.client.age import older_until
from lapse.client.cluster import Cluster, parse_bootstrap
from lapse.client.offsets import By
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.wire.schema.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from lapse.wire.schema.list_offsets import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from lapse.wire.schema.metadata import MetadataRequest
from tests.support.client.peers import Peer, metadata, running_peers

T0 = TopicPartition("t", 0)
ENDS = {EARLIEST_TIMESTAMP: 1, LATEST_TIMESTAMP: 5}


def offsets(request: ListOffsetsRequest) -> ListOffsetsResponse:
    """Kafka's answers: offsets 1 to 4, and nothing at or after any time (T-18)."""
    ((asked,),) = (topic.partitions for topic in request.topics)
    found = ListOffsetsPartitionResponse(
        partition_index=0, error_code=0, offset=ENDS.get(asked.timestamp, -1)
    )
    return ListOffsetsResponse(topics=(ListOffsetsTopicResponse(name="t", partitions=(found,)),))


@pytest.mark.parametrize(
    ("times", "cutoff_ms", "until"),
    [
        ((10, 20, 30, 40, 50, 60), 100, 5),  # what came meanwhile stays
        ((10, 20, -1, 40, 50, 60), 100, 2),
        ((-1, 20, 30, 40, 50, 60), 100, 5),  # deleted before: not asked for
        ((10, 20, 30, 40, 50, 60), 31, 3),  # whatever Kafka's lookup says
    ],
)
async def test_another_brokers_records_are_read(
    times: tuple[int, ...], cutoff_ms: int, until: int
) -> None:
    (one,) = peers = [Peer({ListOffsetsRequest: offsets})]
    data = b"".join(
        build_batch([NewRecord(b"k", b"v", time)], BatchSpec(base_offset=n))
        for n, time in enumerate(times)
    )

    def fetch(request: FetchRequest) -> FetchResponse:
        (topic,) = request.topics
        offset = topic.partitions[0].fetch_offset
        assert offset == 1
        part = PartitionData(
            partition_index=0, error_code=0, high_watermark=len(times), records=data
        )
        return FetchResponse(
            responses=(
                FetchableTopicResponse(
                    topic=topic.topic, topic_id=topic.topic_id, partitions=(part,)
                ),
            )
        )

    one.script[FetchRequest] = fetch
    one.script[MetadataRequest] = metadata({0: one}, {"t": [0]})
    moment = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=cutoff_ms)
    async with running_peers(*peers), Cluster(parse_bootstrap(one.address)) as cluster:
        connection = await cluster.leader_connection(T0)
        deadline = asyncio.get_running_loop().time() + 5
        assert await older_until(cluster, connection, {T0: moment}, deadline) == {T0: until}


async def test_another_broker_has_no_append_times() -> None:
    (one,) = peers = [Peer({ListOffsetsRequest: offsets})]
    one.script[MetadataRequest] = metadata({0: one}, {"t": [0]})
    moment = datetime.fromtimestamp(0, UTC)
    async with running_peers(*peers), Cluster(parse_bootstrap(one.address)) as cluster:
        connection = await cluster.leader_connection(T0)
        deadline = asyncio.get_running_loop().time() + 5
        with pytest.raises(KafkaError, match="append times") as refused:
            await older_until(cluster, connection, {T0: moment}, deadline, By.APPEND)
    assert refused.value.code is ErrorCode.UNSUPPORTED_VERSION
