"""Which part of a log a round may look at: first dirty and first uncleanable offset.

SEMANTICS S-2 … S-5. All by segments: a round never cleans part of a segment's reach.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from lapse.base.config import TopicConfig
from lapse.lifecycle.decide.verdict import Rules
from lapse.log.facts import LogFacts, SegmentFacts


class Bound(Enum):
    """What the first uncleanable offset rests on."""

    ACTIVE_SEGMENT = "active segment"
    LAST_STABLE = "last stable offset"
    MIN_LAG = "min.compaction.lag.ms"


@dataclass(frozen=True, slots=True)
class Bounds:
    """The range a round may map, and what it costs.

    Attributes:
        dirty: first offset not yet cleaned; the map begins here.
        upper: base of the first segment that may not be cleaned; the map ends before it.
        bound: what sets `upper`.
        held_segment: base of the segment that min lag holds, None otherwise.
        checkpoint_reset: the stored checkpoint was outside the log (S-2).
        clean_bytes, dirty_bytes: S-5; a partly mapped segment counts in both.
    """

    dirty: int
    upper: int
    bound: Bound
    held_segment: int | None
    checkpoint_reset: bool
    clean_bytes: int
    dirty_bytes: int

    @property
    def ratio(self) -> float:
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0


def first_dirty(facts: LogFacts) -> tuple[int, bool]:
    """S-2: (first dirty offset, whether the checkpoint had to be given up)."""
    start, checkpoint = facts.log_start_offset, facts.cleaner_checkpoint
    if checkpoint is None:
        return start, False
    if not start <= checkpoint <= facts.log_end_offset:
        return start, True
    return checkpoint, False


def record_age_from(segment: SegmentFacts, rules: Rules) -> int:
    """The time (ms) from which a segment's records are counted old for min lag.

    Kafka takes the largest record timestamp, or the file's mtime where there is none. A timestamp
    ahead of the append clock is one that nobody's clock has reached: it would hold the log for
    ever (S-3b), so the append clock bounds it (L9).
    """
    largest = segment.largest_timestamp if segment.largest_timestamp >= 0 else segment.mtime_ms
    summary = segment.summary
    if rules is Rules.KAFKA_43 or summary is None or summary.append_last_ms < 0:
        return largest
    return min(largest, summary.append_last_ms)


def find_bounds(
    facts: LogFacts, topic: TopicConfig, now_ms: int, rules: Rules, dirty: int | None = None
) -> Bounds:
    """The bounds of a round at `now_ms`; `dirty` overrides the checkpoint (`--first-dirty`)."""
    reset = False
    if dirty is None:
        dirty, reset = first_dirty(facts)
    reach = _from(facts.segments, dirty)[:-1]  # sealed; none where the active one holds `dirty`
    holder = facts.segments[-1].base_offset
    upper, bound, held = holder, Bound.ACTIVE_SEGMENT, None
    if facts.last_stable_offset < upper:
        upper, bound = facts.last_stable_offset, Bound.LAST_STABLE
    for segment in reach if topic.min_compaction_lag_ms > 0 else ():
        if record_age_from(segment, rules) > now_ms - topic.min_compaction_lag_ms:
            if segment.base_offset < upper:
                upper, bound, held = segment.base_offset, Bound.MIN_LAG, segment.base_offset
            break
    upper = _snap(facts, max(upper, dirty))
    clean = sum(s.size for s in facts.segments if s.base_offset < dirty)
    dirty_bytes = sum(s.size for s in reach if s.base_offset < upper)
    return Bounds(dirty, upper, bound, held, reset, clean, dirty_bytes)


def _from(segments: tuple[SegmentFacts, ...], offset: int) -> tuple[SegmentFacts, ...]:
    """Segments from the one that holds `offset`."""
    first = 0
    for i, segment in enumerate(segments):
        if segment.base_offset <= offset:
            first = i
    return segments[first:]


def _snap(facts: LogFacts, offset: int) -> int:
    """S-4: base of the segment that holds `offset`; the active base if that holds it."""
    base = facts.segments[0].base_offset
    for segment in facts.segments:
        if segment.base_offset <= offset:
            base = segment.base_offset
    return base
