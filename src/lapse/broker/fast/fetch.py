"""Fetch on the fast path: parsed in the read buffer, read from what was just written.

What `api.fetch` answers a consumer, without a session or within one (KIP-227), for partitions that
this broker leads and that are read at the end of their logs: there most consumers are. A long poll
waits here, too. Where a file has to be opened or waited for, and where anything is wrong, the
readable path looks again from the start; nothing has been changed by then.
"""

from __future__ import annotations

import weakref
from collections.abc import Coroutine
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lapse.base.clock import monotonic_ms
from lapse.broker.api.fetch import READ_COMMITTED
from lapse.broker.fast.fetch_look import PARTITIONS_MAX, Look, Row, Terms
from lapse.broker.fast.led_topics import LedPartition, LedTopic, LedTopics
from lapse.broker.fast.left_over import LeftOver
from lapse.broker.fast.permissions import READ, TOPIC, may
from lapse.broker.logs.fetch_sessions import FetchSession, SessionPartition
from lapse.broker.request.context import Services, Session
from lapse.broker.request.throttle import charge_fetched, fetched_at_once
from lapse.kernels.fetch_frame import BY_ID_FROM, COLUMNS, HEAD_SIZE, NO_SESSION, parse
from lapse.log.plain_reader import PlainReader
from lapse.wire.codec import Part
from lapse.wire.schema.fetch import FETCH, FetchPartition

# Most of which have nothing new, which is soon seen.
SESSION_PARTITIONS_MAX = 512
_INT32_BYTES = 4


class _Head(NamedTuple):
    """What `parse` says of a request."""

    version: int
    correlation_id: int
    client: int
    client_size: int
    wait_at: int
    wait_ms: int
    bytes_min: int
    bytes_max: int
    isolation: int
    session_id: int
    session_epoch: int


class _Request(NamedTuple):
    """One request, for as long as it is waited with.

    Attributes:
        asked: its partitions where it is of no session.
        fetches: its session.
        generation: of `LedTopics`, which knew the partitions.
    """

    head: _Head
    terms: Terms
    session: Session
    client_id: str
    asked: list[tuple[LedPartition, Row]]
    fetches: FetchSession | None
    generation: object

    @property
    def partitions(self) -> list[LedPartition]:
        if self.fetches is None:
            return [led for led, _ in self.asked]
        return [one.prepared() for one in self.fetches.partitions.values()]

    @property
    def is_latest(self) -> bool:
        """Of a session, whether it has been taken up as the last one."""
        return self.fetches is None or self.fetches.epoch_before == self.head.session_epoch

    @property
    def bytes_min(self) -> int:
        return min(self.head.bytes_min, self.terms.bytes_max)

    @property
    def is_held_back(self) -> bool:
        """Whether any batch may be a marker, of few bytes, that lets a consumer see much."""
        if not self.terms.is_committed:
            return False
        states = [led.log.state for led in self.partitions]
        return any(state.last_stable_offset < state.high_watermark for state in states)


class FastFetch:
    """For all connections of one listener, in its event loop."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._topics = LedTopics(services)
        self._reader = PlainReader()
        self._head = np.empty(HEAD_SIZE, np.int64)
        self._rows = np.empty((PARTITIONS_MAX, COLUMNS), np.int64)
        self._versions = FETCH.versions

    def __call__(
        self, buffer: memoryview, array: NDArray[np.uint8], start: int, end: int, session: Session
    ) -> list[Part] | Coroutine[Any, Any, list[Part] | LeftOver] | None:
        """The answer's frame to the request in buffer[start:end], in parts; None: it is not plain.

        `array` is the same memory as `buffer`. Where there is less than the client wants, more is
        waited for.
        """
        began = self._services.clock.monotonic()
        try:
            request = self._request(buffer, array, start, end, session)
            look = None if request is None else self._look(request)
        except Exception:  # noqa: BLE001  (the readable path meets it again, and says what it is)
            return None
        if request is None or look is None:
            return None
        if request.head.wait_ms > 0 and look.size < request.bytes_min:
            self._take_up(request)
            frame = bytearray(buffer[start:end])
            return self._wait(request, look.size, frame, request.head.wait_at - start)
        answer = self._finish(request, look, began)
        if answer is not None:
            self._take_up(request)
        return answer

    # --- what is asked ---------------------------------------------------------------------------

    def _request(
        self, buffer: memoryview, array: NDArray[np.uint8], start: int, end: int, session: Session
    ) -> _Request | None:
        services, topics = self._services, self._topics
        count = parse(array, start, end, self._head, self._rows)
        if count < 0 or not services.answer_bytes.has_room:
            return None
        head = _Head._make(self._head.tolist())
        if head.version not in self._versions:
            return None
        client_id = str(buffer[head.client : head.client + max(head.client_size, 0)], "utf-8")
        is_committed = head.isolation == READ_COMMITTED
        by_quota = fetched_at_once(services, session, client_id)
        bytes_max = min(head.bytes_max, services.config.fetch_max_bytes, by_quota)
        terms = Terms(head.version, is_committed, bytes_max)
        rows = list(map(Row._make, self._rows[:count].tolist()))
        topics.mind_changes()
        asked: list[tuple[LedPartition, Row]] | None = []
        fetches = None
        if head.session_id == NO_SESSION:
            asked = self._asked(buffer, rows, terms, session)
        else:
            fetches = self._fetches(buffer, rows, head, session)
        if asked is None or (head.session_id != NO_SESSION and fetches is None):
            return None
        return _Request(head, terms, session, client_id, asked, fetches, topics.generation)

    def _asked(
        self, buffer: memoryview, rows: list[Row], terms: Terms, session: Session
    ) -> list[tuple[LedPartition, Row]] | None:
        asked = []
        topic: LedTopic | None = None
        at, by_id = -1, terms.version >= BY_ID_FROM
        for row in rows:
            if row.topic != at:
                at = row.topic
                topic = self._topic(bytes(buffer[at : at + row.topic_size]), by_id, session)
            if topic is None:
                return None
            led = self._topics.partition(topic, row.partition)
            if led is None:
                return None
            asked.append((led, row))
        return asked

    def _topic(self, name: bytes, by_id: bool, session: Session) -> LedTopic | None:
        topic = self._topics.by_id(name) if by_id else self._topics.of(name)
        if topic is None:
            return None
        name_of = topic.topic.name
        may_read = may(self._services, session, READ, TOPIC, name_of)
        return topic if may_read else None

    def _fetches(
        self, buffer: memoryview, rows: list[Row], head: _Head, session: Session
    ) -> FetchSession | None:
        """The session, with what it now asks for; the readable path notes the same again."""
        sessions, by_id = self._services.fetch_sessions, head.version >= BY_ID_FROM
        found = sessions.waiting_for(session.principal, head.session_id, head.session_epoch)
        if found is None or found.by_id != by_id or not found.partitions:
            return None
        changes: list[tuple[SessionPartition, Row]] = []
        for row in rows:
            raw = bytes(buffer[row.topic : row.topic + row.topic_size])
            name = int.from_bytes(raw) if by_id else raw.decode()
            one = found.partitions.get((name, row.partition))
            if one is None:
                return None
            changes.append((one, row))
        if not self._is_prepared(found, head, session):
            return None
        for one, row in changes:
            number, leader_epoch, offset, bytes_max, *_ = row
            found.ask(
                one,
                FetchPartition(
                    partition=number, current_leader_epoch=leader_epoch,
                    fetch_offset=offset, partition_max_bytes=bytes_max,
                )
            )  # fmt: skip
        return found

    def _is_prepared(self, fetches: FetchSession, head: _Head, session: Session) -> bool:
        """Whether all partitions of a session are for this path; asked once, if nothing changes.

        Another connection may have its client at another host, which other ACLs are for.
        """
        rests_on = (
            self._topics.generation, self._services.access.authorizer, head.isolation,
            session.number,
        )  # fmt: skip
        if fetches.prepared_for is None or fetches.prepared_for[:-1] != rests_on:
            fetches.prepared_for = *rests_on, self._prepare(fetches, session)
        return bool(fetches.prepared_for[-1])

    def _prepare(self, fetches: FetchSession, session: Session) -> bool:
        if fetches.privileged or len(fetches.partitions) > SESSION_PARTITIONS_MAX:
            return False
        for one in fetches.partitions.values():
            name = one.topic.encode() if isinstance(one.topic, str) else one.topic.bytes
            topic = self._topic(name, fetches.by_id, session)
            led = topic and self._topics.partition(topic, one.requested.partition)
            if led is None:
                return False
            one.prepared, one.quiet = weakref.ref(led), None
        return True

    # --- what is answered ------------------------------------------------------------------------

    def _look(self, request: _Request) -> Look | None:
        """None where the readable path is to look."""
        look = Look(self._reader, request.terms)
        if request.fetches is None:
            return look if look.at_all(request.asked) else None
        return look if look.at_news(request.fetches.partitions.values()) else None

    def _look_again(self, request: _Request) -> Look | None:
        """None, too, where it is not the same partitions any more, or the client has gone on."""
        self._topics.mind_changes()
        if self._topics.generation is not request.generation or not request.is_latest:
            return None
        try:
            return self._look(request)
        except Exception:  # noqa: BLE001  (the readable path meets it again, and says what it is)
            return None

    def _finish(self, request: _Request, look: Look, began: float) -> list[Part] | None:
        """None, and nothing changed, where the client is over its quota."""
        services, session, head = self._services, request.session, request.head
        frame = look.answer.frame(head.correlation_id, head.session_id)
        session.client_id = request.client_id
        if services.quotas.any:
            took_s = services.clock.monotonic() - began
            if charge_fetched(services, session, took_s, look.size):
                return None
        session.muted_ms = 0
        for counters, size in look.given:
            counters.bytes_out += size
        if request.fetches is not None:
            for one, seen in look.told:
                one.high_watermark, one.log_start_offset = (
                    seen.high_watermark,
                    seen.log_start_offset,
                )
                if seen.size:
                    request.fetches.gave_records(one)
        services.counters.requests[FETCH.name] += 1
        services.counters.fast_requests[FETCH.name] += 1
        return frame

    def _take_up(self, request: _Request) -> None:
        if request.fetches is not None:
            now_ms = monotonic_ms(self._services.clock)
            self._services.fetch_sessions.take_up(request.fetches, now_ms)

    async def _wait(
        self, request: _Request, size: int, frame: bytearray, wait_at: int
    ) -> list[Part] | LeftOver:
        """Look again whenever enough has come, until there is enough or time is up.

        `size` bytes of records are there. What is left over is to be waited with for the rest of
        its time, and within a session it has not been there yet.
        """
        services, session, clock = self._services, request.session, self._services.clock
        deadline = clock.monotonic() + request.head.wait_ms / 1000
        with services.purgatory.watch([led.where for led in request.partitions]) as watch:
            session.watch = watch
            seconds = request.head.wait_ms / 1000
            while True:
                # What was read is read again, since it may be much.
                missing = 1 if request.is_held_back else request.bytes_min - size
                await watch.wait(missing, seconds)
                watch.reset()
                began = clock.monotonic()
                seconds = deadline - began
                look = self._look_again(request)
                if look is None or look.size >= request.bytes_min or seconds <= 0 or session.lost:
                    break
                size, look = look.size, None
            session.watch = None
        answer = None if look is None else self._finish(request, look, began)
        if answer is not None:
            return answer
        if request.fetches is not None and request.is_latest:
            request.fetches.epoch = request.head.session_epoch
        left_ms = max(int((deadline - clock.monotonic()) * 1000), 0)
        frame[wait_at : wait_at + _INT32_BYTES] = left_ms.to_bytes(_INT32_BYTES)
        return LeftOver(memoryview(frame))
