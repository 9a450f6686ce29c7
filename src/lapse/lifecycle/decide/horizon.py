"""Delete horizons (KIP-534): which have passed, and when the next removal is due.

A horizon is stamped as the round's `now` + `delete.retention.ms`, but the values a tombstone
deletes are gone only at that round's *commit*. So a horizon passes when the clock has reached it
and the commit of the round that stamped it lies `delete.retention.ms` back (L3, with one replica).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

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
    """What expired tombstones wait in a log.

    Attributes:
        horizon_ms: the earliest horizon, None without any.
        bytes: size of the batches that carry a horizon.
    """

    horizon_ms: int | None
    bytes: int


def pending_removal(facts: LogFacts, upper: int) -> Removal:
    """From the summaries of sealed segments below `upper`; no round reaches those above."""
    reached = [s for s in facts.segments[:-1] if s.base_offset < upper]
    summaries = [s.summary for s in reached if s.summary is not None]
    with_horizon = [s for s in summaries if s.horizon_earliest_ms >= 0]
    return Removal(
        min((s.horizon_earliest_ms for s in with_horizon), default=None),
        sum(s.horizon_bytes for s in with_horizon),
    )


def removal_due_ms(removal: Removal, removal_lag_ms: int) -> int | None:
    """L4: when a round must start so that the tombstone is gone within the lag: half-way in."""
    return None if removal.horizon_ms is None else removal.horizon_ms + removal_lag_ms // 2
