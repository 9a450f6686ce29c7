"""Which leading segments expire: SEMANTICS T-23 … T-25, and L9.

Applies by log start to every log, by size and age only where the policy has `delete`. Each rule
stops at the first segment that fails it, and the active segment is never among the answer.
"""

from __future__ import annotations

from collections.abc import Callable

from lapse.base.config import TopicConfig
from lapse.log.facts import LogFacts, SegmentFacts


def age_from_ms(segment: SegmentFacts) -> int:
    """The time a segment's age counts from: its largest timestamp, bounded by the append clock.

    One timestamp from the future would otherwise pin this segment and all behind it (L9).
    """
    largest = segment.largest_timestamp if segment.largest_timestamp >= 0 else segment.mtime_ms
    if segment.summary is None or segment.summary.append_last_ms < 0:
        return largest
    return min(largest, segment.summary.append_last_ms)


def segments_to_delete(facts: LogFacts, topic: TopicConfig, now_ms: int) -> tuple[int, ...]:
    """Base offsets of the leading segments that must go now."""
    sealed = facts.segments[:-1]
    ends = [s.base_offset for s in facts.segments[1:]]
    below_start = [end <= facts.log_start_offset for end in ends]
    gone = _leading(len(sealed), lambda i: below_start[i])
    if topic.deletes and topic.retention_bytes >= 0:
        excess = sum(s.size for s in facts.segments[gone:]) - topic.retention_bytes
        while gone < len(sealed) and excess >= sealed[gone].size:
            excess -= sealed[gone].size
            gone += 1
    if topic.deletes and topic.retention_ms >= 0:
        oldest_allowed = now_ms - topic.retention_ms
        by_size = gone
        gone = _leading(
            len(sealed), lambda i: i < by_size or age_from_ms(sealed[i]) < oldest_allowed
        )
    within = _leading(gone, lambda i: ends[i] <= facts.high_watermark)
    return tuple(s.base_offset for s in sealed[:within])


def _leading(n: int, fails: Callable[[int], bool]) -> int:
    """How many of 0..n-1, from the first, satisfy `fails`."""
    return next((i for i in range(n) if not fails(i)), n)
