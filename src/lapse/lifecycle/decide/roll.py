"""When the active segment must be closed by time: L5, L16, KIP-354.

By the owner's append clock, not by record time: a backfill of old records does not make a segment
a batch, and an idle log is rolled too, so that `max.compaction.lag.ms` means what it says. With
`lapse.roll.time=record` the rule is KIP-32's, which `PartitionLog` follows when it appends; then
nothing is due here, and an idle log stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass

from lapse.base.config import TopicConfig
from lapse.log.roll import age_limit_ms


@dataclass(frozen=True, slots=True)
class ActiveSegment:
    """The active segment, as far as rolling cares; `jitter` is its own draw from [0, 1)."""

    append_first_ms: int
    size: int
    jitter: float = 0.0


def roll_due_ms(active: ActiveSegment, topic: TopicConfig) -> int | None:
    """When the clock must roll it; None while it is empty, or where the clock is not asked."""
    if active.size == 0 or active.append_first_ms < 0 or topic.roll_time == "record":
        return None
    return active.append_first_ms + age_limit_ms(topic, active.jitter)


def roll_due(active: ActiveSegment, topic: TopicConfig, now_ms: int) -> bool:
    """Whether that moment has come."""
    due_ms = roll_due_ms(active, topic)
    return due_ms is not None and now_ms >= due_ms
