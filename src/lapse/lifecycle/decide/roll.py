"""When the active segment must be closed by time: L5, L16, KIP-354.

By the owner's append clock, not by record time: a backfill of old records does not make a segment
a batch, and an idle log is rolled too, so that `max.compaction.lag.ms` means what it says.
"""

from __future__ import annotations

from dataclasses import dataclass

from lapse.base.config import TopicConfig


@dataclass(frozen=True, slots=True)
class ActiveSegment:
    """The active segment, as far as rolling cares; `jitter` is its own draw from [0, 1)."""

    append_first_ms: int
    size: int
    jitter: float = 0.0


def age_limit_ms(topic: TopicConfig, jitter: float = 0.0) -> int:
    """How long a segment may be appended to (S-14); jitter never exceeds it (L7)."""
    limit = topic.segment_ms
    if topic.compacts:
        limit = min(limit, topic.max_compaction_lag_ms)
    spread = min(topic.segment_jitter_ms, limit - 1)
    return limit - int(jitter * spread)


def roll_due_ms(active: ActiveSegment, topic: TopicConfig) -> int | None:
    """When the active segment must be rolled, or None while it is empty."""
    if active.size == 0 or active.append_first_ms < 0:
        return None
    return active.append_first_ms + age_limit_ms(topic, active.jitter)


def roll_due(active: ActiveSegment, topic: TopicConfig, now_ms: int) -> bool:
    """Whether that moment has come."""
    due_ms = roll_due_ms(active, topic)
    return due_ms is not None and now_ms >= due_ms
