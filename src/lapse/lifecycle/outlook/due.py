"""Since when a log's round is due, and what it would free. Pure."""

from __future__ import annotations

from lapse.lifecycle.decide.horizon import removal_due_ms
from lapse.lifecycle.decide.select import Decision, Due, RoundKind
from lapse.lifecycle.decide.trim import dead_records, trim_due_ms


def due_since_ms(decision: Decision) -> int | None:
    """When the round became due; None where no clock decides, but the dirty ratio or a request."""
    config, removal = decision.info.config, decision.removal
    moments: dict[Due, int | None] = {
        Due.MAX_LAG: decision.now_ms - decision.delay_ms,
        Due.HORIZON: removal_due_ms(removal, config.removal_lag_ms),
        Due.MARKERS: decision.markers_due_ms,
        Due.TOMBSTONES: decision.tombstones_due_ms,
        Due.HEADERS: decision.headers_due_ms,
    }
    dead = dead_records(decision.info.facts)
    if dead is not None:
        moments[Due.DELETED] = trim_due_ms(dead, config)
    times_ms = [moments.get(due) for due in decision.due]
    # A removal may be due before half of its lag is over, where much waits for it.
    return min((min(ms, decision.now_ms) for ms in times_ms if ms is not None), default=None)


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


def _end_of(decision: Decision, base_offset: int) -> int:
    """One past the offsets of a segment."""
    facts = decision.info.facts
    after = (s.base_offset for s in facts.segments if s.base_offset > base_offset)
    return next(after, facts.log_end_offset)


def _share(begin: int, cut: int, end: int, size: int) -> int:
    """Bytes below `cut` of a segment that spans begin … end-1."""
    return size * min(max(cut - begin, 0), end - begin) // (end - begin) if end > begin else 0
