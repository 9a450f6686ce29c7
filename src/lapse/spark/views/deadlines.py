"""By when something of a log must be gone, since when its round is due, and what that would free.

Pure. The deadlines are those of the promises (`decide.promises`), slack included, each counted from
what the promise counts from; the first one is the log's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from lapse.lifecycle.decide.bounds import first_dirty
from lapse.lifecycle.decide.horizon import removal_due_ms
from lapse.lifecycle.decide.promises import bounds_of
from lapse.lifecycle.decide.select import Decision, Due, RoundKind, oldest_ms
from lapse.lifecycle.decide.trim import dead_records, trim_due_ms
from lapse.lifecycle.decide.verdict import Rules

# The promises, as `decide.promises` names them.
SUPERSEDED = "a superseded value is gone"
TOMBSTONE = "a tombstone is gone"
MARKER = "a transaction's marker is gone"
DELETED = "deleted records are in no file"


class Deadline(NamedTuple):
    """A moment by which something must be gone, and what: a word for scripts."""

    ms: int
    what: str


def first_deadline(decision: Decision) -> Deadline | None:
    """The first of a log's deadlines, passed ones included; None without any."""
    return min(_deadlines(decision), default=None)


def due_since_ms(decision: Decision) -> int | None:
    """When the round became due, as far as a clock tells: not by the dirty ratio, or a wish."""
    config, removal = decision.info.config, decision.removal
    moments: dict[Due, int | None] = {
        Due.MAX_LAG: decision.now_ms - decision.delay_ms,
        Due.HORIZON: removal_due_ms(removal, config.removal_lag_ms),
        Due.MARKERS: decision.markers_due_ms,
        Due.TOMBSTONES: decision.tombstones_due_ms,
    }
    dead = dead_records(decision.info.facts)
    if dead is not None:
        moments[Due.DELETED] = trim_due_ms(dead, config)
    told = [moments.get(due) for due in decision.due]
    # A removal may be due before half of its lag is over, where much waits for it.
    return min((min(ms, decision.now_ms) for ms in told if ms is not None), default=None)


def bytes_to_free(decision: Decision, keys: int | None) -> int | None:
    """What a due round frees, about; `keys` are the distinct ones below its end, None unknown.

    Records are taken to be of one size. A trim frees its share of one segment, by offsets.
    """
    facts, bounds = decision.info.facts, decision.bounds
    if decision.kind is RoundKind.TRIM:
        dead = dead_records(facts)
        return None if dead is None else _share(dead.holder.base_offset, facts.log_start_offset,
                                                _end_of(decision, dead.holder.base_offset),
                                                dead.holder.size)  # fmt: skip
    reached = [s for s in facts.segments[:-1] if s.base_offset < bounds.upper]
    records = sum(0 if s.summary is None else s.summary.records for s in reached)
    size = sum(s.size for s in reached)
    if keys is None:
        return None
    freed = size * max(records - keys, 0) // records if records else 0
    expired = decision.removal.bytes if Due.HORIZON in decision.due else 0
    return min(freed + expired, size)


def _deadlines(decision: Decision) -> Iterator[Deadline]:
    info, config = decision.info, decision.info.config
    promised = {p.name: p.ms for p in bounds_of(config)}
    dead = dead_records(info.facts)
    if dead is not None and (lag_ms := promised[DELETED]) is not None:
        yield Deadline(dead.since_ms + lag_ms, "deleted")
    if not config.compacts:
        return
    oldest, lag_ms = _oldest_dirty_ms(decision), promised[SUPERSEDED]
    if oldest is not None and lag_ms is not None:
        yield Deadline(oldest + lag_ms, "superseded")
    tombstone_ms, marker_ms = promised[TOMBSTONE] or 0, promised[MARKER] or 0
    if decision.removal.horizon_ms is not None:
        horizon_ms = decision.removal.horizon_ms
        # It passes once the round that stamped it lies delete.retention.ms back (L3).
        waits = [s.may_pass_ms for s in info.stamps if s.horizon_ms <= horizon_ms]
        passed_ms = max([horizon_ms, *waits])
        yield Deadline(passed_ms + tombstone_ms - config.delete_retention_ms, "tombstone")
    half_ms = config.removal_lag_ms // 2  # both are due half-way into their lag
    if decision.tombstones_due_ms is not None:
        yield Deadline(decision.tombstones_due_ms - half_ms + tombstone_ms, "tombstone")
    if decision.markers_due_ms is not None:
        yield Deadline(decision.markers_due_ms - half_ms + marker_ms, "marker")


def _oldest_dirty_ms(decision: Decision) -> int | None:
    """The oldest append that no round has seen yet, of the active segment too; None without one."""
    facts = decision.info.facts
    dirty, _ = first_dirty(facts)
    ends = [*(s.base_offset for s in facts.segments[1:]), facts.log_end_offset]
    waiting = [
        oldest_ms(s, Rules.LAPSE)
        for s, end in zip(facts.segments, ends, strict=True)
        if end > dirty and s.size
    ]
    return min((ms for ms in waiting if ms > 0), default=None)


def _end_of(decision: Decision, base_offset: int) -> int:
    """One past the offsets of a segment."""
    facts = decision.info.facts
    after = (s.base_offset for s in facts.segments if s.base_offset > base_offset)
    return next(after, facts.log_end_offset)


def _share(begin: int, cut: int, end: int, size: int) -> int:
    """Bytes below `cut` of a segment that spans begin … end-1."""
    return size * min(max(cut - begin, 0), end - begin) // (end - begin) if end > begin else 0
