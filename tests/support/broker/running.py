"""A node in the test's own event loop, and short ways to ask it things."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from lapse.base.clock import Clock, SystemClock
from lapse.base.config import broker_config
from lapse.base.fs import Fs, RealFs
from lapse.broker.node import Node
from lapse.client.admin import Admin
from lapse.client.connection import BrokerConnection
from lapse.log.env import LogEnv
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.wire.declaration import ZERO_UUID
from lapse.wire.schema.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from lapse.wire.schema.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from lapse.wire.schema.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

BY_NAME = 12  # the newest version of Produce and Fetch that names topics


# By tools/run_tests, for the tier that runs brokers without the fast path.
FAST = os.environ.get("LAPSE_TEST_FAST_REQUESTS")
AS_ASKED = {} if FAST is None else {"lapse.fast.requests": FAST}


@asynccontextmanager
async def running_node(
    data: Path,
    settings: Mapping[str, str] | None = None,
    *,
    fs: Fs | None = None,
    clock: Clock | None = None,
) -> AsyncIterator[Node]:
    """Start over `data`, stop at the end; without HTTP unless the settings say otherwise."""
    properties = {
        "log.dirs": str(data),
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "lapse.http.port": "-1",
        **AS_ASKED,
        **(settings or {}),
    }
    node = Node(broker_config(properties), LogEnv(fs or RealFs(), clock or SystemClock()))
    try:
        await node.start()
        yield node
    finally:
        await node.stop()


async def connect(node: Node) -> BrokerConnection:
    """A new connection."""
    return await BrokerConnection.open(node.services.address.host, node.services.address.port)


async def until(holds: Callable[[], object]) -> None:
    """Wait for what nobody is told of, a counter for one."""
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def create(node: Node, name: str, partitions: int = 1, **configs: str) -> None:
    """A topic; underscores in setting names stand for dots."""
    async with await connect(node) as connection:
        named = {key.replace("_", "."): value for key, value in configs.items()}
        await Admin(connection).create_topic(name, partitions=partitions, configs=named)


def batch_of(*values: bytes, spec: BatchSpec | None = None) -> bytes:
    """Records k0, k1, … with these values."""
    records = [NewRecord(b"k%d" % n, value) for n, value in enumerate(values)]
    return build_batch(records, spec)


async def produce(
    connection: BrokerConnection,
    topic: str,
    *batches: tuple[int, bytes],
    acks: int = -1,
    version: int | None = None,
    topic_id: uuid.UUID = ZERO_UUID,
) -> Sequence[PartitionProduceResponse]:
    """Send (partition, batch) pairs of one topic; answers in the same order."""
    request = produce_request(topic, *batches, acks=acks, topic_id=topic_id)
    answer = await connection.request(
        request, ProduceResponse, version=BY_NAME if version is None else version
    )
    (only,) = answer.responses
    by_id = version is not None and version > BY_NAME
    assert (only.name, only.topic_id) == (("", topic_id) if by_id else (topic, ZERO_UUID))
    return only.partition_responses


def produce_request(
    topic: str, *batches: tuple[int, bytes], acks: int = -1, topic_id: uuid.UUID = ZERO_UUID
) -> ProduceRequest:
    """A Produce of one topic; the name is for versions up to BY_NAME, the id for later ones."""
    data = tuple(PartitionProduceData(index=n, records=batch) for n, batch in batches)
    named = TopicProduceData(name=topic, topic_id=topic_id, partition_data=data)
    return ProduceRequest(acks=acks, timeout_ms=1000, topic_data=(named,))


def fetch_request(
    topic: str,
    *wanted: tuple[int, int],
    partition_max_bytes: int = 1 << 20,
    **fields: Any,
) -> FetchRequest:
    """A Fetch of (partition, offset) pairs of one topic, by name."""
    asked = tuple(
        FetchPartition(partition=n, fetch_offset=offset, partition_max_bytes=partition_max_bytes)
        for n, offset in wanted
    )
    defaults: dict[str, Any] = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 24}
    fields = {**defaults, **fields}
    return FetchRequest(
        replica_id=-1, topics=(FetchTopic(topic=topic, partitions=asked),), **fields
    )


async def fetch(
    connection: BrokerConnection, topic: str, *wanted: tuple[int, int], **fields: Any
) -> Sequence[PartitionData]:
    """Fetch and give back what each partition has."""
    request = fetch_request(topic, *wanted, **fields)
    answer = await connection.request(request, FetchResponse, version=BY_NAME)
    assert answer.error_code == 0
    (only,) = answer.responses
    return only.partitions


async def list_offset(
    connection: BrokerConnection,
    topic: str,
    timestamp: int,
    *,
    partition: int = 0,
    version: int | None = None,
) -> ListOffsetsPartitionResponse:
    """Look one timestamp up."""
    asked = ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
    request = ListOffsetsRequest(
        replica_id=-1, topics=(ListOffsetsTopic(name=topic, partitions=(asked,)),)
    )
    answer = await connection.request(request, ListOffsetsResponse, version=version)
    return answer.topics[0].partitions[0]
