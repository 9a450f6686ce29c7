"""Records below the log start that are still in a file, and when they must go (L11, KIP-107).

DeleteRecords moves the log start; segments wholly below it are dropped by retention. The one that
holds the new start keeps its dead records until a round rewrites it. In Kafka that may be never
(D-7); here it is within `lapse.physical.delete.max.lag.ms`, in which the
`file.delete.delay.ms` of the old file counts. Half of what that leaves is for the round.

Called by `select`, `deadline` and `explain`. The active segment is no round's: its owner rolls it
first.
"""

from __future__ import annotations

from dataclasses import dataclass

from lapse.base.config import TopicConfig
from lapse.base.times import after_ms
from lapse.log.facts import LogFacts, SegmentFacts


@dataclass(frozen=True, slots=True)
class Dead:
    """Deleted records in a file.

    Attributes:
        holder: the segment that holds the log start, and the records below it.
        since_ms: when the log start moved into it.
    """

    holder: SegmentFacts
    since_ms: int


def dead_records(facts: LogFacts) -> Dead | None:
    """Those that a move of the log start left behind, and no round has followed yet."""
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
    """When a round must begin so that the file is gone in time: half-way in."""
    return half_way_ms(dead.since_ms, topic)


def half_way_ms(since_ms: int, topic: TopicConfig) -> int:
    """When half of the time is over until the files must be free of the records.

    Until then the active segment may fill up by itself; the other half is the round's.
    """
    room_ms = topic.physical_delete_max_lag_ms - topic.file_delete_delay_ms
    return after_ms(since_ms, max(room_ms, 0) // 2)
