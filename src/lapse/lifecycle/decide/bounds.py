"""Which part of a log a round may clean: the first dirty and the first uncleanable offset.

S-2 … S-5. All bounds are at segment bases: a round never cleans part of a segment's offset range.

Three bounds are Lapse's own. A place that could not be read (two bounds, L10) and a transaction
without an outcome end the whole round: nothing at or above them is read, stamped or removed.
Unlike Kafka's bounds they may lie below the first dirty offset; then nothing is mapped. Kafka's
rules have none of the three: Kafka leaves the whole log alone (S-12), and treats an undecided
transaction that its last stable offset does not cover as committed (X-3).
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from itertools import pairwise
from typing import NamedTuple

from lapse.base.config import TopicConfig
from lapse.lifecycle.decide.survey import Survey, survey
from lapse.lifecycle.decide.transactions import undecided_from
from lapse.lifecycle.decide.verdict import Rules
from lapse.log.facts import LogFacts, SegmentFacts


class Bound(Enum):
    """What sets the first uncleanable offset."""

    ACTIVE_SEGMENT = "active segment"
    LAST_STABLE = "last stable offset"
    MIN_LAG = "min.compaction.lag.ms"
    BAD_RANGE = "a place that a round could not read"
    UNREADABLE = "a place that could not be read"
    UNDECIDED = "a transaction without marker"


class Bounds(NamedTuple):
    """The range a round may map, and its bytes. A tuple, as one is made per log and look.

    Attributes:
        dirty: first offset not yet cleaned; the map begins here.
        upper: base of the first segment that may not be cleaned; the map ends before it. Below
            `dirty` only for Lapse's own three bounds.
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


def first_dirty(facts: LogFacts, override: int | None = None) -> tuple[int, bool]:
    """S-2: (first dirty offset, whether the checkpoint, or `override`, was outside the log)."""
    start = facts.log_start_offset
    checkpoint = facts.cleaner_checkpoint if override is None else override
    if checkpoint is None:
        return start, False
    if not start <= checkpoint <= facts.log_end_offset:
        return start, True
    return checkpoint, False


def _map_from(facts: LogFacts, override: int | None, rules: Rules) -> tuple[int, bool]:
    if override is None or rules is Rules.KAFKA_43:
        return first_dirty(facts, override)
    ours, reset = first_dirty(facts)
    theirs, outside = first_dirty(facts, override)
    return min(ours, theirs), reset or outside


def record_age_from(segment: SegmentFacts, rules: Rules) -> int:
    """The time (ms) from which the age of a segment's records counts, for retention.

    Kafka takes the largest record timestamp, or the file's mtime if no record has one. A timestamp
    ahead of the append clock lies in the future and would hold the log for ever (S-3b, T-25). So
    the append clock bounds the timestamp (L9), and replaces it where there is none.

    A record without a timestamp is as old as its append, regardless of the timestamps around it:
    where some records have none, or this is not known, the last append counts.

    An estimated append clock bounds nothing: it comes from the mtime, which a copy of the file may
    have changed, and in doubt a record stays.
    """
    largest = segment.largest_timestamp if segment.largest_timestamp >= 0 else None
    summary = segment.summary
    is_known = summary is not None and summary.append_last_ms >= 0 and not summary.append_estimated
    if rules is Rules.KAFKA_43 or summary is None or not is_known:
        return segment.mtime_ms if largest is None else largest
    if largest is None or summary.untimed_batches:
        return summary.append_last_ms
    return min(largest, summary.append_last_ms)


def lag_from(segment: SegmentFacts, now_ms: int, rules: Rules) -> int:
    """The time (ms) from which min lag counts: a segment's last append, as far as that is known.

    `min.compaction.lag.ms` is a promise about how long records stay once they are there, whatever
    their producers say of their age, by which Kafka counts (S-3). An append after `now_ms` was
    written down by a clock that has been set back since.
    """
    summary = segment.summary
    is_known = summary is not None and summary.append_last_ms >= 0 and not summary.append_estimated
    if rules is Rules.KAFKA_43 or summary is None or not is_known:
        return record_age_from(segment, rules)
    if summary.append_last_ms > now_ms:
        return record_age_from(segment, rules)
    return summary.append_last_ms


def find_bounds(
    facts: LogFacts,
    topic: TopicConfig,
    now_ms: int,
    rules: Rules,
    dirty: int | None = None,
    contents: Survey | None = None,
) -> Bounds:
    """The bounds of a round at `now_ms`; `dirty` overrides the checkpoint (`--first-dirty`).

    It may have a round map what is clean, not leave out what is dirty: what is below the map counts
    as mapped before, and a tombstone would go before the values that nobody has seen (L1). Kafka's
    rules have whatever is said.

    `contents` is the survey of the segments, if the caller has made it already.
    """
    dirty, reset = _map_from(facts, dirty, rules)
    segments = facts.segments
    upper, bound, held = segments[-1].base_offset, Bound.ACTIVE_SEGMENT, None
    if facts.last_stable_offset < upper:
        upper, bound = facts.last_stable_offset, Bound.LAST_STABLE
    if topic.min_compaction_lag_ms > 0:
        held = _too_young(facts, dirty, topic.min_compaction_lag_ms, now_ms, rules)
        if held is not None and held < upper:
            upper, bound = held, Bound.MIN_LAG
        else:
            held = None
    upper = _snap(facts, max(upper, dirty))
    contents = contents or survey(segments)
    suspect = contents.unreadable or contents.transactions or facts.bad is not None
    if suspect and rules is not Rules.KAFKA_43:
        for cap, why in _caps(facts, now_ms, contents):
            if cap < upper:
                upper, bound, held = cap, why, None
    clean, dirty_bytes = _bytes(segments, dirty, upper)
    return Bounds(dirty, upper, bound, held, reset, clean, dirty_bytes)


def readable(facts: LogFacts) -> tuple[SegmentFacts, ...]:
    """The segments up to and with the first that could not be read to its end.

    What later summaries say of transactions is unreliable: a marker may be in the unread part.
    """
    for n, segment in enumerate(facts.segments):
        if segment.summary is not None and segment.summary.unreadable_from >= 0:
            return facts.segments[: n + 1]
    return facts.segments


def bad_segment(facts: LogFacts) -> SegmentFacts | None:
    """The segment with the bad range that rounds failed on; None without one or if it is gone."""
    if facts.bad is None or facts.bad.first_offset < facts.segments[0].base_offset:
        return None
    base = _snap(facts, facts.bad.first_offset)
    return next(s for s in facts.segments if s.base_offset == base)


def _caps(facts: LogFacts, now_ms: int, contents: Survey) -> Iterator[tuple[int, Bound]]:
    """Lapse's own bounds: (base of a segment, the bound that it sets)."""
    if facts.bad is not None and now_ms < facts.bad.next_try_ms:  # from then on: a full try (L10)
        bad = bad_segment(facts)
        if bad is not None:
            yield bad.base_offset, Bound.BAD_RANGE
    known = facts.segments
    if contents.unreadable:
        known = readable(facts)
        yield known[-1].base_offset, Bound.UNREADABLE
    if contents.transactions:
        undecided = undecided_from(known)
        if undecided is not None:
            yield _snap(facts, undecided), Bound.UNDECIDED


def _too_young(facts: LogFacts, dirty: int, lag_ms: int, now_ms: int, rules: Rules) -> int | None:
    """S-3: base of the first sealed segment, from the one with `dirty` on, held by min lag."""
    segments = facts.segments
    for segment, after in pairwise(segments):
        from_dirty_on = after.base_offset > dirty
        if from_dirty_on and lag_from(segment, now_ms, rules) > now_ms - lag_ms:
            return segment.base_offset
    return None


def _bytes(segments: tuple[SegmentFacts, ...], dirty: int, upper: int) -> tuple[int, int]:
    """S-5: clean bytes, and dirty ones that may be mapped."""
    clean = dirty_bytes = 0
    for segment in segments:
        base = segment.base_offset
        if base < dirty:
            clean += segment.size
        if base <= dirty:
            dirty_bytes = 0
        if base < upper and not segment.active:
            dirty_bytes += segment.size
    return clean, dirty_bytes


def _snap(facts: LogFacts, offset: int) -> int:
    """S-4: base of the segment that holds `offset`; the active base if that holds it."""
    for segment in reversed(facts.segments):
        if segment.base_offset <= offset:
            return segment.base_offset
    return facts.segments[0].base_offset
