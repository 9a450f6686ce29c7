"""Records below the log start that are still in a file, and when they must go (L11, KIP-107).

DeleteRecords moves the log start; retention drops the segments wholly below it. The segment that
holds the new log start keeps its dead records until a round rewrites it. In Kafka that may be never
(D-7); in Lapse it is within `lapse.physical.delete.max.lag.ms`, which includes the
`file.delete.delay.ms` of the old file. Half of the time left after that is for the round.

Called by `select`, `deadline` and `explain`. A round cannot rewrite the active segment: its owner
rolls it first.
"""

from __future__ import annotations

from dataclasses import dataclass

from lapse.base.config import TopicConfig
from lapse.base.times import after_ms
from lapse.log.facts import LogFacts, SegmentFacts


@dataclass(frozen=True, slots=True)
class Dead:
    """Records below the log start that are still in a file.

    Attributes:
        holder: the segment that holds the log start, and the records below it.
        since_ms: when the log start moved into that segment.
    """

    holder: SegmentFacts
    since_ms: int


def dead_records(facts: LogFacts) -> Dead | None:
    """The records below the log start that no round has removed yet; None without any."""
    if not facts.start_moves:
        return None
    start = facts.log_start_offset
    holder = facts.segments[0]
    for segment in facts.segments:
        if segment.base_offset <= start:
            holder = segment
    moved = [m.moved_ms for m in facts.start_moves if holder.base_offset < m.offset <= start]
    return Dead(holder, min(moved)) if moved else None


def trim_due_ms(dead: Dead, topic: TopicConfig) -> int:
    """When a round must begin so that the old file is gone in time: half-way into the lag."""
    return half_way_ms(dead.since_ms, topic)


def half_way_ms(since_ms: int, topic: TopicConfig) -> int:
    """The middle of the time within which the records must be gone from all files.

    In the first half the active segment may fill up and roll; the second half is for the round.
    """
    room_ms = topic.physical_delete_max_lag_ms - topic.file_delete_delay_ms
    return after_ms(since_ms, max(room_ms, 0) // 2)
