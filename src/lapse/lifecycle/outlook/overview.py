"""What a broker says of all its logs at once, small enough to be asked for every second.

Topics whose logs are late or nearest to being late come first, and only so many: a broker may have
ten thousand. Pure; the broker makes it of the rows that its metrics are made of.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from heapq import nsmallest
from typing import NamedTuple

from lapse.base.config import TopicConfig
from lapse.base.ids import TopicPartition
from lapse.lifecycle.decide.lateness import SUPERSEDED, Deadline
from lapse.lifecycle.decide.promises import SUPERSEDED_IS_GONE, bounds_of
from lapse.lifecycle.outlook.plan import policy_text
from lapse.lifecycle.status.snapshot import Status

TOPICS_MAX = 100
AHEAD_MAX = 25


class LogSeen(NamedTuple):
    """A log, as it is counted; a tuple, as one is made of each.

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


@dataclass(slots=True)
class TopicSeen:
    """A topic's logs together, added up.

    Attributes:
        dirty_ratio: of the dirtiest log.
        due, held: logs whose round is due; logs that rounds leave alone.
        superseded_ms: by when the oldest record that waits for compaction must be replaced.
        lag_ms_max: how long it may wait, slack included (KIP-354); None without a bound.
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
    superseded_ms: int | None = None
    lag_ms_max: int | None = None
    first: Ahead | None = None

    @property
    def oldest_ms(self) -> int | None:
        """Append of that record; None where none waits."""
        if self.superseded_ms is None or self.lag_ms_max is None:
            return None
        return self.superseded_ms - self.lag_ms_max

    def add(self, other: TopicSeen) -> None:
        """Logs of the same topic."""
        self.logs += other.logs
        self.size_bytes += other.size_bytes
        self.dirty_bytes += other.dirty_bytes
        self.dirty_ratio = max(self.dirty_ratio, other.dirty_ratio)
        self.due += other.due
        self.held += other.held
        if other.superseded_ms is not None:
            mine = other.superseded_ms if self.superseded_ms is None else self.superseded_ms
            self.superseded_ms = min(mine, other.superseded_ms)
        if other.first is not None:
            mine_first = other.first if self.first is None else self.first
            self.first = min(mine_first, other.first, key=_moment)


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
        topics: those with the earliest deadlines first, at most `TOPICS_MAX`.
        topics_all: how many the cluster has, whoever has their logs.
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


def overview_of(
    broker: int,
    now_ms: int,
    logs: Iterable[LogSeen],
    troubles: Iterable[Trouble] = (),
    status: Status | None = None,
    topics_all: int = 0,
) -> Overview:
    """Count them; `topics_all`: of the cluster's metadata, where there are more than these."""
    topics, configs = dict[str, TopicSeen](), dict[str, TopicConfig]()
    earliest: list[tuple[Deadline, TopicPartition]] = []
    count = size_bytes = due = late = 0
    for one in logs:  # of ten thousand: what is not counted is not made
        count, size_bytes, due = count + 1, size_bytes + one.size_bytes, due + one.is_due
        name = one.log.topic
        topic = topics.get(name)
        if topic is None:
            topic = topics[name] = TopicSeen(name, policy_text(one.config))
            configs[name] = one.config
        first = _count(topic, one)
        if first is not None:
            earliest.append((first, one.log))
            late += first.ms < now_ms
    shown = _most_urgent(topics.values())
    for topic in shown:  # formulas are looked up for these, not for all
        bounds = {promise.name: promise.ms for promise in bounds_of(configs[topic.topic])}
        topic.lag_ms_max = bounds.get(SUPERSEDED_IS_GONE)
    return Overview(
        broker, now_ms, shown, max(len(topics), topics_all), count, size_bytes, due, late,
        _ahead(earliest), tuple(troubles), status,
    )  # fmt: skip


def _count(topic: TopicSeen, log: LogSeen) -> Deadline | None:
    """A log of its topic; returns its earliest deadline."""
    topic.logs += 1
    topic.size_bytes += log.size_bytes
    topic.dirty_bytes += log.dirty_bytes
    topic.dirty_ratio = max(topic.dirty_ratio, log.dirty_ratio)
    topic.due += log.is_due
    topic.held += log.is_held
    if not log.deadlines:
        return None
    for at_ms, what in log.deadlines:
        if what == SUPERSEDED and (topic.superseded_ms is None or at_ms < topic.superseded_ms):
            topic.superseded_ms = at_ms
    first = min(log.deadlines)
    if topic.first is None or first.ms <= topic.first.at_ms:
        ahead = Ahead(str(log.log), first.what, first.ms)
        topic.first = ahead if topic.first is None else min(topic.first, ahead, key=_moment)
    return first


def _ahead(earliest: list[tuple[Deadline, TopicPartition]]) -> tuple[Ahead, ...]:
    """The first of them, by time and then by the log's name."""
    times = nsmallest(AHEAD_MAX, (first.ms for first, _ in earliest))
    last_ms = times[-1] if times else 0
    found = [Ahead(str(log), at.what, at.ms) for at, log in earliest if at.ms <= last_ms]
    return tuple(nsmallest(AHEAD_MAX, found, key=_moment))


def together(overviews: Iterable[Overview]) -> Overview:
    """Of all brokers, a topic once: sizes and counts are those of all replicas."""
    whole, topics, ahead = Overview(-1, 0), dict[str, TopicSeen](), dict[tuple[str, str], Ahead]()
    for one in overviews:
        for topic in one.topics:
            if topic.topic in topics:
                topics[topic.topic].add(topic)
            else:
                topics[topic.topic] = replace(topic)
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
        topics=_most_urgent(topics.values()),
        topics_all=max(whole.topics_all, len(topics)),
        ahead=tuple(nsmallest(AHEAD_MAX, ahead.values(), key=_moment)),
    )


def _moment(ahead: Ahead) -> tuple[int, str]:
    return ahead.at_ms, ahead.log


def _most_urgent(topics: Iterable[TopicSeen]) -> tuple[TopicSeen, ...]:
    """By the earliest deadline, then those without one by how dirty they are."""

    def urgency(topic: TopicSeen) -> tuple[bool, int, float, str]:
        first = topic.first
        at_ms = 0 if first is None else first.at_ms
        return first is None, at_ms, -topic.dirty_ratio, topic.topic

    return tuple(nsmallest(TOPICS_MAX, topics, key=urgency))
