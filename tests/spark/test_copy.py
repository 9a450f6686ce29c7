"""Topics copied to another cluster (KIP-32's mirror case): what a record is stays, times first."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer as StockProducer
from pyspark.sql import SparkSession

from lapse.base.clock import SystemClock
from lapse.base.errors import ConfigError
from lapse.base.fs import RealFs
from lapse.base.setting import LONG_MAX
from lapse.client.admin import Admin
from lapse.client.consumer import Consumer
from lapse.client.producer import Producer
from lapse.client.record import ConsumerRecord
from lapse.spark.export.copy import ClusterAddress, CopyFailed, CopySpec, claim, copy_what_is_there
from lapse.spark.source.progress import read_checkpoint
from lapse.testing.broker_process import BrokerProcess
from tests.oracle.kafka import RealKafka
from tests.spark.conftest import words_of
from tests.support.java import QUICK_JAVA

THEN = 1_600_000_000_000
SECONDS_MAX = 120
APPEND, CREATE = "LogAppendTime", "CreateTime"
KINDS = {"a2a": (APPEND, APPEND), "a2c": (APPEND, CREATE), "c2a": (CREATE, APPEND)}
VALUED = {"lapse.tombstone.values.enable": "true"}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterAddress]:
    with BrokerProcess(tmp_path_factory.mktemp("here") / "data") as process:
        yield ClusterAddress(process.bootstrap)


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterAddress]:
    with BrokerProcess(tmp_path_factory.mktemp("there") / "data") as process:
        yield ClusterAddress(process.bootstrap)


async def create(place: ClusterAddress, name: str, partitions: int = 2, **settings: str) -> None:
    async with await Admin.open(place.bootstrap) as admin:
        await admin.create_topic(name, partitions=partitions, configs=settings)


async def send(place: ClusterAddress, topic: str, first: int, count: int) -> None:
    """Every kind of record, by its number; partitions against what their keys would choose."""
    async with Producer(place.bootstrap) as producer:
        for n in range(first, first + count):
            await producer.send(
                topic,
                None if n % 7 == 0 else b"k%d" % (n % 5),
                None if n % 3 == 0 else b"v%d" % n,
                True if n % 4 == 1 and n % 3 and topic in KINDS else None,
                THEN + n,
                partition=n % 2,
                headers=[("h", b"%d" % n), ("h", None)] if n % 2 else (),
            )


def aborted(place: ClusterAddress, topic: str) -> None:
    """A transaction that comes to nothing, at the end of partition 0."""
    settings = {"bootstrap.servers": place.bootstrap, "transactional.id": f"t-{topic}"}
    producer = StockProducer(settings)
    producer.init_transactions(SECONDS_MAX)
    producer.begin_transaction()
    producer.produce(topic, b"never", b"k", partition=0)
    producer.flush(SECONDS_MAX)
    producer.abort_transaction(SECONDS_MAX)


async def all_of(place: ClusterAddress, topic: str) -> list[ConsumerRecord]:
    """By partition and offset; our client sees a tombstone's value and both times."""
    async with Consumer(place.bootstrap) as consumer:
        mine = [p for p in await consumer.partitions() if p.topic == topic]
        begin, end = await consumer.beginning_offsets(mine), await consumer.end_offsets(mine)
        await consumer.assign(begin)
        found: list[ConsumerRecord] = []
        while any(consumer.position(p) < end[p] for p in mine):
            found += await consumer.poll(timeout_ms=1000)
    return sorted(found, key=lambda r: (r.partition, r.offset))


def content(records: list[ConsumerRecord]) -> list[tuple[object, ...]]:
    """All but offsets, the topic's name and append times."""
    return [
        (r.partition.partition, r.key, r.value, r.headers, r.create_time, r.is_tombstone)
        for r in records
        if r.value != b"never"
    ]


def copy(spark: SparkSession, spec: CopySpec) -> None:
    asyncio.run(claim(spec, RealFs()))
    copy_what_is_there(spark, spec)


def test_everything_but_offsets_stays(
    spark: SparkSession, here: ClusterAddress, there: ClusterAddress, tmp_path: Path
) -> None:
    """Create times survive append times on either side, or both; aborted records do not come."""
    for topic, kinds in KINDS.items():
        for place, kind in zip((here, there), kinds, strict=True):
            asyncio.run(create(place, topic, **VALUED, **{"message.timestamp.type": kind}))
        asyncio.run(send(here, topic, 0, 100))
        aborted(here, topic)
    began = SystemClock().now_ms()
    copy(spark, CopySpec(here, there, tuple(KINDS), tmp_path, codec="lz4"))
    for topic, kinds in KINDS.items():
        original, found = (asyncio.run(all_of(place, topic)) for place in (here, there))
        assert content(found) == content(original)
        assert len(found) == 100
        assert {r.create_time for r in found} == {THEN + n for n in range(100)}
        assert sum(r.is_tombstone and r.value is not None for r in found) == 17
        assert all(r.append_time is not None and r.append_time > began - 1000 for r in found)
        shown = [r.append_time if kinds[1] == APPEND else r.create_time for r in found]
        assert [r.timestamp for r in found] == shown
        assert any(r.key is None for r in found)


def test_times_stay_that_a_timestamp_of_spark_does_not_hold(
    spark: SparkSession, here: ClusterAddress, there: ClusterAddress, tmp_path: Path
) -> None:
    """Nanoseconds that a producer took for milliseconds, and those before 1970."""
    times_ms = [THEN, 1_700_000_000_000_000_000, -315_619_200_000]

    async def send_them() -> None:
        async with Producer(here.bootstrap) as producer:
            for time_ms in times_ms:
                await producer.send("far", b"k", b"v", None, time_ms, partition=0)

    for place in (here, there):
        asyncio.run(create(place, "far", **{"message.timestamp.after.max.ms": str(LONG_MAX)}))
    asyncio.run(send_them())
    copy(spark, CopySpec(here, there, ("far",), tmp_path))
    assert [r.create_time for r in asyncio.run(all_of(there, "far"))] == times_ms


def test_a_copy_goes_on_where_it_was_and_a_crash_repeats_nothing(
    spark: SparkSession, here: ClusterAddress, there: ClusterAddress, tmp_path: Path
) -> None:
    """What was written and not noted is not written again, though Spark repeats the batch."""
    asyncio.run(create(here, "r"))
    asyncio.run(create(there, "s"))
    asyncio.run(send(here, "r", 0, 50))
    spec = CopySpec(here, there, ("r",), tmp_path, rename="s", offsets_max=20)
    copy(spark, spec)
    copy(spark, spec)
    original = content(asyncio.run(all_of(here, "r")))
    assert content(asyncio.run(all_of(there, "s"))) == original
    last = read_checkpoint(tmp_path).batch_id
    assert last == 2
    for name in (f"{last}", f".{last}.crc"):  # as if killed right before this was written
        (tmp_path / "commits" / name).unlink()
    asyncio.run(send(here, "r", 50, 10))
    copy(spark, spec)
    original = content(asyncio.run(all_of(here, "r")))
    found = content(asyncio.run(all_of(there, "s")))
    assert found == original


def test_by_key_and_what_does_not_fit(
    spark: SparkSession, here: ClusterAddress, there: ClusterAddress, tmp_path: Path
) -> None:
    """Fewer partitions; a topic that would lose the values of tombstones."""
    asyncio.run(create(here, "few"))
    asyncio.run(create(there, "few", 1))
    asyncio.run(send(here, "few", 0, 20))
    with pytest.raises(ConfigError, match=r"few has 2 partitions, few at .* has 1: make it there"):
        copy(spark, CopySpec(here, there, ("few",), tmp_path / "1"))
    copy(spark, CopySpec(here, there, ("few",), tmp_path / "2", by_key=True))
    found = asyncio.run(all_of(there, "few"))
    assert sorted(r.create_time or 0 for r in found) == [THEN + n for n in range(20)]
    asyncio.run(create(here, "a2a-2", **VALUED))
    asyncio.run(create(there, "a2a-2"))
    asyncio.run(_one_valued(here, "a2a-2"))
    with pytest.raises(CopyFailed, match=r"its topic has no lapse\.tombstone\.values\.enable"):
        copy(spark, CopySpec(here, there, ("a2a-2",), tmp_path / "3"))
    assert asyncio.run(all_of(there, "a2a-2")) == []


async def _one_valued(place: ClusterAddress, topic: str) -> None:
    async with Producer(place.bootstrap) as producer:
        await producer.send(topic, b"k", b"why", True)


def test_the_command_from_a_real_kafka_keeps_what_a_mirror_would_lose(
    real_kafka: RealKafka, there: ClusterAddress, tmp_path: Path
) -> None:
    """Its LogAppendTime batches have the create times; its own consumers are not shown them."""
    kafka = ClusterAddress(real_kafka.bootstrap)
    settings = {"message.timestamp.type": APPEND}
    asyncio.run(create(kafka, "orders", **settings))
    asyncio.run(create(there, "orders", **settings))
    asyncio.run(send(kafka, "orders", 0, 40))
    command = [
        sys.executable, "-m", "lapse.cli.main", "copy", "--from", kafka.bootstrap, "--to",
        there.bootstrap, "--topic", "orders", "--checkpoint", tmp_path / "c", "--master",
        "local[1]", "--json",
    ]  # fmt: skip
    done = subprocess.run(
        command, env={**os.environ, **QUICK_JAVA}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert words_of(done.stderr) == [], "nothing of Spark's and Java's own"
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert rows == [{"topic": "orders", "partition": p, "copied_to": 20} for p in (0, 1)]
    found = asyncio.run(all_of(there, "orders"))
    assert content(found) == content(asyncio.run(all_of(kafka, "orders")))
    assert {r.create_time for r in found} == {THEN + n for n in range(40)}
    assert all(r.timestamp > THEN + 40 for r in found)


def test_a_checkpoint_belongs_to_one_copy(
    here: ClusterAddress, there: ClusterAddress, tmp_path: Path
) -> None:
    """With another target it would leave out what it has read for the first one."""
    for place in (here, there):
        for topic in "abc":
            asyncio.run(create(place, topic))
    asyncio.run(claim(CopySpec(here, there, ("b", "a"), tmp_path), RealFs()))
    asyncio.run(claim(CopySpec(here, there, ("a", "b"), tmp_path), RealFs()))
    others = (
        CopySpec(there, here, ("a", "b"), tmp_path),
        CopySpec(here, there, ("a",), tmp_path),
        CopySpec(here, there, ("a",), tmp_path, rename="c"),
    )
    for other in others:
        with pytest.raises(ConfigError, match="belongs to the copy"):
            asyncio.run(claim(other, RealFs()))
    with pytest.raises(ConfigError, match="a topic is not copied to itself"):
        asyncio.run(claim(CopySpec(here, here, ("a",), tmp_path / "self"), RealFs()))
    with pytest.raises(ConfigError, match="there is no topic nope at"):
        asyncio.run(claim(CopySpec(here, there, ("nope",), tmp_path / "nope"), RealFs()))
    (tmp_path / "theirs" / "offsets").mkdir(parents=True)
    with pytest.raises(ConfigError, match="another query's checkpoint"):
        asyncio.run(claim(CopySpec(here, there, ("a",), tmp_path / "theirs"), RealFs()))
