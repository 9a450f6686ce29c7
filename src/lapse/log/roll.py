"""How long a segment may be appended to: segment.ms, KIP-354's max lag, and jitter.

Called at append where `lapse.roll.time` is `record` (T-20), else by roll decisions by the clock
(`lifecycle.decide.roll`, L16).
"""

from __future__ import annotations

import zlib

from lapse.base.config import TopicConfig
from lapse.base.ids import TopicPartition


def age_limit_ms(topic: TopicConfig, jitter: float = 0.0) -> int:
    """How long a segment may be appended to (S-14); jitter never exceeds it (L7)."""
    limit = topic.segment_ms
    if topic.compacts:
        limit = min(limit, topic.max_compaction_lag_ms)
    spread = min(topic.segment_jitter_ms, limit - 1)
    return limit - int(jitter * spread)


def jitter_of(partition: TopicPartition, base_offset: int) -> float:
    """A segment's draw from [0, 1): each draws once, and the same again after a restart."""
    return zlib.crc32(f"{partition}:{base_offset}".encode()) / (1 << 32)
