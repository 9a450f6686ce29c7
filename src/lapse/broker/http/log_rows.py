"""A broker's row of each log that may get rounds: what metrics, health and the overview go by.

Made by the functions that choose rounds, and made again only where the log may have changed: ten
thousand logs cost a scrape a tenth of a second.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol
from weakref import WeakKeyDictionary

from lapse.base.errors import LapseError
from lapse.base.ids import TopicPartition
from lapse.base.times import after_ms
from lapse.lifecycle.decide.bounds import Bound, lag_from
from lapse.lifecycle.decide.deadline import ROLL_SLACK_MS, compaction_delay_ms, next_look_ms
from lapse.lifecycle.decide.horizon import Stamp
from lapse.lifecycle.decide.lateness import MARKER, SUPERSEDED, TOMBSTONE, Deadline, deadlines_of
from lapse.lifecycle.decide.select import Blocked, Decision, LogInfo, decide
from lapse.lifecycle.decide.verdict import Rules
from lapse.lifecycle.round.stamps import StampCache
from lapse.lifecycle.round.summarise import wants_look
from lapse.log.facts import BadRange
from lapse.log.partition_log import LogMark, PartitionLog

WHERE = ("topic", "partition")
_AFTER_ALL_MS = 1 << 64  # later than any time and any lag together
_OF_SUMMARIES = frozenset({SUPERSEDED, TOMBSTONE, MARKER})  # deadlines that come from summaries


@dataclass(frozen=True, slots=True)
class Row:
    """One log that may get rounds; valid while no decision on the log can come out otherwise.

    Attributes:
        log: which one.
        where: its labels.
        name: its name in reports.
        directory: the log directory of the log.
        ratio: the dirty ratio.
        late_from_ms: from when on the log is late (KIP-354); None if it never will be.
        due: whether a round is due.
        next_ms: when the next round is, or may be, due after that; None if never.
        wants_look: whether a service must look through the log's files before it can decide, as
            those of another log cleaner.
        uncleanable: why rounds leave (the rest of) the log alone, "" if they do not.
        uncleanable_bytes: bytes of the sealed segments that rounds leave alone.
        bad: where rounds could not read, if there is such a place.
        dirty_bytes: the bytes that a round would clean (S-5).
        deadlines: by when which data must be gone.
        unknown: the kinds of which there may be earlier deadlines, that nobody knows of.
        failures: rounds that failed in a row, while one is due.
    """

    log: TopicPartition
    where: dict[str, str]
    name: str
    directory: str
    ratio: float
    late_from_ms: int | None
    due: bool
    next_ms: int | None
    uncleanable: str
    uncleanable_bytes: int
    bad: BadRange | None
    dirty_bytes: int = 0
    failures: int = 0
    deadlines: tuple[Deadline, ...] = ()
    unknown: frozenset[str] = frozenset()
    wants_look: bool = False

    @property
    def needs_service(self) -> bool:
        """Whether there is something to do now for a lifecycle service."""
        return self.due or self.wants_look

    def delay_ms(self, now_ms: int) -> int:
        """By how much the log is late, 0 if it is not."""
        return 0 if self.late_from_ms is None else max(now_ms - self.late_from_ms, 0)

    def deadline_ms(self, now_ms: int) -> int | None:
        """When a round is due next at the latest."""
        return now_ms if self.needs_service else self.next_ms


@dataclass(frozen=True, slots=True)
class _Known:
    """A log's cached row; valid while its mark and stamps are these, between the two times.

    Attributes:
        stamps: None where stamps cannot matter.
        horizon_ms: the log's earliest horizon, by which stamps are looked up.
    """

    mark: LogMark
    stamps: tuple[Stamp, ...] | None
    from_ms: int
    until_ms: float
    row: Row | None
    horizon_ms: int = -1


class Rows:
    """One row per log, computed again only where it may have changed; for one thread at a time.

    Cached by mark (`PartitionLog.mark`), stamps and time: what only the clock changes is either
    stored in the row as a moment, and computed at each scrape, or ends the row's validity.
    """

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[PartitionLog, _Known] = WeakKeyDictionary()
        self._stamps = StampCache()

    def of(self, log: PartitionLog, now_ms: int) -> Row | None:
        """The row of a log; None if the log gets no rounds.

        A log whose ledger cannot be read gets none either, and has a row that says so: what is
        told of the others must not depend on it. Nor does one that takes no writes, whose data is
        late all the same.
        """
        try:
            row = self._read(log, now_ms)
        except (LapseError, OSError):
            row = self._unreadable(log, now_ms)
        if row is None or log.offline_reason is None:
            return row
        return _left_alone(row, "offline", log.segments)

    def _read(self, log: PartitionLog, now_ms: int) -> Row | None:
        known = self._known.get(log)
        if (
            known is None
            or not known.from_ms <= now_ms < known.until_ms
            or known.mark != log.mark()
            or (
                known.stamps is not None and known.stamps != self._of(log, known.horizon_ms, now_ms)
            )
        ):
            known = self._known[log] = self._look(log, now_ms)
        return known.row

    def _unreadable(self, log: PartitionLog, now_ms: int) -> Row:
        """Of a log without its stamps, by which alone a tombstone's deadline can be told.

        What was known of tombstones before still holds: meanwhile no round removes any.
        """
        mark, facts = log.marked_facts()
        row = row_of(decide(LogInfo(facts, mark.config), now_ms))
        before = self._known.get(log)
        known = () if before is None or before.row is None else before.row.deadlines
        deadlines = [d for d in row.deadlines if d.what != TOMBSTONE]
        deadlines += [d for d in known if d.what == TOMBSTONE]
        row = _left_alone(row, "unreadable", facts.segments)
        unknown = row.unknown | {TOMBSTONE}
        return replace(row, deadlines=tuple(deadlines), unknown=unknown)

    def _of(self, log: PartitionLog, horizon_ms: int, now_ms: int) -> tuple[Stamp, ...]:
        return self._stamps.of(log.dir, horizon_ms, now_ms)

    def _look(self, log: PartitionLog, now_ms: int) -> _Known:
        mark, facts = log.marked_facts()
        if not mark.config.compacts and not facts.start_moves:
            return _Known(mark, None, now_ms, math.inf, None)
        horizon_ms = facts.horizon_earliest_ms
        stamps = self._of(log, horizon_ms, now_ms)
        decision = decide(LogInfo(facts, mark.config, stamps), now_ms)
        matter = stamps if horizon_ms >= 0 else None
        until_ms = same_until_ms(decision)
        return _Known(mark, matter, now_ms, until_ms, row_of(decision), horizon_ms)


def row_of(decision: Decision) -> Row:
    """The row of a log, from a decision on it."""
    facts, config = decision.info.facts, decision.info.config
    topic, partition = facts.partition.topic, str(facts.partition.partition)
    reason, held_bytes = _uncleanable(decision)
    late_ms = compaction_delay_ms(facts, config, _AFTER_ALL_MS)  # it grows with the clock
    lacks = config.compacts and any(s.lacks_summary for s in facts.segments[:-1])
    return Row(
        log=facts.partition,
        where=dict(zip(WHERE, (topic, partition), strict=True)),
        name=str(facts.partition),
        directory=os.path.dirname(facts.dir),
        ratio=decision.bounds.ratio,
        late_from_ms=_AFTER_ALL_MS - late_ms if late_ms else None,
        due=bool(decision.due),
        next_ms=next_look_ms(decision),
        uncleanable=reason,
        uncleanable_bytes=held_bytes,
        bad=facts.bad,
        dirty_bytes=decision.bounds.dirty_bytes,
        deadlines=deadlines_of(decision),
        unknown=_OF_SUMMARIES if lacks else frozenset(),
        wants_look=wants_look(decision),
    )


class _Sized(Protocol):
    """A segment, or facts of one."""

    @property
    def size(self) -> int: ...


def _left_alone(row: Row, reason: str, segments: Sequence[_Sized]) -> Row:
    """The row of a log that gets no rounds at all now; what is due of it is nobody's to do."""
    sealed_bytes = sum(s.size for s in segments[:-1])
    return replace(
        row, due=False, wants_look=False, next_ms=None, uncleanable=reason,
        uncleanable_bytes=sealed_bytes,
    )  # fmt: skip


def failing(row: Row, failures: int) -> Row:
    """The row of a log whose last rounds failed: no more is cleaned than if it were left alone.

    Unchanged while no round is due: then the last failure no longer matters.
    """
    if not failures or not row.due:
        return row
    if row.uncleanable:
        return replace(row, failures=failures)
    return replace(
        row, failures=failures, uncleanable="rounds_fail", uncleanable_bytes=row.dirty_bytes
    )


def same_until_ms(decision: Decision) -> float:
    """Until this moment, exclusive, a row of the decision equals a row made later.

    Sooner than `next_look_ms` where that names what rounds wait for: min lag also holds logs that
    get no round (their ratio is still reported), and a move of the log start offset that is dated
    in the future counts only from then on. A log that waits for the owner to roll a segment has a
    moment that moves with the clock: such a row is not kept.
    """
    facts, bounds, now_ms = decision.info.facts, decision.bounds, decision.now_ms
    moments: list[float] = [math.inf]
    look_ms = next_look_ms(decision)
    if look_ms is not None:
        moments.append(look_ms if look_ms > now_ms + ROLL_SLACK_MS else now_ms)
    if bounds.bound is Bound.MIN_LAG:
        held = next(s for s in facts.segments if s.base_offset == bounds.held_segment)
        age_from_ms = lag_from(held, now_ms, Rules.LAPSE)
        moments.append(after_ms(age_from_ms, decision.info.config.min_compaction_lag_ms))
    moments += (m.moved_ms for m in facts.start_moves if m.moved_ms > now_ms)
    return min(moments)


def _uncleanable(decision: Decision) -> tuple[str, int]:
    facts, bounds = decision.info.facts, decision.bounds
    if decision.blocked is Blocked.UNHANDLED:
        reason, first = "unhandled", 0
    elif facts.bad is not None:
        reason, first = "bad_range", facts.bad.segment_base
    elif bounds.bound is Bound.UNREADABLE:
        reason, first = "unreadable", bounds.upper
    else:
        return "", 0
    return reason, sum(s.size for s in facts.segments[:-1] if s.base_offset >= first)
