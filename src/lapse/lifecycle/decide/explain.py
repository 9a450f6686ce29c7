"""A decision in words: why a log gets a round, or which rule holds it back and when that ends.

The text gives one reason, the binding one, with a word for scripts (`RULES`). If a round is due but
narrowed (by a bad range or an undecided transaction), the text adds that.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise

from lapse.base.config import LONG_MAX
from lapse.base.sizes import size_text
from lapse.base.times import after_ms, duration
from lapse.lifecycle.decide.bounds import Bound, bad_segment, lag_from, readable
from lapse.lifecycle.decide.clock import ClockVerdict, clock_text
from lapse.lifecycle.decide.horizon import pending_removal, removal_due_ms
from lapse.lifecycle.decide.replicas import next_removable_ms, removable_below
from lapse.lifecycle.decide.roll import ActiveSegment, roll_due_ms
from lapse.lifecycle.decide.select import Blocked, Decision, Due, oldest_ms
from lapse.lifecycle.decide.transactions import open_transactions
from lapse.lifecycle.decide.trim import dead_records, trim_due_ms
from lapse.lifecycle.decide.verdict import Rules
from lapse.log.facts import LogFacts
from lapse.log.roll import jitter_of

# The values of `Explanation.rule`; scripts rely on these words.
RULES = (
    "policy", "summaries", "unhandled", "clock", "paused", "backoff", "waiting", "due",
    "active-segment", "open-transaction", "uncommitted", "min-lag", "future-timestamp",
    "bad-range", "ratio", "replica", "clean",
)  # fmt: skip

# Why a tombstone of v0 or v1 stays.
NO_HORIZONS = (
    "stay while records are written in a format before 0.11 (message.format.version, "
    "inter.broker.protocol.version): there is no room for a delete horizon"
)

_BLOCKED = {
    Blocked.NOT_COMPACTED: "policy",
    Blocked.SUMMARIES: "summaries",
    Blocked.UNHANDLED: "unhandled",
}


@dataclass(frozen=True, slots=True)
class Explanation:
    """The reason for a decision, and until when it holds.

    Attributes:
        text: one sentence.
        until_ms: when the state that `text` names ends by itself; None if that is not known.
        rule: the binding rule, one of `RULES`.
    """

    text: str
    until_ms: int | None = None
    rule: str = ""


@dataclass(frozen=True, slots=True)
class Context:
    """What the explanation needs beyond the decision.

    Attributes:
        rules: the rules that the decision was made by.
        waiting_behind: number of logs that get their rounds first.
        setback_until_ms, setback_reason: the log's last round failed, and the log gets no round
            until then.
        clock: the last verdict on the clock.
        paused: the operator's pause of the log's rounds, in words; "" without a pause.
        paused_until_ms: when the pause ends, None: when the operator ends it.
    """

    rules: Rules = Rules.LAPSE
    waiting_behind: int = 0
    setback_until_ms: int | None = None
    setback_reason: str = ""
    clock: ClockVerdict | None = None
    paused: str = ""
    paused_until_ms: int | None = None


_NO_CONTEXT = Context()


def explain(decision: Decision, context: Context | None = None) -> Explanation:
    """The binding reason in a user's words; a moment that has passed is left out."""
    found = _explain(decision, context or _NO_CONTEXT)
    gone_by = found.until_ms is not None and found.until_ms <= decision.now_ms
    return Explanation(found.text, None if gone_by else found.until_ms, found.rule)


def _explain(d: Decision, c: Context) -> Explanation:
    if d.blocked is not None and d.blocked in _BLOCKED:
        text, until_ms = _with_deleted(d, d.detail)
        return Explanation(text, until_ms, _BLOCKED[d.blocked])
    if c.clock is not None and c.clock.held:
        return Explanation(clock_text(c.clock), None, "clock")
    if d.due:
        return _due(d, c)
    if d.bounds.dirty_bytes == 0:
        return _nothing_dirty(d, c.rules)
    return _ratio(d, c.rules)


# --- due ------------------------------------------------------------------------------------------


def _due(d: Decision, c: Context) -> Explanation:
    text = "due: " + ", ".join(_because(d, due) for due in d.due) + _beside(d)
    if c.paused:
        return Explanation(f"{c.paused}; {text}", c.paused_until_ms, "paused")
    if c.setback_until_ms is not None and c.setback_until_ms > d.now_ms:
        why = f" ({c.setback_reason})" if c.setback_reason else ""
        return Explanation(
            f"its last round came to nothing{why}; {text}", c.setback_until_ms, "backoff"
        )
    if c.waiting_behind:
        return Explanation(f"waiting behind {c.waiting_behind} logs; {text}", None, "waiting")
    return Explanation(text, None, "due")


def _because(d: Decision, due: Due) -> str:
    if due is Due.RATIO:
        return _ratio_text(d, "is above")
    if due is Due.MAX_LAG:
        return f"records are {duration(d.delay_ms)} past max.compaction.lag.ms"
    if due is Due.HORIZON:
        return f"{size_text(d.removal.bytes)} of batches whose tombstones have expired"
    if due is Due.DELETED:
        return f"records below {d.info.facts.log_start_offset} were deleted and are still in a file"
    return str(due.value)


def _beside(d: Decision) -> str:
    """What keeps a due round from cleaning further, as an addition to the text."""
    if d.bounds.bound in {Bound.BAD_RANGE, Bound.UNREADABLE}:
        return f"; not from {d.bounds.upper} on: {_bad(d).text}"
    if d.bounds.bound is Bound.UNDECIDED:
        return f"; not from {d.bounds.upper} on: {_open_transaction(d).text}"
    return ""


# --- nothing that may be mapped -------------------------------------------------------------------


def _nothing_dirty(d: Decision, rules: Rules) -> Explanation:
    """No sealed segment may be mapped: name the bound that prevents it."""
    bound = d.bounds.bound
    if bound in {Bound.LAST_STABLE, Bound.UNDECIDED}:
        return _open_transaction(d)
    if bound in {Bound.BAD_RANGE, Bound.UNREADABLE}:
        return _bad(d)
    return _min_lag(d, rules) if bound is Bound.MIN_LAG else _active(d)


def _open_transaction(d: Decision) -> Explanation:
    """S-3, S-4: names the producer, if summaries show it; when the transaction ends is unknown.

    What is not committed holds a log in the same way.
    """
    facts = d.info.facts
    known = open_transactions(readable(facts))
    if facts.replicas and facts.last_stable_offset == facts.high_watermark:
        text = f"what follows offset {facts.high_watermark} is not on all in-sync replicas yet"
        return Explanation(text, None, "uncommitted")
    if not known:
        text = f"an open transaction holds the log from {facts.last_stable_offset} on"
        return Explanation(text, None, "open-transaction")
    first = known[0]
    since = f", since {_utc(first.since_ms)}" if first.since_ms >= 0 else ""
    text = (
        f"a transaction of producer {first.producer_id} without marker holds the log from "
        f"{first.first_offset} on{since}"
    )
    return Explanation(text, None, "open-transaction")


def _min_lag(d: Decision, rules: Rules) -> Explanation:
    """S-3, S-3b and L9."""
    held = next(s for s in d.info.facts.segments if s.base_offset == d.bounds.held_segment)
    age_from_ms = lag_from(held, d.now_ms, rules)
    until_ms = after_ms(age_from_ms, d.info.config.min_compaction_lag_ms)
    if age_from_ms > d.now_ms:
        text = (
            f"segment {held.base_offset} has a timestamp from the future, {_utc(age_from_ms)}, "
            "which min.compaction.lag.ms waits for"
        )
        return Explanation(text, until_ms, "future-timestamp")
    text = f"segment {held.base_offset} is younger than min.compaction.lag.ms"
    if held.largest_timestamp > d.now_ms:
        text += f"; its timestamp from the future, {_utc(held.largest_timestamp)}, is not followed"
    return Explanation(text, until_ms, "min-lag")


def _bad(d: Decision) -> Explanation:
    """L10: reason, position and next try."""
    facts = d.info.facts
    if d.bounds.bound is Bound.BAD_RANGE and facts.bad is not None and bad_segment(facts):
        bad = facts.bad
        text = (
            f"segment {bad.segment_base} cannot be read at byte {bad.position} (offset "
            f"{bad.first_offset}: {bad.reason}); {bad.tries} tries since {_utc(bad.since_ms)}"
        )
        return Explanation(text, bad.next_try_ms, "bad-range")
    odd = readable(facts)[-1]
    offset = odd.summary.unreadable_from if odd.summary is not None else -1
    text = f"segment {odd.base_offset} cannot be read from offset {offset} on"
    if d.look_again is not None:
        return Explanation(f"{text}; it is about to be looked through again", None, "bad-range")
    next_try_ms = None if facts.bad is None else facts.bad.next_try_ms
    return Explanation(text, next_try_ms, "bad-range")


def _active(d: Decision) -> Explanation:
    facts, config = d.info.facts, d.info.config
    active = facts.segments[-1]
    if active.size and d.bounds.dirty < facts.log_end_offset:
        first_ms = -1 if active.summary is None else active.summary.append_first_ms
        jitter = jitter_of(facts.partition, active.base_offset)
        rolled_ms = roll_due_ms(ActiveSegment(first_ms, active.size, jitter), config)
        text = f"all that is dirty is in the active segment ({size_text(active.size)})"
        return Explanation(text, rolled_ms, "active-segment")
    return _clean(d)


def _clean(d: Decision) -> Explanation:
    """What a clean log still waits for; only the earliest is named."""
    waits: list[tuple[int, str]] = []
    due_ms = removal_due_ms(d.removal, d.info.config.removal_lag_ms)
    if due_ms is not None:
        waits.append((due_ms, "tombstones wait for their delete horizon"))
    if d.markers_due_ms is not None:
        waits.append(
            (d.markers_due_ms, "markers of transactions that are gone wait for their horizon")
        )
    if d.tombstones_due_ms is not None:
        waits.append((d.tombstones_due_ms, "tombstones that no round has stamped wait for that"))
    if d.headers_due_ms is not None:
        waits.append((d.headers_due_ms, "headers of producers that are gone wait to go"))
    if not waits:
        held = _replica(d)
        if held is not None:
            return held
    text, deleted_ms = _with_deleted(d, "clean")
    until_ms, also = min(waits, default=(deleted_ms, ""))
    if d.info.config.keeps_old_formats and _keeps_old_tombstones(d):
        also = f"{also}; tombstones of old formats {NO_HORIZONS}".removeprefix("; ")
    return Explanation(f"{text}; {also}" if also else text, until_ms, "clean")


def _keeps_old_tombstones(d: Decision) -> bool:
    summaries = [s.summary for s in d.info.facts.segments[:-1]]
    return any(s is not None and s.old_format and s.tombstones for s in summaries)


def _replica(d: Decision) -> Explanation | None:
    """L3: something has expired, and another replica has not cleaned past it."""
    facts, retention_ms = d.info.facts, d.info.config.delete_retention_ms
    expired = pending_removal(facts, d.bounds.upper, stamps=d.info.stamps)
    if expired.horizon_ms is None or expired.horizon_ms > d.passed_until_ms:
        return None
    node = removable_below(facts.replicas, d.now_ms, retention_ms).node_id
    replica = "other replicas" if node is None else f"replica {node}{_away(facts, node)}"
    return Explanation(
        f"clean; expired tombstones from {d.removable_below} on wait until {replica} has cleaned "
        f"past them for delete.retention.ms",
        next_removable_ms(facts.replicas, d.now_ms, retention_ms), "replica",
    )  # fmt: skip


def _away(facts: LogFacts, node_id: int) -> str:
    since_ms = max(one.away_since_ms for one in facts.replicas if one.node_id == node_id)
    if not since_ms:
        return ""
    return (
        f" (not in sync since {_utc(since_ms)}; while its broker is away it is waited for up to "
        "lapse.replica.absence.max.ms)"
    )


def _with_deleted(d: Decision, text: str) -> tuple[str, int | None]:
    """Deleted records in a file, and when their round is due."""
    dead = dead_records(d.info.facts)
    if dead is None:
        return text, None
    extended = f"{text}; deleted records are still in segment {dead.holder.base_offset}"
    return extended, trim_due_ms(dead, d.info.config)


# --- ratio ----------------------------------------------------------------------------------------


def _ratio(d: Decision, rules: Rules) -> Explanation:
    """The log waits until max lag is reached or a producer appends more."""
    lag_ms = d.info.config.max_compaction_lag_ms
    text = _ratio_text(d, "is not above") + _beside(d)
    if lag_ms == LONG_MAX:
        return Explanation(f"{text}; max.compaction.lag.ms is not set", None, "ratio")
    segments = d.info.facts.segments
    waiting = [
        oldest_ms(segment, rules)
        for segment, after in pairwise(segments)
        if d.bounds.dirty < after.base_offset <= max(d.bounds.upper, d.bounds.dirty)
    ]
    oldest = min((ms for ms in waiting if ms > 0), default=None)
    return Explanation(text, None if oldest is None else after_ms(oldest, lag_ms, 1), "ratio")


def _ratio_text(d: Decision, compares: str) -> str:
    least = d.info.config.min_cleanable_dirty_ratio
    return f"dirty ratio {d.bounds.ratio:.2f} {compares} min.cleanable.dirty.ratio {least:g}"


def _utc(ms: int) -> str:
    try:
        return datetime.fromtimestamp(ms // 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"
