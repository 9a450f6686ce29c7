"""When the active segment must be rolled by time: L5, L16, KIP-354.

Time is the owner's append clock, not record time: a backfill of old records does not make one
segment per batch, and an idle log is rolled too, so that `max.compaction.lag.ms` is kept. With
`lapse.roll.time=record` the rule is KIP-32's, which `PartitionLog` follows when it appends; then
no roll is due here, and an idle log is not rolled.

KIP-107 with L11 is a separate reason, regardless of `lapse.roll.time`: records below the log start
can be removed from a sealed segment only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lapse.base.config import TopicConfig
from lapse.base.times import after_ms
from lapse.lifecycle.decide.trim import half_way_ms
from lapse.log.facts import StartMove
from lapse.log.roll import age_limit_ms


@dataclass(frozen=True, slots=True)
class ActiveSegment:
    """What rolling knows of the active segment; `jitter` is the segment's draw from [0, 1)."""

    append_first_ms: int
    size: int
    jitter: float = 0.0


def roll_due_ms(active: ActiveSegment, topic: TopicConfig) -> int | None:
    """When the segment must be rolled by the clock; None if empty or if record time rolls it."""
    if active.size == 0 or active.append_first_ms < 0 or topic.roll_time == "record":
        return None
    return after_ms(active.append_first_ms, age_limit_ms(topic, active.jitter))


def roll_due(active: ActiveSegment, topic: TopicConfig, now_ms: int, jump_max_ms: int) -> bool:
    """Whether the segment must be rolled by the clock now.

    A segment whose first append lies further in the future than a clock may jump (the clock was
    wrong then and is right now) is rolled at once.
    """
    due_ms = roll_due_ms(active, topic)
    if due_ms is None:
        return False
    return now_ms >= due_ms or active.append_first_ms > after_ms(now_ms, jump_max_ms)


def trim_roll_due_ms(
    base_offset: int, moves: Sequence[StartMove], topic: TopicConfig
) -> int | None:
    """When the active segment must be rolled so that a round can trim it in time (L11).

    `moves` are the moves of the log start that no round has followed yet, `base_offset` is the
    active segment's. None if the segment holds no records below the log start.
    """
    first_ms = min((m.moved_ms for m in moves if m.offset > base_offset), default=None)
    if first_ms is None:
        return None
    return half_way_ms(first_ms, topic)


def trim_roll_due(
    base_offset: int, moves: Sequence[StartMove], topic: TopicConfig, now_ms: int
) -> bool:
    """Whether it must be rolled for a trim now; at once if a move's time lies in the future.

    A move has such a time if the clock was set back afterwards.
    """
    due_ms = trim_roll_due_ms(base_offset, moves, topic)
    if due_ms is None:
        return False
    return now_ms >= due_ms or any(m.offset > base_offset and m.moved_ms > now_ms for m in moves)
