"""Which logs get a round now, in which order, and why the other logs do not.

The counterpart of Kafka's LogCleanerManager.

S-1, S-5 … S-9 with L3 (removal waits for the other replicas), L4 (expired tombstones, spent markers
and tombstones without a horizon are further reasons for a round), L6 (logs that must be cleaned go
first), L9, L10 and L11 (deleted records are a reason too, also without `compact`). Nothing here
reads a file or a clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise
from typing import NamedTuple

from lapse.base.config import LONG_MAX, TopicConfig
from lapse.lifecycle.decide.bounds import Bounds, bad_segment, find_bounds, readable
from lapse.lifecycle.decide.clock import ClockVerdict, Step, lag_over
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
    ASKED = "asked for"


# Reasons that come with a deadline: all but the dirty ratio and --force.
BY_A_MOMENT = frozenset(Due) - {Due.RATIO, Due.FORCED}


class RoundKind(Enum):
    """What a round does.

    CLEAN is compaction and all that goes with it. TRIM only removes the records below the log start
    from the segment that holds the log start: it maps nothing and moves no checkpoint.
    """

    CLEAN = "clean"
    TRIM = "trim"


class Blocked(Enum):
    """Why a log cannot get a round, regardless of its dirty ratio."""

    NOT_COMPACTED = "cleanup.policy has no compact"
    SUMMARIES = "summaries missing"
    UNHANDLED = "holds what this version does not clean"
    NOTHING_TO_DO = "nothing to clean"


@dataclass(frozen=True, slots=True)
class LogInfo:
    """What the owner of a log reports of it.

    Attributes:
        config: settings in force.
        stamps: committed rounds whose horizons may still be waiting or in a file; each vouches for
            the horizons that it set.
    """

    facts: LogFacts
    config: TopicConfig
    stamps: tuple[Stamp, ...] = ()


class Decision(NamedTuple):
    """The decision on one log at one moment. A tuple, as one is made per log and look.

    Attributes:
        due: reasons for a round, empty if the log gets none.
        blocked: why the log cannot get a round, None if it could; `detail` explains it in words.
        passed_until_ms: horizons at or below this have passed.
        must_clean_bytes: dirty bytes within reach that have waited for max.compaction.lag.ms.
        delay_ms: by how much the oldest of them is late (S-6), 0 if none is.
        kind: the kind of the round, if one is due.
        removable_below: tombstones and markers at or above it wait for other replicas (L3).
        outcomes: (producer id, whether committed) of each transaction that is open at
            `bounds.upper` and ends above it.
        markers_due_ms: when a round must stamp markers of transactions that are gone, None if
            there are none.
        tombstones_due_ms: when a round must stamp tombstones in the clean part that no Lapse round
            has stamped.
        headers_due_ms: when a round must remove headers that are no longer needed.
        look_again: base of the segment that could not be read, if it must be looked through
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundOptions:
    """What the caller requests beyond the facts.

    Attributes:
        force: `--force` skips ratio, lags and waiting, never policy.
        asked: somebody asks for a round: skips the ratio and waiting, and no lag that was promised.
        dirty: `--first-dirty`.
        removable_below: `--replica-cleaned-to`: tombstones and markers from there on stay.
        stamp_ms: the time to count horizons from, where that may be later than the time to decide
            by (ADR-11).
        steps: corrections of times that a clock, since set right, had noted too early.
    """

    rules: Rules = Rules.LAPSE
    force: bool = False
    asked: bool = False
    dirty: int | None = None
    removable_below: int | None = None
    stamp_ms: int | None = None
    steps: tuple[Step, ...] = ()


_NO_OPTIONS = RoundOptions()


@dataclass(frozen=True, slots=True)
class Moment:
    """The time to decide by, and what else a clock that was judged has to do with it (ADR-11)."""

    now_ms: int
    options: RoundOptions = _NO_OPTIONS

    @staticmethod
    def by(verdict: ClockVerdict, options: RoundOptions = _NO_OPTIONS) -> Moment:
        """As everybody decides who removes records."""
        options = replace(options, stamp_ms=verdict.latest_ms, steps=verdict.record.steps)
        return Moment(verdict.now_ms, options)

    def decide(self, info: LogInfo) -> Decision:
        """About a log."""
        return decide(info, self.now_ms, self.options)


def decide(info: LogInfo, now_ms: int, options: RoundOptions | None = None) -> Decision:
    """The decision on one log."""
    options = options or _NO_OPTIONS
    facts, config = info.facts, info.config
    exact = options.rules is Rules.KAFKA_43
    if options.force:
        config = replace(config, min_compaction_lag_ms=0)
    elif options.steps and config.min_compaction_lag_ms > 0:
        lag_ms = lag_over(options.steps, now_ms, config.min_compaction_lag_ms)
        config = replace(config, min_compaction_lag_ms=lag_ms)
    contents = survey(facts.segments)
    bounds = find_bounds(facts, config, now_ms, options.rules, options.dirty, contents)
    passed = now_ms if exact else _passed(info, now_ms, options)
    removable = _removable(facts, config, now_ms, options)
    removal = NO_REMOVAL
    if contents.horizons:
        removal = pending_removal(facts, bounds.upper, removable, None if exact else info.stamps)
    must_bytes, delay_ms = _waited_too_long(facts, config, bounds, now_ms, options.rules)
    markers_ms = None
    if contents.transactions:
        markers_ms = markers_due_ms(facts, bounds.upper, config.removal_lag_ms)
    tombstones_ms = None
    if (contents.tombstones or contents.horizons) and not exact:
        tombstones_ms = tombstones_due_ms(facts, bounds.dirty, bounds.upper, config, info.stamps)
    headers_ms = None
    if contents.bare and not exact:
        headers_ms = headers_due_ms(facts, bounds.upper, config.removal_lag_ms)
    case = _Case(
        facts, config, now_ms, bounds, removal, passed, contents, options, delay_ms,
        (markers_ms, tombstones_ms, headers_ms),
    )  # fmt: skip
    blocked, detail = _blocked(case)
    due = () if blocked else _due(case)
    kind = RoundKind.CLEAN
    dead = None if exact or not facts.start_moves else _dead_to_go(case)
    if dead is not None and not due:
        kind, due, blocked, detail = RoundKind.TRIM, (Due.DELETED,), None, ""
    elif dead is not None and dead.holder.base_offset < bounds.upper:
        due = (*due, Due.DELETED)
    outcomes = outcomes_at(readable(facts), bounds.upper) if contents.transactions else ()
    again = _look_again(case) if contents.unreadable and not exact else None
    return Decision(
        info, now_ms, bounds, removal, due, blocked, detail, passed, must_bytes, delay_ms,
        kind, removable, outcomes, markers_ms, tombstones_ms, headers_ms, again,
        now_ms if options.stamp_ms is None else max(now_ms, options.stamp_ms),
    )  # fmt: skip


def order(decisions: Iterable[Decision], rules: Rules = Rules.LAPSE) -> list[Decision]:
    """The decisions with a round due, most urgent first: S-8 as KIP-354 meant it (L6).

    Logs with deleted records come second: they have a deadline too, but half of their time is left.
    """

    def rank(d: Decision) -> tuple[float, bool, float, str]:
        name = str(d.info.facts.partition)
        if rules is Rules.KAFKA_43:
            return (0.0, False, -d.bounds.ratio, name)
        return (-d.must_clean_ratio, Due.DELETED not in d.due, -d.bounds.ratio, name)

    return sorted((d for d in decisions if d.due), key=rank)


def must_be_made(decision: Decision) -> bool:
    """Whether the round has a deadline, and so goes before rounds that only tidy up (L6)."""
    return not BY_A_MOMENT.isdisjoint(decision.due)


def oldest_ms(segment: SegmentFacts, rules: Rules) -> int:
    """The time since which a segment's records have been waiting (S-6), -1 unknown.

    Kafka takes the first batch's max timestamp; Lapse takes the append clock, which no producer
    sets. If the append clock lies in the future because the broker's clock was wrong, it is waited
    for here: by it the records are young, and nothing in the segment shows their true age. The
    owner knows a moment at which the records were there: the first at which it believed its clock
    again. It sets the append clock back to that moment (`PartitionLog.see`). So max lag counts from
    there, and min lag is kept.
    """
    summary = segment.summary
    if rules is Rules.LAPSE and summary is not None and summary.append_first_ms >= 0:
        return summary.append_first_ms
    return -1 if summary is None else summary.first_batch_max_timestamp


_WAITING = (Due.MARKERS, Due.TOMBSTONES, Due.HEADERS)  # reasons that only wait for a moment
_NOTHING_WAITS = (None,) * len(_WAITING)


@dataclass(slots=True)
class _Case:
    """What `decide` has worked out so far."""

    facts: LogFacts
    config: TopicConfig
    now_ms: int
    bounds: Bounds
    removal: Removal
    passed_ms: int
    contents: Survey
    options: RoundOptions
    delay_ms: int
    due_ms: tuple[int | None, ...]  # of each of `_WAITING`


def _passed(info: LogInfo, now_ms: int, options: RoundOptions) -> int:
    """Horizons at or below this have passed; one that was stamped too early waits longer.

    By as much as a step may have done to the retention that it was stamped with (H-2), which the
    topic's may be shorter than by now.
    """
    if options.steps:
        lags = {s.horizon_ms - s.now_ms for s in info.stamps if s.horizon_ms <= now_ms}
        lags.add(info.config.delete_retention_ms)
        now_ms -= max(lag_over(options.steps, now_ms, lag_ms) - lag_ms for lag_ms in lags)
    return passed_until(now_ms, info.stamps) if info.stamps else now_ms


def _removable(facts: LogFacts, config: TopicConfig, now_ms: int, options: RoundOptions) -> int:
    """L3; Kafka has no such bound, but the caller's bound applies under its rules too."""
    limit = LONG_MAX if options.removable_below is None else options.removable_below
    if not facts.replicas or options.rules is Rules.KAFKA_43:
        return limit
    return min(limit, removable_below(facts.replicas, now_ms, config.delete_retention_ms).offset)


def _waited_too_long(
    facts: LogFacts, config: TopicConfig, bounds: Bounds, now_ms: int, rules: Rules
) -> tuple[int, int]:
    """S-6: bytes of sealed dirty segments that are past max lag, and by how much the oldest is.

    Only segments that a round would reach: a round cannot help a segment that an open transaction
    holds. Kafka counts all segments.
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
    config, facts, contents = case.config, case.facts, case.contents
    if not config.compacts:
        policy = ",".join(sorted(config.cleanup_policy)) or "(empty)"
        return Blocked.NOT_COMPACTED, f"cleanup.policy is {policy}"
    if contents.lacking:
        return (
            Blocked.SUMMARIES,
            f"{contents.lacking} segments without summary are to be looked through",
        )
    if contents.unhandled:
        return Blocked.UNHANDLED, _left_alone(facts.segments)[0]
    if contents.unreadable and case.options.rules is Rules.KAFKA_43:
        odd = readable(facts)[-1]
        if odd.base_offset < case.bounds.upper and odd.summary is not None:
            offset = odd.summary.unreadable_from
            return Blocked.UNHANDLED, f"unreadable at offset {offset}: Kafka gives up the log"
    waits = case.removal.horizon_ms is not None or case.due_ms != _NOTHING_WAITS
    if case.options.rules is Rules.KAFKA_43:
        waits = False  # S-7, H-6: Kafka makes no round without a dirty byte, even if records wait
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
    if case.options.rules is not Rules.KAFKA_43:
        if case.removal.horizon_ms is not None and _removal_due(case):
            due.append(Due.HORIZON)
        if case.due_ms != _NOTHING_WAITS:
            due += _waited_for(case)
    if case.options.force:
        due.append(Due.FORCED)
    if case.options.asked and bounds.dirty_bytes > 0:
        due.append(Due.ASKED)
    return tuple(due)


def _waited_for(case: _Case) -> Iterator[Due]:
    """Reasons whose moment has come; `--force` waits for none but that of markers."""
    for reason, due_ms in zip(_WAITING, case.due_ms, strict=True):
        forced = case.options.force and reason is not Due.MARKERS
        if due_ms is not None and (forced or due_ms <= case.now_ms):
            yield reason


def _removal_due(case: _Case) -> bool:
    removal, config, bounds = case.removal, case.config, case.bounds
    if removal.horizon_ms is None or removal.horizon_ms > case.passed_ms:
        return False
    due_ms = removal_due_ms(removal, config.removal_lag_ms)
    total = bounds.clean_bytes + bounds.dirty_bytes
    enough = removal.bytes > config.min_cleanable_dirty_ratio * total
    return enough or (due_ms is not None and due_ms <= case.passed_ms)


def _dead_to_go(case: _Case) -> Dead | None:
    """Deleted records that are due and whose segment a round can rewrite now.

    A trim judges by offset alone: it needs no summary in a log that is not compacted, as no look
    would make one there.
    """
    facts, options = case.facts, case.options
    dead = dead_records(facts)
    if dead is None or dead.holder.active or case.contents.unhandled:
        return None
    if dead.holder.lacks_summary and case.config.compacts:
        return None
    waits = not (options.force or options.asked)
    if waits and dead.since_ms <= case.now_ms < trim_due_ms(dead, case.config):
        return None  # a move from the future (the clock was ahead then) is not waited for
    return None if trim_is_barred(facts, dead, case.now_ms) else dead


def trim_is_barred(facts: LogFacts, dead: Dead, now_ms: int) -> bool:
    """L10: whether the segment cannot be read, or must wait for the next try."""
    summary = dead.holder.summary
    if summary is not None and summary.unreadable_from >= 0:
        return True
    waits = facts.bad is not None and now_ms < facts.bad.next_try_ms
    return waits and bad_segment(facts) == dead.holder


def _look_again(case: _Case) -> int | None:
    """L10: base of the first segment that could not be read, unless it must wait for its next try.

    The owner that adopts the summary of such a segment notes the place as a bad range, with its
    next try, and forgets a bad range whose file has changed. Where a bad range at a lower offset
    holds the rounds, this segment waits too.
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
    """What this version does not clean in these segments, from their summaries."""
    return [reason for s in segments if s.summary is not None for reason in s.summary.unhandled]
