"""What a reader of committed records is given of some topics, all that there is."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from lapse.client.cluster import Cluster, parse_bootstrap
from lapse.client.consumer import Consumer, ConsumerConfig
from lapse.client.record import ConsumerRecord
from lapse.client.transactions import DECIDED, open_transactions

POLL_SECONDS = 0.02


async def committed_records(bootstrap: str, topics: Collection[str]) -> list[ConsumerRecord]:
    """Up to the last stable offsets of now, partition by partition; what has ended is in it."""
    async with Cluster(parse_bootstrap(bootstrap)) as cluster:
        while await open_transactions(cluster, DECIDED):  # noqa: ASYNC110
            await asyncio.sleep(POLL_SECONDS)
    async with Consumer(bootstrap, ConsumerConfig(read_committed=True)) as consumer:
        mine = sorted(p for p in await consumer.partitions() if p.topic in topics)
        end = await consumer.end_offsets(mine)
        await consumer.assign(dict.fromkeys(mine, 0))
        found: list[ConsumerRecord] = []
        while any(consumer.position(p) < end[p] for p in mine):
            found += await consumer.poll(timeout_ms=500)
    return sorted(found, key=lambda record: (record.partition, record.offset))
