"""Producer ids for InitProducerId: taken from the store in blocks, handed out one by one.

A block is durable before its first id is used, so no id is given twice; a restart forgets the rest
of its block, as in Kafka.
"""

from __future__ import annotations

import asyncio

from lapse.broker.disk import DiskThreads
from lapse.metadata.store import MetadataStore

BLOCK = 1000


class ProducerIds:
    """The broker's current block."""

    def __init__(self, store: MetadataStore, disk: DiskThreads) -> None:
        self._store = store
        self._disk = disk
        self._left = iter(range(0))
        self._lock = asyncio.Lock()

    async def next(self) -> int:
        """An id nobody has had."""
        async with self._lock:
            producer_id = next(self._left, None)
            if producer_id is None:
                self._left = iter(await self._disk.run(self._store.allocate_producer_ids, BLOCK))
                producer_id = next(self._left)
            return producer_id
