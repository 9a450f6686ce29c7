"""Which neighbouring segments are rewritten into one: SEMANTICS G-2, G-3 and L13."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

INT_MAX = (1 << 31) - 1
SMALL_PART = 4  # a segment below segment.bytes / 4 is small


@dataclass(frozen=True, slots=True)
class Sizes:
    """A segment as grouping sees it; `size` and index bytes are those before cleaning."""

    base_offset: int
    size: int
    index_bytes: int
    time_index_bytes: int


@dataclass(frozen=True, slots=True)
class Limits:
    """What one segment may hold."""

    segment_bytes: int
    index_bytes: int


Group = tuple[int, ...]  # indexes into the segments


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
        i += 1
        while i < len(segments) and _fits(segments, i, first, room, upper):
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


def worth_rewriting(
    groups: Sequence[Group], segments: Sequence[Sizes], touched: Sequence[bool], limits: Limits
) -> list[Group]:
    """L13: leave alone what loses nothing, unless merging halves the number of small segments.

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
    """Neighbouring small segments together, every other one alone."""
    runs: list[list[int]] = []
    for i in group:
        if runs and small[i] and small[runs[-1][-1]]:
            runs[-1].append(i)
        else:
            runs.append([i])
    return [tuple(run) for run in runs]
