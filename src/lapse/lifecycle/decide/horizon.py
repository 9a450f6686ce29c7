"""Delete horizons (KIP-534): which have passed, and when the next removal is due.

A horizon is stamped as the round's `now` + `delete.retention.ms`, but the values a tombstone
deletes are gone only at that round's *commit*. So a horizon passes when the clock has reached it
and the commit of the round that stamped it lies `delete.retention.ms` back (L3, with one replica;
`replicas` adds the others).

A transaction marker gets its horizon only once no batch of its transaction is left (case 2, H-2):
then a round must stamp it (`markers_due_ms`), and a later one removes it like a tombstone.

Each Lapse round stamps the tombstones it reaches, and the ledger records that. Tombstones below the
first dirty offset may still lack a valid horizon: Kafka before 3.1 or another tool cleaned them,
they are in an old format, KIP-87 was switched on, or the ledger does not vouch for their horizon
(`Stamp.covers`), which then counts for nothing. A log without new appends needs a round for them
(`tombstones_due_ms`), which stamps them, or stamps them anew, once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from lapse.base.config import LONG_MAX, TopicConfig
from lapse.base.times import after_ms
from lapse.lifecycle.decide.transactions import spent_markers, spent_since_ms
from lapse.log.facts import LogFacts
from lapse.log.summary import Summary


@dataclass(frozen=True, slots=True)
class Stamp:
    """A committed round that has stamped horizons, from the ledger.

    Attributes:
        first_offset, end_offset: the round stamped in [first_offset, end_offset), and its map
            covered all of that range; -1 where the ledger does not say.
    """

    now_ms: int
    horizon_ms: int
    committed_ms: int
    first_offset: int = 0
    end_offset: int = -1

    @property
    def may_pass_ms(self) -> int:
        """When consumers have had the whole retention time since the commit."""
        return after_ms(self.committed_ms, self.horizon_ms - self.now_ms)

    def covers(self, horizon_ms: int, base_offset: int, last_offset: int) -> bool:
        """Whether this stamp vouches for this horizon of this batch.

        A horizon that no Lapse round has set proves nothing: Kafka's cleaner stamps past the end of
        its map (L1, H-7), and a client may have set the bit (L2, H-8). The older values may be in
        the log until a Lapse round removes them, so consumers have had no time since then.
        """
        inside = self.first_offset <= base_offset and last_offset < self.end_offset
        return inside and self.horizon_ms == horizon_ms


def passed_until(now_ms: int, stamps: Iterable[Stamp]) -> int:
    """Horizons at or below this have passed at `now_ms`."""
    waiting = [s.horizon_ms - 1 for s in stamps if s.may_pass_ms > now_ms]
    return min([now_ms, *waiting])


@dataclass(frozen=True, slots=True)
class Removal:
    """The tombstones and markers with a horizon that wait in a log for removal.

    Attributes:
        horizon_ms: the earliest horizon, None if there is none.
        bytes: size of the batches that carry a horizon.
    """

    horizon_ms: int | None
    bytes: int


NO_REMOVAL = Removal(None, 0)


def pending_removal(
    facts: LogFacts, upper: int, below: int = LONG_MAX, stamps: Sequence[Stamp] | None = None
) -> Removal:
    """The pending removal, from the summaries of the sealed segments that a round reaches.

    These lie below `upper`. Nothing in a segment wholly at or above `below` may be removed (L3); in
    the segment that contains `below`, something may. A segment whose first horizon is not one of
    `stamps` counts as having nothing to remove yet; if `stamps` is None, all count, as in Kafka.
    """
    reach = min(upper, below)
    horizon_ms, size = None, 0
    for segment, after in pairwise(facts.segments):
        summary = segment.summary
        if segment.base_offset >= reach:
            break
        if summary is None or summary.horizon_earliest_ms < 0:
            continue
        if stamps is None or _is_ours(summary, after.base_offset, stamps):
            size += summary.horizon_bytes
            if horizon_ms is None or summary.horizon_earliest_ms < horizon_ms:
                horizon_ms = summary.horizon_earliest_ms
    return NO_REMOVAL if horizon_ms is None else Removal(horizon_ms, size)


def _is_ours(summary: Summary, end_offset: int, stamps: Sequence[Stamp]) -> bool:
    """Whether a Lapse round has set the segment's first horizon, as far as its summary shows."""
    first_ms = summary.horizon_earliest_ms
    return any(
        s.horizon_ms == first_ms
        and s.first_offset < end_offset
        and summary.base_offset < s.end_offset
        for s in stamps
    )


def removal_due_ms(removal: Removal, removal_lag_ms: int) -> int | None:
    """L4: when a round must start so that tombstones are gone within the lag: half-way into it."""
    return None if removal.horizon_ms is None else after_ms(removal.horizon_ms, removal_lag_ms // 2)


def markers_due_ms(facts: LogFacts, upper: int, removal_lag_ms: int) -> int | None:
    """L4: when a round must stamp the spent markers below `upper`; None if there are none.

    A marker became spent at some moment since the last append to its segment. The lag counts from
    that append, so the result may be too early but is never too late.
    """
    reached = [s for s in facts.segments[:-1] if s.base_offset < upper]
    if not spent_markers(reached):
        return None
    return after_ms(spent_since_ms(reached), removal_lag_ms // 2)


def tombstones_due_ms(
    facts: LogFacts, dirty: int, upper: int, topic: TopicConfig, stamps: Sequence[Stamp] = ()
) -> int | None:
    """L4: when a round must stamp tombstones in clean segments that no Lapse round has stamped.

    The lag counts from the last append to the segment, as for markers. A segment whose first
    horizon is Lapse's is skipped: that horizon makes its round due. None if there is no such
    tombstone.
    """
    found = None
    for segment, after in pairwise(facts.segments):
        if after.base_offset > min(dirty, upper):
            break
        summary = segment.summary
        if summary is None or (summary.old_format and topic.keeps_old_formats):
            continue  # no round could stamp them
        if summary.horizon_earliest_ms >= 0:
            waits = not _is_ours(summary, after.base_offset, stamps)
        else:
            waits = summary.tombstones > 0 or summary.valued_tombstones
        if waits:
            last_ms = summary.append_last_ms
            since_ms = last_ms if last_ms >= 0 else segment.mtime_ms
            found = since_ms if found is None else min(found, since_ms)
    return None if found is None else after_ms(found, topic.removal_lag_ms // 2)
