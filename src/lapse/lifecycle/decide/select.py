"""Which logs get a round now, in which order, and why the others do not.

What Kafka calls LogCleanerManager.

S-1, S-5 … S-9 with L3 (who is waited for), L4 (expired tombstones, spent markers and
tombstones that nobody gave a horizon are reasons of their own), L6 (what must be cleaned goes
first), L9, L10 and L11 (deleted records are a reason too, also without `compact`). Nothing here
reads a file or a clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise
from typing import NamedTuple

from lapse.base.config import LONG_MAX, TopicConfig
from lapse.lifecycle.decide.bounds import Bounds, bad_segment, find_bounds, readable
from lapse.lifecycle.decide.clock import Step, lag_over
from lapse.lifecycle.decide.headers import headers_due_ms
from lapse.lifecycle.decide.horizon import (
    NO_REMOVAL,
    Removal,
    Stamp,
    markers_due_ms,
    passed_until,
    pending_removal,
    removal_due_ms,
    tombstones_due_ms,
)
from lapse.lifecycle.decide.replicas import removable_below
from lapse.lifecycle.decide.survey import Survey, survey
from lapse.lifecycle.decide.transactions import outcomes_at
from lapse.lifecycle.decide.trim import Dead, dead_records, trim_due_ms
from lapse.lifecycle.decide.verdict import Rules
from lapse.log.facts import LogFacts, SegmentFacts


class Due(Enum):
    """Why a log gets a round."""

    RATIO = "dirty ratio"
    MAX_LAG = "max.compaction.lag.ms"
    HORIZON = "expired tombstones"
    MARKERS = "markers of transactions that are gone"
    TOMBSTONES = "tombstones that no round has stamped"
    HEADERS = "headers of producers that are gone"
    DELETED = "deleted records in a file"
    FORCED = "--force"


# Everything but the share of dirty bytes is due by a moment; somebody counts on that.
BY_A_MOMENT = frozenset(Due) - {Due.RATIO, Due.FORCED}


class RoundKind(Enum):
    """What a round does.

    CLEAN is compaction and all that goes with it. TRIM only takes the records below the log start
    out of the segment that holds it: it maps nothing, and moves no checkpoint.
    """

    CLEAN = "clean"
    TRIM = "trim"


class Blocked(Enum):
    """Why a log cannot get one, whatever its ratio."""

    NOT_COMPACTED = "cleanup.policy has no compact"
    SUMMARIES = "summaries missing"
    UNHANDLED = "holds what this version does not clean"
    NOTHING_TO_DO = "nothing to clean"


@dataclass(frozen=True, slots=True)
class LogInfo:
    """A log as its owner tells of it.

    Attributes:
        config: settings in force.
        stamps: committed rounds whose horizons may still be waiting, or in a file: those vouch for
            theirs.
    """

    facts: LogFacts
    config: TopicConfig
    stamps: tuple[Stamp, ...] = ()


class Decision(NamedTuple):
    """What is decided of one log at one moment. A tuple: one a log and look is made.

    Attributes:
        due: reasons for a round, empty if it gets none.
        blocked: why it cannot get one, None if it could; `detail` says more, in words.
        passed_until_ms: horizons at or below this have passed.
        must_clean_bytes: dirty bytes within reach that have waited for max.compaction.lag.ms.
        delay_ms: by how much the oldest of them is late (S-6), 0 if none is.
        kind: what the round is, if one is due.
        removable_below: tombstones and markers at or above it wait for other replicas (L3).
        outcomes: (producer id, whether it was committed) of each transaction that is open at
            `bounds.upper` and decided above it.
        markers_due_ms: when a round must stamp markers of transactions that are gone, None
            without any.
        tombstones_due_ms: when one must stamp tombstones that are clean and have no horizon of
            ours.
        headers_due_ms: when one must take headers that nothing needs any more.
        look_again: base of the segment that could not be read, if it is to be looked through
            again now (L10).
        stamp_ms: the time to count horizons from, no less than `now_ms`.
    """

    info: LogInfo
    now_ms: int
    bounds: Bounds
    removal: Removal
    due: tuple[Due, ...]
    blocked: Blocked | None
    detail: str
    passed_until_ms: int
    must_clean_bytes: int
    delay_ms: int
    kind: RoundKind = RoundKind.CLEAN
    removable_below: int = LONG_MAX
    outcomes: tuple[tuple[int, bool], ...] = ()
    markers_due_ms: int | None = None
    tombstones_due_ms: int | None = None
    headers_due_ms: int | None = None
    look_again: int | None = None
    stamp_ms: int = -1

    @property
    def must_clean_ratio(self) -> float:
        total = self.bounds.clean_bytes + self.bounds.dirty_bytes
        return self.must_clean_bytes / total if total else 0.0


@dataclass(frozen=True, slots=True)
class RoundOptions:
    """What a caller asks beyond the facts.

    Attributes:
        force: `--force` skips ratio, lags and waiting, never policy.
        dirty: `--first-dirty`.
        removable_below: `--replica-cleaned-to`: tombstones and markers from there on stay.
        stamp_ms: the time to count horizons from, where that may be later than the time to decide
            by (ADR-11).
        steps: what a clock that was set right had noted too early.
    """

    rules: Rules = Rules.LAPSE
    force: bool = False
    dirty: int | None = None
    removable_below: int | None = None
    stamp_ms: int | None = None
    steps: tuple[Step, ...] = ()


_NOTHING_MORE = RoundOptions()


def decide(info: LogInfo, now_ms: int, wish: RoundOptions | None = None) -> Decision:
    """The decision on one log."""
    wish = wish or _NOTHING_MORE
    facts, config = info.facts, info.config
    exact = wish.rules is Rules.KAFKA_43
    if wish.force:
        config = replace(config, min_compaction_lag_ms=0)
    elif wish.steps and config.min_compaction_lag_ms > 0:
        lag_ms = lag_over(wish.steps, now_ms, config.min_compaction_lag_ms)
        config = replace(config, min_compaction_lag_ms=lag_ms)
    told = survey(facts.segments)
    bounds = find_bounds(facts, config, now_ms, wish.rules, wish.dirty, told)
    passed = now_ms if exact else _passed(info, now_ms, wish)
    removable = _removable(facts, config, now_ms, wish)
    removal = NO_REMOVAL
    if told.horizons:
        removal = pending_removal(facts, bounds.upper, removable, None if exact else info.stamps)
    must_bytes, delay_ms = _waited_too_long(facts, config, bounds, now_ms, wish.rules)
    markers_ms = None
    if told.transactions:
        markers_ms = markers_due_ms(facts, bounds.upper, config.removal_lag_ms)
    tombstones_ms = None
    if (told.tombstones or told.horizons) and not exact:
        tombstones_ms = tombstones_due_ms(facts, bounds.dirty, bounds.upper, config, info.stamps)
    headers_ms = None
    if told.bare and not exact:
        headers_ms = headers_due_ms(facts, bounds.upper, config.removal_lag_ms)
    case = _Case(
        facts, config, now_ms, bounds, removal, passed, told, wish, delay_ms,
        {Due.MARKERS: markers_ms, Due.TOMBSTONES: tombstones_ms, Due.HEADERS: headers_ms},
    )  # fmt: skip
    blocked, detail = _blocked(case)
    due = () if blocked else _due(case)
    kind = RoundKind.CLEAN
    dead = None if exact or not facts.start_moves else _dead_to_go(case)
    if dead is not None and not due:
        kind, due, blocked, detail = RoundKind.TRIM, (Due.DELETED,), None, ""
    elif dead is not None and dead.holder.base_offset < bounds.upper:
        due = (*due, Due.DELETED)
    outcomes = outcomes_at(readable(facts), bounds.upper) if told.transactions else ()
    again = _look_again(case) if told.unreadable and not exact else None
    return Decision(
        info, now_ms, bounds, removal, due, blocked, detail, passed, must_bytes, delay_ms,
        kind, removable, outcomes, markers_ms, tombstones_ms, headers_ms, again,
        now_ms if wish.stamp_ms is None else max(now_ms, wish.stamp_ms),
    )  # fmt: skip


def order(decisions: Iterable[Decision], rules: Rules = Rules.LAPSE) -> list[Decision]:
    """Those with a round due, first things first: S-8 as KIP-354 meant it (L6).

    Deleted records come between: they have a deadline too, but half of their time is left.
    """

    def rank(d: Decision) -> tuple[float, bool, float, str]:
        name = str(d.info.facts.partition)
        if rules is Rules.KAFKA_43:
            return (0.0, False, -d.bounds.ratio, name)
        return (-d.must_clean_ratio, Due.DELETED not in d.due, -d.bounds.ratio, name)

    return sorted((d for d in decisions if d.due), key=rank)


def must_be_made(decision: Decision) -> bool:
    """Whether the round has a deadline, and so goes past those that only tidy up (L6)."""
    return not BY_A_MOMENT.isdisjoint(decision.due)


def oldest_ms(segment: SegmentFacts, rules: Rules) -> int:
    """From when a segment's records have been waiting (S-6), -1 unknown.

    Kafka looks at the first batch's max timestamp; we at the append clock, which no producer sets.
    One that is ahead, of a clock that was wrong, is waited for here: it says that the records are
    young, and nothing in the segment says since when they are there. The owner knows a moment by
    which they were, the first at which it believed its clock again, and takes the append clock back
    to that (`PartitionLog.see`). So max lag counts from there, and min lag is not undercut.
    """
    summary = segment.summary
    if rules is Rules.LAPSE and summary is not None and summary.append_first_ms >= 0:
        return summary.append_first_ms
    return -1 if summary is None else summary.first_batch_max_timestamp


@dataclass(slots=True)
class _Case:
    """What `decide` has found out so far."""

    facts: LogFacts
    config: TopicConfig
    now_ms: int
    bounds: Bounds
    removal: Removal
    passed_ms: int
    told: Survey
    wish: RoundOptions
    delay_ms: int
    due_ms: Mapping[Due, int | None]  # what only waits for a moment


def _passed(info: LogInfo, now_ms: int, wish: RoundOptions) -> int:
    """Horizons at or below this have passed; one that was stamped too early waits for longer."""
    if wish.steps:
        lag_ms = info.config.delete_retention_ms
        now_ms -= lag_over(wish.steps, now_ms, lag_ms) - lag_ms
    return passed_until(now_ms, info.stamps) if info.stamps else now_ms


def _removable(facts: LogFacts, config: TopicConfig, now_ms: int, wish: RoundOptions) -> int:
    """L3; Kafka has no such bound, but a wish for one is followed under its rules too."""
    asked = LONG_MAX if wish.removable_below is None else wish.removable_below
    if not facts.replicas or wish.rules is Rules.KAFKA_43:
        return asked
    return min(asked, removable_below(facts.replicas, now_ms, config.delete_retention_ms).offset)


def _waited_too_long(
    facts: LogFacts, config: TopicConfig, bounds: Bounds, now_ms: int, rules: Rules
) -> tuple[int, int]:
    """S-6: bytes of sealed dirty segments that are past max lag, and by how much the oldest is.

    Of those that a round would reach: what an open transaction holds, no round makes less late.
    Kafka counts them all.
    """
    size = latest = 0
    allowed_ms = now_ms - config.max_compaction_lag_ms
    if allowed_ms <= 0:
        return 0, 0
    for segment, after in pairwise(facts.segments):
        if rules is Rules.LAPSE and segment.base_offset >= bounds.upper:
            break
        if after.base_offset > bounds.dirty:
            oldest = oldest_ms(segment, rules)
            if 0 < oldest < allowed_ms:
                size += segment.size
                latest = max(latest, allowed_ms - oldest)
    return size, latest


def _blocked(case: _Case) -> tuple[Blocked | None, str]:
    """Why no compaction is possible."""
    config, facts, told = case.config, case.facts, case.told
    if not config.compacts:
        policy = ",".join(sorted(config.cleanup_policy)) or "(empty)"
        return Blocked.NOT_COMPACTED, f"cleanup.policy is {policy}"
    if told.lacking:
        return (
            Blocked.SUMMARIES,
            f"{told.lacking} segments without summary are to be looked through",
        )
    if told.unhandled:
        return Blocked.UNHANDLED, _left_alone(facts.segments)[0]
    if told.unreadable and case.wish.rules is Rules.KAFKA_43:
        odd = readable(facts)[-1]
        if odd.base_offset < case.bounds.upper and odd.summary is not None:
            offset = odd.summary.unreadable_from
            return Blocked.UNHANDLED, f"unreadable at offset {offset}: Kafka gives up the log"
    waits = any(ms is not None for ms in (case.removal.horizon_ms, *case.due_ms.values()))
    if case.wish.rules is Rules.KAFKA_43:
        waits = False  # S-7, H-6: whatever waits to go, Kafka makes no round without a dirty byte
    if case.bounds.dirty_bytes == 0 and not waits:
        return Blocked.NOTHING_TO_DO, "no sealed segment is dirty and nothing waits to go"
    return None, ""


def _due(case: _Case) -> tuple[Due, ...]:
    """The reasons for a compaction that is possible."""
    config, bounds = case.config, case.bounds
    due = []
    if bounds.ratio > config.min_cleanable_dirty_ratio:
        due.append(Due.RATIO)
    if case.delay_ms > 0 and bounds.dirty_bytes > 0:
        due.append(Due.MAX_LAG)
    if case.wish.rules is not Rules.KAFKA_43:
        if case.removal.horizon_ms is not None and _removal_due(case):
            due.append(Due.HORIZON)
        for reason, due_ms in case.due_ms.items():
            forced = case.wish.force and reason is not Due.MARKERS
            if due_ms is not None and (forced or due_ms <= case.now_ms):
                due.append(reason)
    if case.wish.force:
        due.append(Due.FORCED)
    return tuple(due)


def _removal_due(case: _Case) -> bool:
    removal, config, bounds = case.removal, case.config, case.bounds
    if removal.horizon_ms is None or removal.horizon_ms > case.passed_ms:
        return False
    due_ms = removal_due_ms(removal, config.removal_lag_ms)
    total = bounds.clean_bytes + bounds.dirty_bytes
    enough = removal.bytes > config.min_cleanable_dirty_ratio * total
    return enough or (due_ms is not None and due_ms <= case.passed_ms)


def _dead_to_go(case: _Case) -> Dead | None:
    """Deleted records whose time has come and whose segment a round can rewrite now.

    A trim judges by offset alone: it needs no summary where no look is on its way either, as in
    logs that are not compacted.
    """
    facts, wish = case.facts, case.wish
    dead = dead_records(facts)
    if dead is None or dead.holder.active or case.told.unhandled:
        return None
    if dead.holder.lacks_summary and case.config.compacts:
        return None
    if not wish.force and dead.since_ms <= case.now_ms < trim_due_ms(dead, case.config):
        return None  # a move from the future (the clock was ahead then) is not waited for
    return None if trim_is_barred(facts, dead, case.now_ms) else dead


def trim_is_barred(facts: LogFacts, dead: Dead, now_ms: int) -> bool:
    """L10: the segment cannot be read, or is left alone for a while."""
    summary = dead.holder.summary
    if summary is not None and summary.unreadable_from >= 0:
        return True
    waits = facts.bad is not None and now_ms < facts.bad.next_try_ms
    return waits and bad_segment(facts) == dead.holder


def _look_again(case: _Case) -> int | None:
    """L10: the first segment that could not be read, if nothing says that it must wait.

    Who adopts such a summary notes the place as a bad range, with its next try; a range whose file
    has changed is forgotten. Where a lower place holds the rounds, this one can wait too.
    """
    facts, bad = case.facts, case.facts.bad
    odd = readable(facts)[-1]
    if odd.active or not (case.config.compacts or facts.start_moves):
        return None
    waits = bad is not None and case.now_ms < bad.next_try_ms
    if waits and bad is not None and bad.segment_base <= odd.base_offset:
        return None
    return odd.base_offset


def _left_alone(segments: Sequence[SegmentFacts]) -> list[str]:
    """What this version does not clean in these segments, as the summaries tell."""
    return [reason for s in segments if s.summary is not None for reason in s.summary.unhandled]
