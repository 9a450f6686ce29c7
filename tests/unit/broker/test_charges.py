"""Clients over their quotas are told so, and wait."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from lapse.broker.charges import Stopwatch
from lapse.broker.node import Node
from lapse.broker.quotas import (
    CLIENT_ID,
    CONSUMER_BYTE_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
)
from lapse.client.connection import BrokerConnection
from lapse.testing.clock import ManualClock
from lapse.wire.schema.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from lapse.wire.schema.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tests.unit.broker.running import batch_of, connect, create, running_node

BATCH = batch_of(bytes(2000))
EVERYBODY = ((USER, None),)
CLIENTS = ((CLIENT_ID, None),)


async def produce(connection: BrokerConnection) -> ProduceResponse:
    data = PartitionProduceData(index=0, records=BATCH)
    topic = TopicProduceData(name="t", partition_data=(data,))
    request = ProduceRequest(transactional_id=None, acks=-1, timeout_ms=1000, topic_data=(topic,))
    return await connection.request(request, ProduceResponse)


async def fetch(node: Node, connection: BrokerConnection, replica_id: int = -1) -> FetchResponse:
    topic = node.services.topics.image.topics["t"]
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    asked = FetchTopic(topic="t", topic_id=topic.topic_id, partitions=(partition,))
    request = FetchRequest(
        replica_id=replica_id, max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, isolation_level=0,
        session_id=0, session_epoch=-1, topics=(asked,), forgotten_topics_data=(), rack_id="",
    )  # fmt: skip
    return await connection.request(request, FetchResponse)


async def test_a_producer_over_its_quota_is_told_and_waits(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, await connect(node) as connection:
        await create(node, "t", 1)
        assert (await produce(connection)).throttle_time_ms == 0
        await node.services.quotas.alter(EVERYBODY, {PRODUCER_BYTE_RATE: len(BATCH) // 10})
        first = await produce(connection)  # is within ten seconds' worth, but for a little
        assert first.responses[0].partition_responses[0].error_code == 0
        assert 1 <= first.throttle_time_ms <= 5000
        began = time.monotonic()
        await fetch(node, connection)
        assert time.monotonic() - began >= first.throttle_time_ms / 1000 - 0.05


async def test_a_fetch_over_its_quota_answers_nothing(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, await connect(node) as connection:
        await create(node, "t", 1)
        await produce(connection)
        assert (await fetch(node, connection)).responses
        await node.services.quotas.alter(CLIENTS, {CONSUMER_BYTE_RATE: len(BATCH) // 10 - 5})
        throttled = await fetch(node, connection)
        assert (throttled.responses, throttled.throttle_time_ms > 0) == ((), True)
        await node.services.quotas.alter(CLIENTS, {CONSUMER_BYTE_RATE: float(len(BATCH))})
        again = await fetch(node, connection)  # what it did not get was not counted
        assert (bool(again.responses), again.throttle_time_ms) == (True, 0)


async def test_time_is_counted_as_a_percentage(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, await connect(node) as connection:
        await create(node, "t", 1)
        await node.services.quotas.alter(EVERYBODY, {REQUEST_PERCENTAGE: 1e-6})
        done = await produce(connection)
        assert done.responses[0].partition_responses[0].error_code == 0
        assert done.throttle_time_ms == 1000


async def test_waiting_ends_with_the_connection(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        await create(node, "t", 1)
        await node.services.quotas.alter(EVERYBODY, {PRODUCER_BYTE_RATE: 1})
        async with await connect(node) as connection:
            assert (await produce(connection)).throttle_time_ms > 100_000
        began = time.monotonic()
    assert time.monotonic() - began < 60  # the node stopped


async def test_a_stopwatch_counts_work_and_no_waiting() -> None:
    clock = ManualClock(0)

    async def work() -> str:
        clock.advance(3000)
        await asyncio.sleep(0.01)
        clock.advance(4000)
        return "done"

    async def meanwhile() -> None:
        await asyncio.sleep(0)
        clock.advance(100_000)

    watch = Stopwatch(clock)
    answer, _ = await asyncio.gather(_run(watch, work()), meanwhile())
    assert (answer, round(watch.seconds, 3)) == ("done", 7.0)


async def _run(watch: Stopwatch, work) -> object:  # type: ignore[no-untyped-def]
    return await watch.run(work)


async def test_a_stopwatch_passes_errors_and_cancellation_on() -> None:
    seen = []

    async def fails() -> None:
        raise ValueError

    async def waits() -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    with pytest.raises(ValueError, match=r"^$"):
        await Stopwatch(ManualClock(0)).run(fails())
    task = asyncio.create_task(_run(Stopwatch(ManualClock(0)), waits()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["cancelled"]
