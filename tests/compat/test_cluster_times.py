"""KIP-32 across replicas: when a record was appended is the same on each, however late it came."""

from __future__ import annotations

import asyncio
from pathlib import Path

from lapse.base.clock import SystemClock
from lapse.base.ids import TopicPartition
from lapse.client.consumer import Consumer
from lapse.testing.zookeeper_process import ZooKeeperProcess
from tests.support.broker.cluster import Brokers, produced, running

RECORDS = 20
APART_MS = 1500


async def append_times(bootstrap: str) -> list[int]:
    """Of all records of t-0, as our own client is told them."""
    found: list[int] = []
    async with Consumer(bootstrap) as consumer:
        await consumer.assign({TopicPartition("t", 0): 0})
        while len(found) < RECORDS:
            for record in await consumer.poll():
                assert record.append_time is not None, record
                found.append(record.append_time)
    return found


def test_a_record_is_as_old_on_a_replica_that_fetched_it_late(
    tmp_path: Path, shared: ZooKeeperProcess
) -> None:
    with running(tmp_path, shared) as brokers:
        brokers.create_at("t", 1, 2)
        brokers.processes[2].kill()
        assert produced(brokers, "t", range(10)) == list(range(10))
        clock = SystemClock()
        later = clock.monotonic() + 2 * APART_MS / 1000
        brokers.until(lambda: clock.monotonic() > later, "another time")
        assert produced(brokers, "t", range(10, 20)) == list(range(10, 20))
        before = times(brokers)
        assert before[-1] - before[0] >= APART_MS
        brokers.processes[2].start()
        brokers.until(lambda: brokers.in_sync("t"), "in sync again")
        brokers.processes[1].kill()
        brokers.until(lambda: brokers.leader("t") == 2, "the other one leads")
        assert times(brokers) == before


def times(brokers: Brokers) -> list[int]:
    return asyncio.run(append_times(brokers.bootstrap))
