"""Fetch sessions (KIP-227): the broker remembers what a client fetches; the client says it once.

What Kafka calls FetchSessionCache.

A full fetch (epoch 0) creates a session of all its partitions; from then on a request holds only
what changes, and a response holds only partitions with news: records, a bound that moved, an error.
`api.fetch` first turns a request into a full fetch here, and at the end turns the full response
into an incremental one: the code between, with authorization and quotas, knows nothing of
sessions. So each fetch checks the ACLs again.

A session belongs to the principal that created it; for other principals its id does not exist. Its
epoch counts its requests: a request that was sent twice, or got lost, is detected. Where a session
cannot be created the response has id 0, and the client goes on with full fetches.

When the number of sessions is at its limit, Kafka's rule chooses the session to evict: one that was
not used for the eviction time; else the smallest one that is smaller than the new one and older
than that time, a follower's session only for a follower. A follower's session may also evict a
consumer's younger one. Unlike Kafka, the partitions of all sessions together are bounded as well,
since their number is what costs memory.

Pure: time and new ids are arguments. Used only in the event loop.
"""

from __future__ import annotations

import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from typing import Any, Protocol

from lapse.base.errors import ErrorCode
from lapse.broker.logs.fetch_records import REPLICA, client_of
from lapse.wire.schema.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from lapse.wire.versions import BY_ID_FROM

NO_SESSION = 0
INITIAL_EPOCH, FINAL_EPOCH = 0, -1
EPOCH_MAX = 0x7FFFFFFF
# About 300 bytes each.
PARTITIONS_MAX = 100_000

# A topic's name, from version 13 on its id as an int (a UUID is slow to hash); a partition number.
Key = tuple[str | int, int]


@dataclass(slots=True, eq=False)
class SessionPartition:
    """A partition of a session: what is fetched of it, and the bounds that its client knows.

    Attributes:
        prepared: what the fast path knows of the partition; None until it was asked.
        quiet: the log's state in which that path found nothing to tell; None is any.
    """

    topic: str | uuid.UUID
    requested: FetchPartition
    high_watermark: int = -1
    log_start_offset: int = -1
    prepared: Any = None
    quiet: object = None

    @property
    def key(self) -> Key:
        topic = self.topic
        return topic if isinstance(topic, str) else topic.int, self.requested.partition

    def ask(self, requested: FetchPartition) -> None:
        """Fetch that from now on."""
        self.requested, self.quiet = requested, None

    def has_news(self, data: PartitionData) -> bool:
        """Whether the response must contain `data`; notes its bounds as known to the client."""
        self.quiet = None
        is_refused = data.error_code != ErrorCode.NONE or data.diverging_epoch.epoch >= 0
        is_news = (
            is_refused
            or bool(data.records)
            or self.high_watermark != data.high_watermark
            or self.log_start_offset != data.log_start_offset
            or data.preferred_read_replica >= 0
        )
        # Who gets an error, or cuts its log back first, takes no bounds: they are sent again.
        self.high_watermark = -1 if is_refused else data.high_watermark
        self.log_start_offset = data.log_start_offset
        return is_news


@dataclass(slots=True, eq=False)
class FetchSession:
    """What one client fetches.

    Attributes:
        partitions: in the order in which they are read. A partition that returned records goes to
            the end, so that none starves where the response is too small for all there is to read.
        topics: the same as in a full request; None until `whole` is called.
        prepared_for: what the fast path's knowledge of the partitions rests on; None while there
            is none.
    """

    id: int
    owner: str
    privileged: bool
    by_id: bool
    partitions: dict[Key, SessionPartition]
    created_ms: int
    used_ms: int
    epoch: int = INITIAL_EPOCH + 1
    topics: tuple[FetchTopic, ...] | None = None
    prepared_for: tuple[Any, ...] | None = None

    @property
    def worth(self) -> tuple[bool, int, int]:
        """Of two sessions that may be evicted, the one with the lesser value goes."""
        return self.privileged, len(self.partitions), self.id

    def whole(self) -> tuple[FetchTopic, ...]:
        """All that is fetched; a topic whose partitions are not adjacent occurs more than once."""
        if self.topics is None:
            self.topics = tuple(
                FetchTopic(topic_id=topic, partitions=requested)
                if isinstance(topic, uuid.UUID)
                else FetchTopic(topic=topic, partitions=requested)
                for topic, requested in _in_rows(self.partitions.values())
            )
        return self.topics

    def ask(self, partition: SessionPartition, requested: FetchPartition) -> None:
        """Fetch that of one of its partitions from now on."""
        partition.ask(requested)
        self.topics = None

    def gave_records(self, partition: SessionPartition) -> None:
        """The next time others are read first."""
        key = partition.key
        self.partitions[key] = self.partitions.pop(key)
        self.topics = None

    @property
    def epoch_before(self) -> int:
        """That of the request before the next one."""
        return EPOCH_MAX if self.epoch == 1 else self.epoch - 1


class FetchContext(Protocol):
    """One fetch request, from its partitions to the response that its client gets.

    Attributes:
        request: names every partition that is to be read.
    """

    @property
    def request(self) -> FetchRequest: ...

    def answer(self, whole: FetchResponse, now_ms: int) -> FetchResponse:
        """The part of `whole`, the response to the full request, that the client gets."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The request's session id or epoch is wrong: the client gets `code`, and nothing is read."""

    request: FetchRequest
    code: ErrorCode

    def answer(self, whole: FetchResponse, _now_ms: int) -> FetchResponse:
        return replace(whole, error_code=self.code)


@dataclass(frozen=True, slots=True)
class Sessionless:
    """A fetch without a session."""

    request: FetchRequest

    def answer(self, whole: FetchResponse, _now_ms: int) -> FetchResponse:
        return whole


@dataclass(frozen=True, slots=True)
class Full:
    """A full fetch, which creates a session."""

    request: FetchRequest
    sessions: FetchSessions
    owner: str
    by_id: bool
    privileged: bool

    def answer(self, whole: FetchResponse, now_ms: int) -> FetchResponse:
        if whole.throttle_time_ms and not whole.responses:
            return whole  # over its quota: the client got nothing, and will retry (KIP-219)
        return replace(whole, session_id=self.sessions.make(self, whole, now_ms))


@dataclass(frozen=True, slots=True)
class Incremental:
    """A fetch within a session; `epoch` is the epoch of the next request."""

    request: FetchRequest
    session: FetchSession
    epoch: int

    def answer(self, whole: FetchResponse, _now_ms: int) -> FetchResponse:
        known = replace(whole, session_id=self.session.id)
        if self.session.epoch != self.epoch:  # a later request of the client came meanwhile
            code = ErrorCode.INVALID_FETCH_SESSION_EPOCH
            return replace(known, error_code=code, responses=())
        return replace(known, responses=tuple(self._news(whole.responses)))

    def _news(
        self, responses: Sequence[FetchableTopicResponse]
    ) -> Iterator[FetchableTopicResponse]:
        session = self.session
        for topic in responses:
            name, news = _name(topic, by_id=session.by_id), []
            for data in topic.partitions:
                cached = session.partitions[name, data.partition_index]
                if not cached.has_news(data):
                    continue
                news.append(data)
                if data.records:
                    session.gave_records(cached)
            if len(news) == len(topic.partitions):
                yield topic
            elif news:
                yield replace(topic, partitions=tuple(news))


class FetchSessions:
    """All sessions of a broker.

    Attributes:
        evictions: number of sessions that were evicted for new ones.
        partitions: number of partitions of all sessions together.
    """

    def __init__(self, slots: int, eviction_ms: int, new_id: Callable[[], int]) -> None:
        self.evictions = 0
        self.partitions = 0
        self._slots, self._eviction_ms, self._new_id = slots, eviction_ms, new_id
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()  # least recently used first

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, owner: str, version: int, request: FetchRequest, now_ms: int) -> FetchContext:
        """Find the session of a principal's request, and the partitions to read for it."""
        session = self._sessions.get(request.session_id)
        if session is not None and session.owner != owner:
            session = None
        by_id = version >= BY_ID_FROM
        if request.session_epoch in {INITIAL_EPOCH, FINAL_EPOCH}:
            if session is not None:
                self._remove(session)
            if request.session_epoch == FINAL_EPOCH:
                return Sessionless(request)
            return Full(request, self, owner, by_id, client_of(version, request) == REPLICA)
        if session is None:
            return _refused(request, ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != request.session_epoch:
            return _refused(request, ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.by_id != by_id:
            return _refused(request, ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        return self._go_on(session, request, now_ms)

    def _go_on(self, session: FetchSession, request: FetchRequest, now_ms: int) -> FetchContext:
        self._update(session, request)
        if not session.partitions:
            self._remove(session)
            return Sessionless(request)
        if self.partitions > PARTITIONS_MAX:
            self._remove(session)
            return _refused(request, ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        self.take_up(session, now_ms)
        return Incremental(replace(request, topics=session.whole()), session, session.epoch)

    def take_up(self, session: FetchSession, now_ms: int) -> None:
        """Its next request is here."""
        session.used_ms = now_ms
        self._sessions.move_to_end(session.id)
        session.epoch = 1 if session.epoch == EPOCH_MAX else session.epoch + 1

    def waiting_for(self, owner: str, number: int, epoch: int) -> FetchSession | None:
        """The session whose next request that is; None where `begin` may refuse it."""
        session = self._sessions.get(number)
        if session is None or session.epoch != epoch or session.owner != owner:
            return None
        return session if self.partitions <= PARTITIONS_MAX else None

    def _update(self, session: FetchSession, request: FetchRequest) -> None:
        before = len(session.partitions)
        _add(session.partitions, request.topics, by_id=session.by_id)
        for gone in request.forgotten_topics_data:
            name = _name(gone, by_id=session.by_id)
            for number in gone.partitions:
                session.partitions.pop((name, number), None)
        if request.topics or request.forgotten_topics_data:
            session.topics = None
        if len(session.partitions) != before or request.forgotten_topics_data:
            session.prepared_for = None
        self.partitions += len(session.partitions) - before

    def make(self, full: Full, whole: FetchResponse, now_ms: int) -> int:
        """Create a session of the partitions of `full`; returns its id, 0 if there is no room."""
        partitions: dict[Key, SessionPartition] = {}
        _add(partitions, full.request.topics, by_id=full.by_id)
        if not self._has_place(full.privileged, len(partitions), now_ms):
            return NO_SESSION
        for topic in whole.responses:
            name = _name(topic, by_id=full.by_id)
            for data in topic.partitions:
                partitions[name, data.partition_index].has_news(data)
        number = self._new_id()
        while number in self._sessions or number == NO_SESSION:
            number = self._new_id()
        self._sessions[number] = FetchSession(
            number, full.owner, full.privileged, full.by_id, partitions, now_ms, now_ms
        )
        self.partitions += len(partitions)
        return number

    def _has_place(self, privileged: bool, size: int, now_ms: int) -> bool:
        if len(self._sessions) >= self._slots:
            victim = self._victim((privileged, size, 0), now_ms)
            if victim is None:
                return False
            self._evict(victim)
        while self.partitions + size > PARTITIONS_MAX:
            stale = self._stale(now_ms)
            if stale is None:
                return False
            self._evict(stale)
        return True

    def _victim(self, worth: tuple[bool, int, int], now_ms: int) -> FetchSession | None:
        stale = self._stale(now_ms)
        if stale is not None:
            return stale
        evictable = [s for s in self._sessions.values() if self._may_go(s, for_privileged=worth[0])]
        least = min(evictable, key=lambda s: s.worth, default=None)
        return least if least is not None and worth >= least.worth else None

    def _stale(self, now_ms: int) -> FetchSession | None:
        oldest = next(iter(self._sessions.values()), None)
        return oldest if oldest and now_ms - oldest.used_ms > self._eviction_ms else None

    def _may_go(self, session: FetchSession, *, for_privileged: bool) -> bool:
        is_old = session.used_ms - session.created_ms > self._eviction_ms
        return is_old or (for_privileged and not session.privileged)

    def _evict(self, session: FetchSession) -> None:
        self._remove(session)
        self.evictions += 1

    def _remove(self, session: FetchSession) -> None:
        del self._sessions[session.id]
        self.partitions -= len(session.partitions)


def _refused(request: FetchRequest, code: ErrorCode) -> Refused:
    return Refused(replace(request, topics=()), code)


class _Named(Protocol):
    """A part of a message that names a topic by its name or by its id."""

    @property
    def topic(self) -> str: ...
    @property
    def topic_id(self) -> uuid.UUID: ...


def _name(named: _Named, *, by_id: bool) -> str | int:
    return named.topic_id.int if by_id else named.topic


def _add(
    partitions: dict[Key, SessionPartition], topics: Sequence[FetchTopic], *, by_id: bool
) -> None:
    """Note what to fetch of each partition from now on; new partitions come last."""
    for topic in topics:
        name = _name(topic, by_id=by_id)
        for requested in topic.partitions:
            cached = partitions.get((name, requested.partition))
            if cached is None:
                known_by = topic.topic_id if by_id else topic.topic
                partitions[name, requested.partition] = SessionPartition(known_by, requested)
            else:
                cached.ask(requested)


def _in_rows(
    partitions: Iterable[SessionPartition],
) -> Iterator[tuple[str | uuid.UUID, tuple[FetchPartition, ...]]]:
    """Group adjacent partitions of the same topic."""
    for topic, row in groupby(partitions, attrgetter("topic")):
        yield topic, tuple(cached.requested for cached in row)
