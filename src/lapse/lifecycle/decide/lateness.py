"""The deadlines by which records of a log must be gone, and how late the log is.

The deadlines are those of the promises (`promises`), slack included, each counted from the moment
that the promise names. A log past a deadline is late, regardless of the cause: a log cleaner
service that does not run, a round that fails, a clock that no operator confirms. Metrics,
`lapse explain` and the views report the same figure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from lapse.base.config import TopicConfig
from lapse.base.times import after_ms
from lapse.lifecycle.decide.bounds import first_dirty, record_age_from
from lapse.lifecycle.decide.promises import (
    DELETED_IS_GONE,
    EXPIRED_IS_GONE,
    MARKER_IS_GONE,
    SLACK_MS,
    SUPERSEDED_IS_GONE,
    TOMBSTONE_IS_GONE,
    bounds_of,
)
from lapse.lifecycle.decide.select import Decision, oldest_ms
from lapse.lifecycle.decide.trim import dead_records
from lapse.lifecycle.decide.verdict import Rules
from lapse.log.facts import LogFacts, SegmentFacts

# Kinds of deadlines, as named in scripts and metrics.
SUPERSEDED, TOMBSTONE, MARKER = "superseded", "tombstone", "marker"
DELETED, RETENTION = "deleted", "retention"


class Deadline(NamedTuple):
    """The kind of records that must be gone, and the moment by which they must be."""

    ms: int
    what: str


def kinds_of(topic: TopicConfig) -> tuple[str, ...]:
    """The kinds of deadlines that a topic with these settings has."""
    of_rounds = (SUPERSEDED, TOMBSTONE, MARKER) if topic.compacts else ()
    expires = topic.deletes and topic.retention_ms >= 0
    return (*of_rounds, DELETED, *((RETENTION,) if expires else ()))


def deadlines_of(decision: Decision) -> tuple[Deadline, ...]:
    """All of a log's deadlines, passed ones included."""
    return tuple(_deadlines(decision))


def first_deadline(decision: Decision) -> Deadline | None:
    """The earliest deadline of a log; None if it has none."""
    return min(_deadlines(decision), default=None)


def overdue_ms(topic: TopicConfig, deadlines: Iterable[Deadline], now_ms: int) -> dict[str, int]:
    """By kind, by how much the most overdue deadline is late; 0 if none is."""
    late = dict.fromkeys(kinds_of(topic), 0)
    for deadline in deadlines:
        late[deadline.what] = max(late.get(deadline.what, 0), now_ms - deadline.ms)
    return late


def retention_deadline(first: SegmentFacts, topic: TopicConfig) -> Deadline | None:
    """By when a log's first segment must have expired; None where nothing expires by age.

    Records may be appended with timestamps that have expired already. The part of the bound beyond
    `retention.ms` then counts from the last append: they could not be removed before.
    """
    promised = {p.name: p.ms for p in bounds_of(topic)}.get(EXPIRED_IS_GONE)
    if promised is None or not first.size:
        return None
    expired_ms = after_ms(record_age_from(first, Rules.LAPSE), promised)
    summary = first.summary
    is_known = summary is not None and summary.append_last_ms >= 0
    appended_ms = summary.append_last_ms if summary is not None and is_known else first.mtime_ms
    came_ms = after_ms(appended_ms, promised - topic.retention_ms)
    return Deadline(max(expired_ms, came_ms), RETENTION)


def _deadlines(decision: Decision) -> Iterator[Deadline]:
    info, config = decision.info, decision.info.config
    promised = {p.name: p.ms for p in bounds_of(config)}
    expires = retention_deadline(info.facts.segments[0], config)
    if expires is not None:
        yield expires
    dead = dead_records(info.facts)
    if dead is not None and (lag_ms := promised[DELETED_IS_GONE]) is not None:
        yield Deadline(after_ms(dead.since_ms, lag_ms), DELETED)
    if not config.compacts:
        return
    oldest, lag_ms = _oldest_dirty_ms(info.facts), promised[SUPERSEDED_IS_GONE]
    if oldest is not None and lag_ms is not None:
        yield Deadline(after_ms(oldest, lag_ms), SUPERSEDED)
    tombstone_ms, marker_ms = promised[TOMBSTONE_IS_GONE] or 0, promised[MARKER_IS_GONE] or 0
    if decision.removal.horizon_ms is not None:
        horizon_ms = decision.removal.horizon_ms
        # It passes once the round that stamped it lies delete.retention.ms back (L3).
        waits = [s.may_pass_ms for s in info.stamps if s.horizon_ms <= horizon_ms]
        passed_ms = max([horizon_ms, *waits])
        # What is left of the promise, added up anew: its sum may have ended at "for ever".
        rest_ms = (config.removal_lag_ms, SLACK_MS, config.file_delete_delay_ms)
        yield Deadline(after_ms(passed_ms, *rest_ms), TOMBSTONE)
    half_ms = config.removal_lag_ms // 2  # both are due half-way into their lag
    if decision.tombstones_due_ms is not None:
        yield Deadline(after_ms(decision.tombstones_due_ms, tombstone_ms - half_ms), TOMBSTONE)
    if decision.markers_due_ms is not None:
        yield Deadline(after_ms(decision.markers_due_ms, marker_ms - half_ms), MARKER)


def _oldest_dirty_ms(facts: LogFacts) -> int | None:
    """Time of the oldest append not yet cleaned, active segment included; None if there is none."""
    dirty, _ = first_dirty(facts)
    ends = [*(s.base_offset for s in facts.segments[1:]), facts.log_end_offset]
    waiting = [
        oldest_ms(s, Rules.LAPSE)
        for s, end in zip(facts.segments, ends, strict=True)
        if end > dirty and s.size
    ]
    return min((ms for ms in waiting if ms > 0), default=None)
