"""A decision in words: why a log gets a round, or what holds it back and when that ends."""

from __future__ import annotations

from dataclasses import dataclass

from lapse.lifecycle.decide.bounds import Bound, record_age_from
from lapse.lifecycle.decide.horizon import removal_due_ms
from lapse.lifecycle.decide.roll import ActiveSegment, roll_due_ms
from lapse.lifecycle.decide.select import Blocked, Decision, Due, oldest_ms
from lapse.lifecycle.decide.verdict import Rules


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why, and until when.

    Attributes:
        text: one sentence.
        until_ms: when what it names ends by itself; None if that is not known.
    """

    text: str
    until_ms: int | None = None


def explain(decision: Decision, rules: Rules = Rules.LAPSE) -> Explanation:
    """The binding reason, the way a user would put it; a moment gone by is no news."""
    found = _explain(decision, rules)
    past = found.until_ms is not None and found.until_ms <= decision.now_ms
    return Explanation(found.text) if past else found


def _explain(decision: Decision, rules: Rules) -> Explanation:
    if decision.blocked is Blocked.NOTHING_TO_DO:
        return _nothing_dirty(decision, rules)
    if decision.blocked is not None:
        return Explanation(decision.detail)
    if decision.due:
        return Explanation("due: " + ", ".join(_because(decision, due) for due in decision.due))
    if decision.bounds.dirty_bytes == 0:
        return _nothing_dirty(decision, rules)
    return _ratio(decision, rules)


def _because(d: Decision, due: Due) -> str:
    config = d.info.config
    if due is Due.RATIO:
        return (
            f"dirty ratio {d.bounds.ratio:.2f} is above min.cleanable.dirty.ratio "
            f"{config.min_cleanable_dirty_ratio:g}"
        )
    if due is Due.MAX_LAG:
        return f"records are {d.delay_ms} ms past max.compaction.lag.ms"
    if due is Due.HORIZON:
        return f"{d.removal.bytes} bytes of batches whose tombstones have expired"
    return str(due.value)


def _nothing_dirty(d: Decision, rules: Rules) -> Explanation:
    """No sealed segment may be mapped: say what closes the way."""
    facts, config, bounds = d.info.facts, d.info.config, d.bounds
    if bounds.bound is Bound.LAST_STABLE:
        return Explanation(f"an open transaction holds the log from {facts.last_stable_offset} on")
    if bounds.bound is Bound.MIN_LAG:
        held = next(s for s in facts.segments if s.base_offset == bounds.held_segment)
        until_ms = record_age_from(held, rules) + config.min_compaction_lag_ms
        return Explanation(
            f"segment {held.base_offset} is younger than min.compaction.lag.ms", until_ms
        )
    active = facts.segments[-1]
    if active.size:
        first_ms = -1 if active.summary is None else active.summary.append_first_ms
        rolled_ms = roll_due_ms(ActiveSegment(first_ms, active.size), config)
        return Explanation(
            f"all that is dirty is in the active segment ({active.size} bytes)", rolled_ms
        )
    return _waiting_tombstones(d) or Explanation("clean")


def _waiting_tombstones(d: Decision) -> Explanation | None:
    if d.removal.horizon_ms is None:
        return None
    due_ms = removal_due_ms(d.removal, d.info.config.removal_lag_ms)
    return Explanation("clean; tombstones wait for their delete horizon", due_ms)


def _ratio(d: Decision, rules: Rules) -> Explanation:
    config = d.info.config
    text = (
        f"dirty ratio {d.bounds.ratio:.2f} is not above min.cleanable.dirty.ratio "
        f"{config.min_cleanable_dirty_ratio:g}"
    )
    facts = d.info.facts
    oldest = [oldest_ms(s, rules) for s in facts.segments[:-1] if s.base_offset >= d.bounds.dirty]
    waiting = [ms for ms in oldest if ms > 0]
    until_ms = min(waiting) + config.max_compaction_lag_ms if waiting else None
    return Explanation(text, until_ms if until_ms is not None and until_ms < 1 << 62 else None)
