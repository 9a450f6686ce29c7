"""What a task of the writing source does, at a running node; without Spark."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, StringType, StructType

from lapse.base.errors import ConfigError, ErrorCode, KafkaError
from lapse.base.ids import TopicPartition
from lapse.broker.node import Node
from lapse.client.connection import ConnectionLost
from lapse.client.consumer import Consumer
from lapse.client.partitioner import partition_of
from lapse.client.record import ConsumerRecord
from lapse.records.batch import scan_batches
from lapse.records.layout import Codec
from lapse.spark.scan.write_options import WriteOptions, parse_write_options
from lapse.spark.source.format import LapseSource
from lapse.spark.source.send import partition_count, write_all
from lapse.spark.source.write import LapseStreamWriter, LapseWriter, Written
from tests.support.broker.running import create, running_node

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
TIME = pa.timestamp("us", tz="UTC")
ROWS = StructType().add("value", StringType()).add("topic", StringType())


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    settings = {"auto.create.topics.enable": "false"}
    async with running_node(tmp_path, settings) as running:
        await create(running, "a", 2)
        await create(
            running, "dead", cleanup_policy="compact", lapse_tombstone_values_enable="true"
        )
        yield running


def options(node: Node, **given: str) -> WriteOptions:
    address = node.services.address
    bootstrap = {"kafka.bootstrap.servers": f"{address.host}:{address.port}"}
    return parse_write_options({**bootstrap, **given}, overwrite=False)


async def write(node: Node, batches: Iterable[pa.RecordBatch], **given: str) -> int:
    return await write_all(iter(batches), options(node, **given))


async def read(node: Node, topic: str) -> list[ConsumerRecord]:
    """All there is, partition by partition."""
    address = node.services.address
    async with Consumer(f"{address.host}:{address.port}") as consumer:
        mine = sorted(p for p in await consumer.partitions() if p.topic == topic)
        begin, end = await consumer.beginning_offsets(mine), await consumer.end_offsets(mine)
        await consumer.assign(begin)
        found: list[ConsumerRecord] = []
        while len(found) < sum(end[p] - begin[p] for p in mine):
            found += await consumer.poll(timeout_ms=5000)
        return sorted(found, key=lambda r: (r.partition, r.offset))


def batch(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


async def test_rows_arrive_as_they_were(node: Node) -> None:
    headers = pa.array([[{"key": "h", "value": b"x"}], None])
    times = pa.array([1_700_000_000_001_000, 1_700_000_000_002_000], TIME)
    rows = batch(key=[b"k0", b"k1"], value=[b"v0", None], timestamp=times, headers=headers)
    assert await write(node, [rows], topic="a") == 2
    found = {r.key: r for r in await read(node, "a")}
    assert {
        key: (r.value, r.create_time, r.headers, r.is_tombstone) for key, r in found.items()
    } == {
        b"k0": (b"v0", 1_700_000_000_001, (("h", b"x"),), False),
        b"k1": (None, 1_700_000_000_002, (), True),
    }
    assert {key: r.partition.partition for key, r in found.items()} == {
        key: partition_of(key, 2) for key in (b"k0", b"k1")
    }


async def test_batches_keep_their_order_and_are_numbered(node: Node) -> None:
    """Idempotent (KIP-98), compressed as asked; records without a key take turns."""
    ten = [batch(value=[b"%d" % (100 * n + i) for i in range(100)], partition=[0] * 100)
           for n in range(10)]  # fmt: skip
    given = {"topic": "a", "kafka.compression.type": "lz4"}
    assert await write(node, ten, **given) == 1000
    assert [r.value for r in await read(node, "a")] == [b"%d" % n for n in range(1000)]
    log = node.services.partitions.get(A0)
    rows = [row for one in log.segments for row in scan_batches(one.path().read_bytes(), "a-0")]
    assert [int(row["base_sequence"]) for row in rows] == [100 * n for n in range(10)]
    assert {int(row["producer_id"]) >= 0 for row in rows} == {True}
    assert {int(row["attributes"]) & 7 for row in rows} == {Codec.LZ4}
    turns = [batch(value=[b"x"]) for _ in range(4)]
    await write(node, turns, topic="a")
    assert [r.partition.partition for r in await read(node, "a")] == [0] * 1002 + [1] * 2


async def test_tombstones_with_a_value(node: Node) -> None:
    rows = batch(
        key=[b"k", b"l", b"m"],
        value=pa.array([b"why", b"live", None]),
        is_tombstone=pa.array([True, False, None]),
    )
    given = {"topic": "dead", "lapse.tombstone.values.enable": "true"}
    await write(node, [rows], **given)
    assert [(r.value, r.is_tombstone) for r in await read(node, "dead")] == [
        (b"why", True), (b"live", False), (None, True),
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="record 0 is a tombstone with a value"):
        await write(node, [rows], topic="dead")
    with pytest.raises(ConfigError, match="record 0 is a tombstone with a value"):
        await write(node, [rows], **{**given, "topic": "a"})  # it would store null for b"why"
    assert await read(node, "a") == []


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (
            {"key": [b"k"], "value": pa.array([None], pa.binary()), "is_tombstone": [False]},
            r"record 0: is_tombstone is false and the value is null \(KIP-87\)",
        ),
        ({"value": [b"v"], "topic": ["nope"]}, "topic nope is not there to be written to"),
        ({"value": [b"v"], "topic": pa.array([None], pa.string())}, "record 0 has no topic"),
        ({"value": [b"v"], "topic": ["a"], "partition": [2]}, "names a partition that its topic"),
        ({"value": [b"v"], "topic": [[5]]}, "column topic of type list"),
    ],
)
async def test_what_cannot_be_written_is_refused_before_any_of_its_batch(
    node: Node, columns: dict[str, Any], said: str
) -> None:
    columns = {"topic": ["a"]} | columns
    with pytest.raises(ConfigError, match=said):
        await write(node, [batch(**columns)])
    assert await read(node, "a") == []


async def test_a_greatest_batch_that_is_larger_than_a_producers_memory(node: Node) -> None:
    given = {"topic": "a", "kafka.max.request.size": str(64 << 20)}
    await write(node, [batch(value=[b"v"])], **given)
    assert len(await read(node, "a")) == 1


async def test_the_brokers_refusal_ends_the_task(node: Node) -> None:
    rows = [batch(value=[b"no key"])] * 5
    with pytest.raises(KafkaError) as refused:
        await write(node, rows, topic="dead")
    assert refused.value.code is ErrorCode.INVALID_RECORD


# --- in the driver --------------------------------------------------------------------------------

BROKER = {"kafka.bootstrap.servers": "b:1"}


def test_options_of_a_producer() -> None:
    given = {
        **BROKER, "topic": "t", "kafka.compression.type": "zstd", "kafka.acks": "all",
        "kafka.delivery.timeout.ms": "5", "kafka.security.protocol": "SSL",
    }  # fmt: skip
    found = parse_write_options(given, overwrite=False)
    assert (found.bootstrap, found.topic, found.codec) == ("b:1", "t", Codec.ZSTD)
    assert found.producer == {"delivery.timeout.ms": 5}
    assert found.client["security.protocol"] == "SSL"
    assert "SSL" not in repr(found)


@pytest.mark.parametrize(
    ("given", "overwrite", "said"),
    [
        ({**BROKER, "topic": "t"}, True, "only appended to: mode append"),
        ({"path": "/a"}, False, "rows are written to brokers"),
        ({**BROKER, "path": "/a"}, False, "rows are written to brokers"),
        ({**BROKER, "startingoffsets": "earliest"}, False, "startingOffsets: has no meaning"),
        ({**BROKER, "nope": "1"}, False, "unknown option nope"),
        ({**BROKER, "kafka.acks": "1"}, False, "kafka.acks='1': allowed is all"),
        ({**BROKER, "kafka.compression.type": "x"}, False, "none of none, gzip, snappy, lz4, zstd"),
        ({**BROKER, "kafka.max.request.size": "-1"}, False, "must be at least 1"),
        (
            {**BROKER, "kafka.delivery.timeout.ms": str(1 << 31)},
            False,
            "must be at most 2147483647",
        ),
        ({**BROKER, "kafka.transaction.timeout.ms": str(1 << 40)}, False, "at most 2147483647"),
        ({**BROKER, "exactlyOnce": "true"}, False, "a batch job writes at least once"),
    ],
)
def test_what_is_refused(given: dict[str, str], overwrite: bool, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        LapseSource(given).writer(ROWS, overwrite)


def test_columns_are_checked_before_anything_runs() -> None:
    with pytest.raises(ConfigError, match="no column 'nope'"):
        LapseSource(BROKER).writer(StructType().add("nope", IntegerType()), False)
    with pytest.raises(ConfigError, match="option topic is missing"):
        LapseSource(BROKER).writer(StructType().add("value", StringType()), False)
    assert isinstance(LapseSource(BROKER).writer(ROWS, False), LapseWriter)
    of_query = {**BROKER, "checkpointlocation": "/c", "asyncprogresstrackingenabled": "true"}
    assert isinstance(LapseSource(of_query).streamWriter(ROWS, False), LapseStreamWriter)


async def test_a_broker_that_is_away_for_a_moment_is_waited_for(tmp_path: Path) -> None:
    """As long as `kafka.delivery.timeout.ms`, whichever request comes first."""
    dead = {"topic": "dead", "lapse.tombstone.values.enable": "true"}
    async with running_node(tmp_path) as node:
        await create(node, "dead", cleanup_policy="compact", lapse_tombstone_values_enable="true")
        wish, port = options(node, **dead), node.services.address.port
    rows = batch(key=[b"k"], value=[b"why"], is_tombstone=[True])
    writing = asyncio.create_task(write_all(iter([rows]), wish))
    counting = asyncio.create_task(partition_count(wish, "dead"))
    await asyncio.sleep(0)
    async with running_node(tmp_path, {"listeners": f"PLAINTEXT://127.0.0.1:{port}"}) as node:
        assert (await writing, await counting) == (1, 1)
    brief = options(node, **dead, **{"kafka.delivery.timeout.ms": "200"})
    with pytest.raises(ConnectionLost, match="cannot connect"):
        await write_all(iter([rows]), brief)


def test_what_may_be_there_twice_is_said(caplog: pytest.LogCaptureFixture) -> None:
    writer = LapseSource(BROKER).writer(ROWS, False)
    with caplog.at_level(logging.WARNING):
        writer.commit([Written(0, 0, 5), Written(1, 0, 5)])
        assert caplog.messages == []
        writer.commit([Written(0, 0, 5), Written(7, 1, 5)])
        writer.abort([Written(0, 0, 5), None])
    assert caplog.messages == [
        "task 7 needed several attempts: records may be there twice",
        (
            "writing failed: 5 records of the tasks that were done stay, and what the others had "
            "written"
        ),
    ]
