"""What the Spark sink asks of brokers to write once, at a real Kafka and at ours."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pytest

from lapse.base.ids import TopicPartition
from lapse.client.admin import Admin
from lapse.client.cluster import Cluster, parse_bootstrap
from lapse.client.producer import Producer
from lapse.client.transactions import Transactions
from lapse.spark.scan.write_options import WriteOptions
from lapse.spark.source.exactly_once import ReplayDiffers, Turn, write_once
from lapse.testing.broker_process import BrokerProcess
from tests.oracle.kafka import RealKafka
from tests.support.client.committed import committed_records

TURN = Turn("query", 3, 1)
VALUES = [b"%d" % n for n in range(20)]
AT = TopicPartition("once", 0)


@pytest.fixture(params=["lapse", "kafka"])
def bootstrap(request: pytest.FixtureRequest) -> str:
    if request.param == "kafka":
        kafka: RealKafka = request.getfixturevalue("real_kafka")
        return kafka.bootstrap
    ours: BrokerProcess = request.getfixturevalue("broker")
    return ours.bootstrap


def rows(values: list[bytes]) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pydict({"value": values[:5]})
    yield pa.RecordBatch.from_pydict({"value": values[5:]})


async def read(bootstrap: str) -> list[bytes]:
    return sorted(bytes(r.value or b"") for r in await committed_records(bootstrap, [AT.topic]))


async def left_open(bootstrap: str) -> None:
    """As by an attempt that is killed right before its end."""
    async with Cluster(parse_bootstrap(bootstrap)) as cluster:
        killed = Transactions(cluster, TURN.name)
        await killed.begin()
        async with Producer(bootstrap, transactions=killed) as producer:
            await (await producer.send(AT.topic, b"k", b"left open", partition=0))
            await killed.commit_offset(TURN.name, AT, TURN.batch_id, "{}")


async def the_turns(bootstrap: str) -> None:
    async with await Admin.open(bootstrap) as admin:
        await admin.create_topic(AT.topic, partitions=2)
    wish = WriteOptions(bootstrap, topic=AT.topic, exactly_once=True)
    await left_open(bootstrap)
    assert not (await write_once(rows(VALUES), wish, TURN)).was_there
    assert (await write_once(rows(VALUES[::-1]), wish, TURN)).was_there
    assert await read(bootstrap) == sorted(VALUES)
    with pytest.raises(ReplayDiffers):
        await write_once(rows(VALUES[1:]), wish, TURN)
    await left_open(bootstrap)
    assert not (await write_once(rows(VALUES), wish, replace(TURN, batch_id=4))).was_there
    assert await read(bootstrap) == sorted(2 * VALUES)


def test_a_turn_is_written_once(bootstrap: str) -> None:
    asyncio.run(the_turns(bootstrap))
