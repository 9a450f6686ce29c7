"""What a broker says of all its logs at once, small enough to be asked for every second.

Topics whose logs are late or nearest to being late come first, and only so many: a broker may have
ten thousand. Pure; the broker makes it of the rows that its metrics are made of.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from heapq import nsmallest

from lapse.base.config import TopicConfig
from lapse.base.ids import TopicPartition
from lapse.lifecycle.decide.lateness import SUPERSEDED, Deadline
from lapse.lifecycle.decide.promises import SUPERSEDED_IS_GONE, bounds_of
from lapse.lifecycle.outlook.plan import policy_text
from lapse.lifecycle.status.snapshot import Status

TOPICS_MAX = 100
AHEAD_MAX = 25


@dataclass(frozen=True, slots=True)
class LogSeen:
    """A log, as it is counted.

    Attributes:
        dirty_bytes, dirty_ratio: of compacted logs (S-5).
        is_held: rounds leave it, or part of it, alone.
    """

    log: TopicPartition
    config: TopicConfig
    size_bytes: int
    deadlines: tuple[Deadline, ...] = ()
    is_due: bool = False
    is_held: bool = False
    dirty_bytes: int = 0
    dirty_ratio: float = 0.0


@dataclass(frozen=True, slots=True)
class Ahead:
    """A deadline by which records of a kind must be gone; one that has passed is missed."""

    log: str
    kind: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class TopicSeen:
    """A topic's logs together.

    Attributes:
        dirty_ratio: of the dirtiest log.
        due, held: logs whose round is due; logs that rounds leave alone.
        oldest_ms: append of the oldest record that waits for compaction, where there is a bound.
        lag_ms_max: that bound, slack included (KIP-354); None without one.
        first: the earliest deadline of any kind.
    """

    topic: str
    policy: str
    logs: int = 0
    size_bytes: int = 0
    dirty_bytes: int = 0
    dirty_ratio: float = 0.0
    due: int = 0
    held: int = 0
    oldest_ms: int | None = None
    lag_ms_max: int | None = None
    first: Ahead | None = None


@dataclass(frozen=True, slots=True)
class Trouble:
    """What is out of order, in words; a fault degrades the broker."""

    is_fault: bool
    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class Overview:
    """Of one broker.

    Attributes:
        topics: those with the earliest deadlines first, at most `TOPICS_MAX` of `topics_all`.
        ahead: the earliest deadlines of all logs, at most `AHEAD_MAX`.
        late: logs with a deadline that has passed.
        status: of the lifecycle service; None where its files cannot be read.
    """

    broker: int
    now_ms: int
    topics: tuple[TopicSeen, ...] = ()
    topics_all: int = 0
    logs: int = 0
    size_bytes: int = 0
    due: int = 0
    late: int = 0
    ahead: tuple[Ahead, ...] = ()
    troubles: tuple[Trouble, ...] = ()
    status: Status | None = None


@dataclass(slots=True)
class _Count:
    """A topic while its logs are counted; `superseded_ms`: the earliest deadline of that kind."""

    config: TopicConfig
    logs: int = 0
    size_bytes: int = 0
    dirty_bytes: int = 0
    dirty_ratio: float = 0.0
    due: int = 0
    held: int = 0
    superseded_ms: int | None = None
    first: Ahead | None = None

    def add(self, log: LogSeen, first: Ahead | None) -> None:
        self.logs += 1
        self.size_bytes += log.size_bytes
        self.dirty_bytes += log.dirty_bytes
        self.dirty_ratio = max(self.dirty_ratio, log.dirty_ratio)
        self.due += log.is_due
        self.held += log.is_held
        self.first = _earlier(self.first, first)
        for deadline in log.deadlines:
            if deadline.what == SUPERSEDED:
                self.superseded_ms = _least(self.superseded_ms, deadline.ms)

    def seen(self, name: str) -> TopicSeen:
        """What the formulas of a topic say is looked up for those that are shown, not for all."""
        bounds = {one.name: one.ms for one in bounds_of(self.config)}
        lag_ms_max, oldest_ms = bounds.get(SUPERSEDED_IS_GONE), None
        if lag_ms_max is not None and self.superseded_ms is not None:
            oldest_ms = self.superseded_ms - lag_ms_max
        return TopicSeen(
            name, policy_text(self.config), self.logs, self.size_bytes, self.dirty_bytes,
            self.dirty_ratio, self.due, self.held, oldest_ms, lag_ms_max, self.first,
        )  # fmt: skip


def overview_of(
    broker: int,
    now_ms: int,
    logs: Iterable[LogSeen],
    troubles: Iterable[Trouble] = (),
    status: Status | None = None,
) -> Overview:
    """Count them."""
    topics: dict[str, _Count] = {}
    ahead: list[Ahead] = []
    count = size_bytes = due = late = 0
    for one in logs:
        count, size_bytes, due = count + 1, size_bytes + one.size_bytes, due + one.is_due
        first = None
        if one.deadlines:
            earliest = min(one.deadlines)
            first = Ahead(str(one.log), earliest.what, earliest.ms)
            ahead.append(first)
            late += earliest.ms < now_ms
        name = one.log.topic
        if name not in topics:
            topics[name] = _Count(one.config)
        topics[name].add(one, first)
    shown = nsmallest(TOPICS_MAX, topics, key=lambda name: _urgency(name, topics[name]))
    return Overview(
        broker, now_ms, tuple(topics[name].seen(name) for name in shown), len(topics), count,
        size_bytes, due, late, tuple(nsmallest(AHEAD_MAX, ahead, key=_moment)), tuple(troubles),
        status,
    )  # fmt: skip


def together(overviews: Iterable[Overview]) -> Overview:
    """Of all brokers, a topic once: sizes and counts are those of all replicas."""
    whole, topics, ahead = Overview(-1, 0), dict[str, TopicSeen](), dict[tuple[str, str], Ahead]()
    for one in overviews:
        for topic in one.topics:
            known = topics.get(topic.topic)
            topics[topic.topic] = topic if known is None else _both(known, topic)
        for seen in one.ahead:  # replicas were appended to at other moments
            earliest = min(ahead.get((seen.log, seen.kind), seen), seen, key=_moment)
            ahead[seen.log, seen.kind] = earliest
        whole = replace(
            whole, now_ms=max(whole.now_ms, one.now_ms), logs=whole.logs + one.logs,
            size_bytes=whole.size_bytes + one.size_bytes, due=whole.due + one.due,
            late=whole.late + one.late, troubles=(*whole.troubles, *one.troubles),
            topics_all=max(whole.topics_all, one.topics_all),
        )  # fmt: skip
    return replace(
        whole,
        topics=tuple(nsmallest(TOPICS_MAX, topics.values(), key=lambda t: _urgency(t.topic, t))),
        topics_all=max(whole.topics_all, len(topics)),
        ahead=tuple(nsmallest(AHEAD_MAX, ahead.values(), key=_moment)),
    )


def _both(one: TopicSeen, other: TopicSeen) -> TopicSeen:
    """A topic that two brokers have logs of."""
    return replace(
        one,
        logs=one.logs + other.logs,
        size_bytes=one.size_bytes + other.size_bytes,
        dirty_bytes=one.dirty_bytes + other.dirty_bytes,
        dirty_ratio=max(one.dirty_ratio, other.dirty_ratio),
        due=one.due + other.due,
        held=one.held + other.held,
        oldest_ms=_least(one.oldest_ms, other.oldest_ms),
        first=_earlier(one.first, other.first),
    )


def _earlier(one: Ahead | None, other: Ahead | None) -> Ahead | None:
    return min((a for a in (one, other) if a is not None), key=_moment, default=None)


def _least(one: int | None, other: int | None) -> int | None:
    return min((ms for ms in (one, other) if ms is not None), default=None)


def _moment(ahead: Ahead) -> tuple[int, str]:
    return ahead.at_ms, ahead.log


def _urgency(name: str, topic: _Count | TopicSeen) -> tuple[bool, int, float, str]:
    """Earliest deadline, then those without one by how dirty they are."""
    first = topic.first
    return first is None, 0 if first is None else first.at_ms, -topic.dirty_ratio, name
