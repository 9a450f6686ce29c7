"""When the active segment must be closed by time: L5, L16, KIP-354.

By the owner's append clock, not by record time: a backfill of old records does not make a segment
a batch, and an idle log is rolled too, so that `max.compaction.lag.ms` means what it says. With
`lapse.roll.time=record` the rule is KIP-32's, which `PartitionLog` follows when it appends; then
nothing is due here, and an idle log stays as it is.

KIP-107 with L11 has a reason of its own, whatever `lapse.roll.time` says: records below the log
start can be taken out of a sealed segment only.
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
    """The active segment, as far as rolling cares; `jitter` is its own draw from [0, 1)."""

    append_first_ms: int
    size: int
    jitter: float = 0.0


def roll_due_ms(active: ActiveSegment, topic: TopicConfig) -> int | None:
    """When the clock must roll it; None while it is empty, or where the clock is not asked."""
    if active.size == 0 or active.append_first_ms < 0 or topic.roll_time == "record":
        return None
    return after_ms(active.append_first_ms, age_limit_ms(topic, active.jitter))


def roll_due(active: ActiveSegment, topic: TopicConfig, now_ms: int, jump_max_ms: int) -> bool:
    """Whether that moment has come.

    A segment begun further in the future than a clock may jump, by one that was wrong and is right
    again, can't wait for it.
    """
    due_ms = roll_due_ms(active, topic)
    if due_ms is None:
        return False
    return now_ms >= due_ms or active.append_first_ms > after_ms(now_ms, jump_max_ms)


def trim_roll_due_ms(
    base_offset: int, moves: Sequence[StartMove], topic: TopicConfig
) -> int | None:
    """When the active segment must be closed so that a round can trim it in time (L11).

    `moves` are the unserved ones, `base_offset` the active segment's. None where nothing of it is
    dead.
    """
    first_ms = min((m.moved_ms for m in moves if m.offset > base_offset), default=None)
    if first_ms is None:
        return None
    return half_way_ms(first_ms, topic)


def trim_roll_due(
    base_offset: int, moves: Sequence[StartMove], topic: TopicConfig, now_ms: int
) -> bool:
    """Whether that moment has come; a move from the future (the clock was set back) can't wait."""
    due_ms = trim_roll_due_ms(base_offset, moves, topic)
    if due_ms is None:
        return False
    return now_ms >= due_ms or any(m.offset > base_offset and m.moved_ms > now_ms for m in moves)
