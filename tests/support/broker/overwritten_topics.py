"""Compacted topics with sealed segments full of superseded records, in a node of this process."""

from __future__ import annotations

from lapse.broker.node import Node
from tests.support.broker.running import create
from tests.support.lifecycle.rounds import overwritten, write

SETTINGS = {
    "internal_segment_bytes": "1000",
    "cleanup_policy": "compact",
    "min_cleanable_dirty_ratio": "0.01",
}


async def filled(node: Node, *topics: str) -> None:
    """Compacted topics with sealed segments full of superseded records."""
    for name in topics:
        await create(node, name, 1, **SETTINGS)
    for log in node.services.partitions.all():
        write(log, overwritten(), 1_700_000_000_000)
        log.roll(0)
