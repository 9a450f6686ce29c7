"""When a log that has no round due now must be looked at again, at the latest.

KIP-354's lag and the horizons of KIP-534 (with L4) pass by the clock, without anybody writing. A
moment named here may come to nothing; then the log is looked at once more than needed.
"""

from __future__ import annotations

from collections.abc import Iterator

from lapse.lifecycle.decide.horizon import removal_due_ms
from lapse.lifecycle.decide.select import Blocked, Decision, oldest_ms
from lapse.lifecycle.decide.verdict import Rules

_TILL_SOMETHING_CHANGES = {Blocked.NOT_COMPACTED, Blocked.SUMMARIES, Blocked.UNHANDLED}
ROLL_SLACK_MS = 1000  # how late the owner may roll a segment whose time has come


def next_look_ms(decision: Decision) -> int | None:
    """The first moment after the decision's at which another one may come out."""
    if decision.blocked in _TILL_SOMETHING_CHANGES:
        return None
    now_ms = decision.now_ms
    return min((t for t in _moments(decision) if t > now_ms), default=None)


def _moments(decision: Decision) -> Iterator[int]:
    facts, config = decision.info.facts, decision.info.config
    ends = [s.base_offset for s in facts.segments[1:]] + [facts.log_end_offset]
    for segment, end in zip(facts.segments, ends, strict=True):
        oldest = oldest_ms(segment, Rules.LAPSE)
        if oldest > 0 and end > decision.bounds.dirty:
            late_ms = oldest + config.max_compaction_lag_ms + 1
            if segment.active and late_ms <= decision.now_ms:
                late_ms = decision.now_ms + ROLL_SLACK_MS
            yield late_ms
    removal = decision.removal
    due_ms = removal_due_ms(removal, config.removal_lag_ms)
    if removal.horizon_ms is not None and due_ms is not None:
        yield removal.horizon_ms
        yield due_ms
        yield from (stamp.may_pass_ms for stamp in decision.info.stamps)
