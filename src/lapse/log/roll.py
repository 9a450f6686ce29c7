"""How long a segment may be appended to, and up to which size, each less a jitter.

By time: `segment.ms` and KIP-354's max lag. Called at append where `lapse.roll.time` is `record`
(T-20), else by roll decisions by the clock (`lifecycle.decide.roll`, L16). By size: at append.
"""

from __future__ import annotations

import zlib

from lapse.base.config import TopicConfig
from lapse.base.ids import TopicPartition

# Partitions of a topic fill evenly, and a roll makes seven files: eight at once hold up the
# producers of all for some 40 ms, one by one each its own for some three.
SIZE_JITTER_SHARE = 32
SIZE_JITTER_FROM_BYTES = 1 << 20  # the least segment.bytes; below it are tests


def age_limit_ms(topic: TopicConfig, jitter: float = 0.0) -> int:
    """How long a segment may be appended to (S-14); jitter never exceeds it (L7)."""
    limit = topic.segment_ms
    if topic.compacts:
        limit = min(limit, topic.max_compaction_lag_ms)
    spread = min(topic.segment_jitter_ms, limit - 1)
    return limit - int(jitter * spread)


def full_bytes(segment_bytes: int, jitter: float) -> int:
    """The bytes up to which a segment is appended to: `segment.bytes` less 1/32 at most (L19)."""
    if segment_bytes < SIZE_JITTER_FROM_BYTES:
        return segment_bytes
    return segment_bytes - int(jitter * (segment_bytes // SIZE_JITTER_SHARE))


def jitter_of(partition: TopicPartition | str, base_offset: int) -> float:
    """A segment's draw from [0, 1): each draws once, and the same again after a restart."""
    return zlib.crc32(f"{partition}:{base_offset}".encode()) / (1 << 32)
