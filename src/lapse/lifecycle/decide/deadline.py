"""When a log without a round due now must be looked at again, at the latest; and how late it is.

KIP-354's lag, the horizons of KIP-534 (with L4), deleted records (L11), other replicas (L3) and
the next try at a bad range (L10) make a round due by time alone, without any append. If no round is
due at a moment named here, the log is only looked at once more than needed.
"""

from __future__ import annotations

from itertools import pairwise

from lapse.base.config import LONG_MAX, TopicConfig
from lapse.base.times import after_ms
from lapse.lifecycle.decide.bounds import Bound, first_dirty, lag_from
from lapse.lifecycle.decide.headers import next_expiry_ms
from lapse.lifecycle.decide.replicas import next_removable_ms
from lapse.lifecycle.decide.select import Blocked, Decision, oldest_ms
from lapse.lifecycle.decide.trim import dead_records, trim_due_ms
from lapse.lifecycle.decide.verdict import Rules
from lapse.log.facts import LogFacts

_TILL_SOMETHING_CHANGES = {Blocked.NOT_COMPACTED, Blocked.SUMMARIES, Blocked.UNHANDLED}
ROLL_SLACK_MS = 1000  # how late the owner may roll a segment that is due


def next_look_ms(decision: Decision) -> int | None:
    """The first moment after this decision at which the decision may be different."""
    facts, now_ms = decision.info.facts, decision.now_ms
    moments: list[int] = []
    if facts.start_moves:
        moments += _of_deleted_records(decision)
    if facts.bad is not None:
        moments.append(facts.bad.next_try_ms)
    if decision.blocked not in _TILL_SOMETHING_CHANGES:
        moments += _of_lags(decision)
        moments += _of_removals(decision)
    return min((t for t in moments if t > now_ms), default=None)


def compaction_delay_ms(facts: LogFacts, topic: TopicConfig, now_ms: int) -> int:
    """By how much the oldest record not yet compacted is past max.compaction.lag.ms.

    Kafka's max-compaction-delay-secs covers the logs it last chose from, and goes stale while no
    log is eligible (V-2). This value is for the log as it is now, active segment included: an
    active segment that should have been rolled is late too. 0 for a log on time or not compacted.
    """
    if not topic.compacts:
        return 0
    dirty, _ = first_dirty(facts)
    ends = [*(s.base_offset for s in facts.segments[1:]), facts.log_end_offset]
    dirty_ones = [s for s, end in zip(facts.segments, ends, strict=True) if end > dirty and s.size]
    waiting = [oldest_ms(s, Rules.LAPSE) for s in dirty_ones]
    oldest = min((ms for ms in waiting if ms > 0), default=now_ms)
    return max(now_ms - topic.max_compaction_lag_ms - oldest, 0)


def _of_lags(decision: Decision) -> list[int]:
    facts, config, now_ms = decision.info.facts, decision.info.config, decision.now_ms
    bounds, max_lag_ms = decision.bounds, config.max_compaction_lag_ms
    moments = []
    if bounds.bound is Bound.MIN_LAG:
        held = next(s for s in facts.segments if s.base_offset == bounds.held_segment)
        moments.append(after_ms(lag_from(held, now_ms, Rules.LAPSE), config.min_compaction_lag_ms))
    if max_lag_ms == LONG_MAX:
        return moments
    for segment, after in pairwise(facts.segments):
        if after.base_offset > bounds.dirty:
            oldest = oldest_ms(segment, Rules.LAPSE)
            if oldest > 0:
                moments.append(after_ms(oldest, max_lag_ms, 1))
    active = facts.segments[-1]
    oldest = oldest_ms(active, Rules.LAPSE)
    if oldest > 0 and facts.log_end_offset > bounds.dirty:
        moments.append(_rolled(after_ms(oldest, max_lag_ms, 1), now_ms))
    return moments


def _of_deleted_records(decision: Decision) -> list[int]:
    dead = dead_records(decision.info.facts)
    if dead is None:
        return []
    due_ms = trim_due_ms(dead, decision.info.config)
    return [_rolled(due_ms, decision.now_ms) if dead.holder.active else due_ms]


def _of_removals(decision: Decision) -> list[int]:
    info, removal = decision.info, decision.removal
    moments = []
    if removal.horizon_ms is not None:
        half_ms = info.config.removal_lag_ms // 2
        moments = [removal.horizon_ms, after_ms(removal.horizon_ms, half_ms)]
        moments += (stamp.may_pass_ms for stamp in info.stamps)
    if decision.markers_due_ms is not None:
        moments.append(decision.markers_due_ms)
    if decision.tombstones_due_ms is not None:
        moments.append(decision.tombstones_due_ms)
    moments += _of_headers(decision)
    if info.facts.replicas:
        retention_ms = info.config.delete_retention_ms
        removable_ms = next_removable_ms(info.facts.replicas, decision.now_ms, retention_ms)
        if removable_ms is not None:
            moments.append(removable_ms)
    return moments


def _of_headers(decision: Decision) -> list[int]:
    """When the headers of expired producers must go, and when the next producer expires."""
    facts, upper, now_ms = decision.info.facts, decision.bounds.upper, decision.now_ms
    if not any(s.summary is not None and s.summary.bare for s in facts.segments):
        return []
    moments = [decision.headers_due_ms, next_expiry_ms(facts, upper, now_ms)]
    return [ms for ms in moments if ms is not None]


def _rolled(due_ms: int, now_ms: int) -> int:
    """`due_ms` for the active segment: a round cannot clean it until the owner has rolled it."""
    return due_ms if due_ms > now_ms else now_ms + ROLL_SLACK_MS
