"""Which neighbouring segments are rewritten into one: G-2, G-3 and L13.

Under compact,delete retention drops a segment by its greatest age, so a merged one keeps its older
records longer than they would have been kept alone: KIP-354 warns of it, Kafka accepts it (T-26).
With `Limits.span_ms` no merge lets a record wait longer than a full segment would.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lapse.base.config import TopicConfig
from lapse.lifecycle.decide.verdict import Rules

INT_MAX = (1 << 31) - 1
SMALL_PART = 4  # a segment below segment.bytes / 4 is small


@dataclass(frozen=True, slots=True)
class Sizes:
    """What grouping knows of a segment; `size` and index bytes are those before cleaning.

    Attributes:
        first_ms, last_ms: the segment's append clock, -1 unknown.
        largest_ms: the segment's largest record timestamp, -1 for none.
    """

    base_offset: int
    size: int
    index_bytes: int
    time_index_bytes: int
    first_ms: int = -1
    last_ms: int = -1
    largest_ms: int = -1


@dataclass(frozen=True, slots=True)
class Limits:
    """What one segment may hold; `span_ms` bounds the time that a merged one spans."""

    segment_bytes: int
    index_bytes: int
    span_ms: int | None = None


Group = tuple[int, ...]  # indexes into the segments


def span_limit_ms(topic: TopicConfig, rules: Rules) -> int | None:
    """segment.ms where merging could delay deletion by time (T-26), None where it cannot."""
    by_time = topic.compacts and topic.deletes and topic.retention_ms >= 0
    return topic.segment_ms if by_time and rules is not Rules.KAFKA_43 else None


def group_segments(segments: Sequence[Sizes], limits: Limits, upper: int) -> list[Group]:
    """G-2: greedy, in order; `upper` is the end of the last segment's offsets."""
    groups: list[Group] = []
    i = 0
    while i < len(segments):
        first = i
        room = [
            limits.segment_bytes - segments[i].size,
            limits.index_bytes - segments[i].index_bytes,
            limits.index_bytes - segments[i].time_index_bytes,
        ]
        span = _Span(limits.span_ms)
        span.takes(segments[i])
        i += 1
        while (
            i < len(segments) and _fits(segments, i, first, room, upper) and span.takes(segments[i])
        ):
            s = segments[i]
            room = [room[0] - s.size, room[1] - s.index_bytes, room[2] - s.time_index_bytes]
            i += 1
        groups.append(tuple(range(first, i)))
    return groups


def _fits(segments: Sequence[Sizes], i: int, first: int, room: Sequence[int], upper: int) -> bool:
    s = segments[i]
    last = (segments[i + 1].base_offset if i + 1 < len(segments) else upper) - 1
    return (
        s.size <= room[0]
        and s.index_bytes <= room[1]
        and s.time_index_bytes <= room[2]
        and (s.size == 0 or last - segments[first].base_offset <= INT_MAX)
    )


class _Span:
    """The time that the segments of a group span.

    Retention counts a segment's age from its largest timestamp, but no later than its last append
    (L9). For a merged segment that time must be at most `limit_ms` after the earliest time from
    which the records of one of its parts may be counted old.
    """

    def __init__(self, limit_ms: int | None) -> None:
        self._limit_ms = limit_ms
        self._oldest_ms: int | None = None
        self._last_ms = self._largest_ms = -1

    def takes(self, s: Sizes) -> bool:
        """Take a segment in, unless it makes the span too long; the first is always taken."""
        if self._limit_ms is None or s.size == 0:
            return True
        known = s.first_ms >= 0 and s.last_ms >= 0
        largest_ms = s.largest_ms if s.largest_ms >= 0 else s.last_ms
        oldest_ms = min(s.first_ms, largest_ms) if known else -1
        last_ms = max(self._last_ms, s.last_ms)
        largest_ms = max(self._largest_ms, largest_ms)
        if self._oldest_ms is not None:
            oldest_ms = min(self._oldest_ms, oldest_ms)
            if oldest_ms < 0 or min(last_ms, largest_ms) - oldest_ms > self._limit_ms:
                return False
        self._oldest_ms, self._last_ms, self._largest_ms = oldest_ms, last_ms, largest_ms
        return True


def worth_rewriting(
    groups: Sequence[Group], segments: Sequence[Sizes], touched: Sequence[bool], limits: Limits
) -> list[Group]:
    """L13: leave untouched segments alone, unless merging halves the number of small segments.

    A touched segment is rewritten; runs of small ones are merged only all together, and only if
    that leaves at most half as many.
    """
    small = [s.size < limits.segment_bytes // SMALL_PART for s in segments]
    runs = [run for group in groups for run in _runs(group, small)]
    small_runs = [run for run in runs if small[run[0]]]
    n_small = sum(len(run) for run in small_runs)
    if 2 * len(small_runs) > n_small:
        runs = [(i,) for group in groups for i in group]
    return [run for run in runs if len(run) > 1 or touched[run[0]]]


def _runs(group: Group, small: Sequence[bool]) -> list[Group]:
    """Runs of neighbouring small segments; each segment that is not small is a run by itself."""
    runs: list[list[int]] = []
    for i in group:
        if runs and small[i] and small[runs[-1][-1]]:
            runs[-1].append(i)
        else:
            runs.append([i])
    return [tuple(run) for run in runs]
