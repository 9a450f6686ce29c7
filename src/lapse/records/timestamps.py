"""KIP-32: whose clock a record's time is, and which times a producer may send.

CreateTime topics keep the producer's time within `message.timestamp.before.max.ms` and
`.after.max.ms` of now (T-1). LogAppendTime topics write the append time into the batch's max
timestamp and set the type bit; deltas stay, so the producer's time survives (ADR-5).
"""

from __future__ import annotations

from typing import NamedTuple

from lapse.base.config import TopicConfig
from lapse.base.times import FOREVER_MS, after_ms
from lapse.records.layout import TimestampType


class TimestampRange(NamedTuple):
    """Create times a producer may send now, both ends included; -1 (none) is always allowed."""

    least: int
    greatest: int


ANY_TIME = TimestampRange(-(1 << 63), FOREVER_MS)


def allowed_range(topic: TopicConfig, now_ms: int) -> TimestampRange:
    """T-1 and T-6: the limits are for CreateTime topics only."""
    if topic.message_timestamp_type == TimestampType.LOG_APPEND_TIME:
        return ANY_TIME
    return TimestampRange(
        max(now_ms - topic.message_timestamp_before_max_ms, ANY_TIME.least),
        after_ms(now_ms, topic.message_timestamp_after_max_ms),
    )


def append_time_ms(now_ms: int, last_ms: int, jump_max_ms: int) -> int:
    """L12: the LogAppendTime of a batch in a log whose last one is `last_ms`.

    Never below that (KIP-32's max(last, now)), unless it is ahead of now by more than
    lapse.clock.jump.max.ms: then some clock was wrong, and is not followed. The bounds of create
    times (T-1) have nothing to do with it: they are for producers' clocks.
    """
    return last_ms if now_ms < last_ms <= after_ms(now_ms, jump_max_ms) else now_ms
