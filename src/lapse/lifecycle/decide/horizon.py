"""Delete horizons (KIP-534): which have passed, and when the next removal is due.

A horizon is stamped as the round's `now` + `delete.retention.ms`, but the values a tombstone
deletes are gone only at that round's *commit*. So a horizon passes when the clock has reached it
and the commit of the round that stamped it lies `delete.retention.ms` back (L3, with one replica;
`replicas` adds the others).

A transaction marker gets its horizon only once no batch of its transaction is left (case 2, H-2):
then a round must stamp it (`markers_due_ms`), and a later one removes it like a tombstone.

Each of our rounds stamps the tombstones it reaches. Below the first dirty offset there may be some
without horizon all the same: a Kafka before 3.1 or another tool cleaned them, they are of an old
format, or KIP-87 was switched on. A log that nobody writes to needs a round for them
(`tombstones_due_ms`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from lapse.base.config import LONG_MAX, TopicConfig
from lapse.lifecycle.decide.transactions import spent_markers, spent_since_ms
from lapse.log.facts import LogFacts


@dataclass(frozen=True, slots=True)
class Stamp:
    """A committed round that may have stamped horizons, from the ledger."""

    now_ms: int
    horizon_ms: int
    committed_ms: int

    @property
    def may_pass_ms(self) -> int:
        """From when readers have had the whole retention since the commit."""
        return self.committed_ms + (self.horizon_ms - self.now_ms)


def passed_until(now_ms: int, stamps: Iterable[Stamp]) -> int:
    """Horizons at or below this have passed at `now_ms`."""
    waiting = [s.horizon_ms - 1 for s in stamps if s.may_pass_ms > now_ms]
    return min([now_ms, *waiting])


@dataclass(frozen=True, slots=True)
class Removal:
    """What expired tombstones and markers wait in a log.

    Attributes:
        horizon_ms: the earliest horizon, None without any.
        bytes: size of the batches that carry a horizon.
    """

    horizon_ms: int | None
    bytes: int


NO_REMOVAL = Removal(None, 0)


def pending_removal(facts: LogFacts, upper: int, below: int = LONG_MAX) -> Removal:
    """From the summaries of sealed segments below `upper`; no round reaches those above.

    Segments wholly at or above `below` hold nothing that may go (L3); one that it lies in may.
    """
    reach = min(upper, below)
    horizon_ms, size = None, 0
    for segment in facts.segments[:-1]:
        summary = segment.summary
        if segment.base_offset >= reach:
            break
        if summary is not None and summary.horizon_earliest_ms >= 0:
            size += summary.horizon_bytes
            if horizon_ms is None or summary.horizon_earliest_ms < horizon_ms:
                horizon_ms = summary.horizon_earliest_ms
    return NO_REMOVAL if horizon_ms is None else Removal(horizon_ms, size)


def removal_due_ms(removal: Removal, removal_lag_ms: int) -> int | None:
    """L4: when a round must start so that the tombstone is gone within the lag: half-way in."""
    return None if removal.horizon_ms is None else removal.horizon_ms + removal_lag_ms // 2


def markers_due_ms(facts: LogFacts, upper: int, removal_lag_ms: int) -> int | None:
    """L4: when a round must stamp the markers below `upper` of which nothing else is left.

    They became spent at some moment since the last append to their segment, which is what counts:
    too early by that, never too late. None where there is no such marker.
    """
    reached = [s for s in facts.segments[:-1] if s.base_offset < upper]
    if not spent_markers(reached):
        return None
    return spent_since_ms(reached) + removal_lag_ms // 2


def tombstones_due_ms(facts: LogFacts, dirty: int, upper: int, topic: TopicConfig) -> int | None:
    """L4: when a round must stamp the tombstones of clean segments that have no horizon at all.

    Counted from the last append to the segment, as for markers. A segment that has some horizon is
    passed over: its round comes by that. None where there is no such tombstone.
    """
    found = None
    for segment, after in pairwise(facts.segments):
        if after.base_offset > min(dirty, upper):
            break
        summary = segment.summary
        if summary is None or summary.horizon_earliest_ms >= 0:
            continue
        valued = summary.valued_tombstones and topic.tombstone_values_enable
        if summary.tombstones > 0 or valued:
            last_ms = summary.append_last_ms
            since_ms = last_ms if last_ms >= 0 else segment.mtime_ms
            found = since_ms if found is None else min(found, since_ms)
    return None if found is None else found + topic.removal_lag_ms // 2
