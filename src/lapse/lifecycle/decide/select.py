"""Which logs get a round now, in which order, and why the others do not.

SEMANTICS S-5 … S-9 with L4 (expired tombstones are a reason of their own), L6 (what must be
cleaned goes first) and L9. Nothing here reads a file or a clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from lapse.base.config import TopicConfig
from lapse.lifecycle.decide.bounds import Bounds, find_bounds
from lapse.lifecycle.decide.horizon import (
    Removal,
    Stamp,
    passed_until,
    pending_removal,
    removal_due_ms,
)
from lapse.lifecycle.decide.verdict import Rules
from lapse.log.facts import LogFacts, SegmentFacts


class Due(Enum):
    """Why a log gets a round."""

    RATIO = "dirty ratio"
    MAX_LAG = "max.compaction.lag.ms"
    HORIZON = "expired tombstones"
    FORCED = "--force"


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
        stamps: committed rounds whose horizons may still be waiting.
    """

    facts: LogFacts
    config: TopicConfig
    stamps: tuple[Stamp, ...] = ()


@dataclass(frozen=True, slots=True)
class Decision:
    """What is decided of one log at one moment.

    Attributes:
        due: reasons for a round, empty if it gets none.
        blocked: why it cannot get one, None if it could; `detail` says more, in words.
        passed_until_ms: horizons at or below this have passed.
        must_clean_bytes: dirty bytes that have waited for max.compaction.lag.ms.
        delay_ms: by how much the oldest of them is late (S-6), 0 if none is.
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

    @property
    def must_clean_ratio(self) -> float:
        total = self.bounds.clean_bytes + self.bounds.dirty_bytes
        return self.must_clean_bytes / total if total else 0.0


@dataclass(frozen=True, slots=True)
class Wish:
    """What a caller asks beyond the facts: `--force`, `--first-dirty`."""

    rules: Rules = Rules.LAPSE
    force: bool = False
    dirty: int | None = None


def decide(info: LogInfo, now_ms: int, wish: Wish | None = None) -> Decision:
    """The decision on one log."""
    wish = wish or Wish()
    facts, config = info.facts, info.config
    if wish.force:
        config = replace(config, min_compaction_lag_ms=0)
    bounds = find_bounds(facts, config, now_ms, wish.rules, wish.dirty)
    exact = wish.rules is Rules.KAFKA_43
    passed = now_ms if exact else passed_until(now_ms, info.stamps)
    removal = pending_removal(facts, bounds.upper)
    waiting = tuple(_waited_too_long(facts, config, bounds, now_ms, wish.rules))
    delay_ms = max((delay for _, delay in waiting), default=0)
    due = []
    if bounds.ratio > config.min_cleanable_dirty_ratio:
        due.append(Due.RATIO)
    if delay_ms > 0 and bounds.dirty_bytes > 0:
        due.append(Due.MAX_LAG)
    if not exact and _removal_due(removal, config, bounds, passed):
        due.append(Due.HORIZON)
    blocked, detail = _blocked(facts, config, bounds, removal)
    if wish.force and blocked is None:
        due.append(Due.FORCED)
    return Decision(
        info, now_ms, bounds, removal, () if blocked else tuple(due), blocked, detail, passed,
        sum(segment.size for segment, _ in waiting), delay_ms,
    )  # fmt: skip


def order(decisions: Iterable[Decision], rules: Rules = Rules.LAPSE) -> list[Decision]:
    """Those with a round due, first things first: S-8 as KIP-354 meant it (L6)."""

    def rank(d: Decision) -> tuple[float, float, str]:
        must = 0.0 if rules is Rules.KAFKA_43 else -d.must_clean_ratio
        return (must, -d.bounds.ratio, str(d.info.facts.partition))

    return sorted((d for d in decisions if d.due), key=rank)


def oldest_ms(segment: SegmentFacts, rules: Rules) -> int:
    """From when a segment's records have been waiting (S-6), -1 unknown.

    Kafka looks at the first batch's max timestamp; we at the append clock, which no producer sets.
    """
    summary = segment.summary
    if rules is Rules.LAPSE and summary is not None and summary.append_first_ms >= 0:
        return summary.append_first_ms
    return -1 if summary is None else summary.first_batch_max_timestamp


def _waited_too_long(
    facts: LogFacts, config: TopicConfig, bounds: Bounds, now_ms: int, rules: Rules
) -> Iterable[tuple[SegmentFacts, int]]:
    """Sealed segments from the dirty one whose records are past max lag, and by how much."""
    ends = [s.base_offset for s in facts.segments[1:]]
    for segment, end in zip(facts.segments[:-1], ends, strict=True):
        oldest = oldest_ms(segment, rules)
        late = (now_ms - config.max_compaction_lag_ms) - oldest
        if end > bounds.dirty and oldest > 0 and late > 0:
            yield segment, late


def _removal_due(removal: Removal, config: TopicConfig, bounds: Bounds, passed_ms: int) -> bool:
    if removal.horizon_ms is None or removal.horizon_ms > passed_ms:
        return False
    due_ms = removal_due_ms(removal, config.removal_lag_ms)
    total = bounds.clean_bytes + bounds.dirty_bytes
    enough = removal.bytes > config.min_cleanable_dirty_ratio * total
    return enough or (due_ms is not None and due_ms <= passed_ms)


def _blocked(
    facts: LogFacts, config: TopicConfig, bounds: Bounds, removal: Removal
) -> tuple[Blocked | None, str]:
    if not config.compacts:
        policy = ",".join(sorted(config.cleanup_policy)) or "(empty)"
        return Blocked.NOT_COMPACTED, f"cleanup.policy is {policy}"
    lacking = sum(segment.lacks_summary for segment in facts.segments[:-1])
    if lacking:
        return Blocked.SUMMARIES, f"{lacking} segments without summary are to be looked through"
    unhandled = unhandled_reasons(facts.segments)
    if unhandled:
        return Blocked.UNHANDLED, unhandled[0]
    if bounds.dirty_bytes == 0 and removal.horizon_ms is None:
        return Blocked.NOTHING_TO_DO, "no sealed segment is dirty and no tombstone waits"
    return None, ""


def unhandled_reasons(segments: Sequence[SegmentFacts]) -> list[str]:
    """What this version leaves alone in these segments, as the summaries tell."""
    return [reason for s in segments if s.summary is not None for reason in s.summary.unhandled]
