"""The transactions of a log, found from its segments' summaries, without reading the log.

A summary names the first marker of each producer in its segment (`ended`) and the transactions
open at its end (`begun`). Folded in segment order, summaries show which transactions are open
where, the outcome of those that a round sees only the beginning of, and which markers are *spent*:
no batch of their transaction is left (X-5 … X-7), so that they need a delete horizon (KIP-534).

Estimates (see `Summary.is_complete`) are skipped; logs with estimates get no round anyway.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lapse.log.facts import SegmentFacts
from lapse.log.summary import Summary


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction without a marker.

    Attributes:
        first_offset: offset of its first batch that has data.
        since_ms: time of the first append to the segment of that batch; -1 unknown.
    """

    producer_id: int
    first_offset: int
    since_ms: int


def open_transactions(segments: Sequence[SegmentFacts]) -> tuple[OpenTransaction, ...]:
    """The transactions with data that are open after the last segment, by first offset."""
    found = _open_after(segments, emptied_too=False)
    return tuple(sorted(found.values(), key=lambda t: t.first_offset))


def undecided_from(segments: Sequence[SegmentFacts]) -> int | None:
    """First offset of the oldest open transaction, None if there is none."""
    return next((t.first_offset for t in open_transactions(segments)), None)


def outcomes_at(segments: Sequence[SegmentFacts], upper: int) -> tuple[tuple[int, bool], ...]:
    """(producer id, committed) of each transaction begun below `upper` and ended above it.

    `upper` is the base of a segment.
    """
    waiting = _open_after([s for s in segments if s.base_offset < upper], emptied_too=True)
    outcomes: dict[int, bool] = {}
    for summary in _complete([s for s in segments if s.base_offset >= upper]) if waiting else ():
        for ended in summary.ended:
            if ended.producer_id in waiting:
                outcomes.setdefault(ended.producer_id, ended.committed)
    return tuple(sorted(outcomes.items()))


def spent_markers(segments: Sequence[SegmentFacts]) -> int:
    """Number of markers without a delete horizon whose transaction has no batch left."""
    return sum(n for _, n in _spent(segments))


def spent_since_ms(segments: Sequence[SegmentFacts]) -> int:
    """Time of the last append to any segment that holds such a marker; -1 without one."""
    return max((summary.append_last_ms for summary, n in _spent(segments) if n), default=-1)


def _spent(segments: Sequence[SegmentFacts]) -> Iterator[tuple[Summary, int]]:
    open_now: set[int] = set()
    for summary in _complete(segments):
        alone = [e for e in summary.ended if e.alone and e.producer_id not in open_now]
        yield summary, summary.spent_markers + sum(not e.stamped for e in alone)
        open_now -= {e.producer_id for e in summary.ended}
        open_now |= {b.producer_id for b in summary.begun}


def _open_after(
    segments: Sequence[SegmentFacts], *, emptied_too: bool
) -> dict[int, OpenTransaction]:
    """Open transactions by producer id; `emptied_too`: also those with only bare headers left."""
    found: dict[int, OpenTransaction] = {}
    for summary in _complete(segments):
        for ended in summary.ended:
            found.pop(ended.producer_id, None)
        for begun in summary.begun:
            if (emptied_too or not begun.emptied) and begun.producer_id not in found:
                found[begun.producer_id] = OpenTransaction(
                    begun.producer_id, begun.first_offset, summary.append_first_ms
                )
    return found


def _complete(segments: Sequence[SegmentFacts]) -> Iterator[Summary]:
    for segment in segments:
        if segment.summary is not None and segment.summary.is_complete:
            yield segment.summary
