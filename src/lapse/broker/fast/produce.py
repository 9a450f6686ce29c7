"""Produce on the fast path: judged in the read buffer, appended from there, answered by one struct.

What `api.produce` does, with the same answers and the same bytes in the logs, for requests that are
plain: `kernels.produce_frame` and each log (`PlainAppender.begin`) have to say so, and nothing may
have to be waited for. All are asked before the first byte is written. Until then a request can be
left to the readable path, as if nothing had been; from then on each partition has its own answer
here, since a batch must not be appended twice.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from lapse.broker.api.produce import (
    ACKS,
    ALL,
    AppendResult,
    account,
    close_if_failed,
    committed,
    failed,
    respond,
)
from lapse.broker.fast.led_topics import LedPartition, LedTopic, LedTopics
from lapse.broker.fast.left_over import LeftOver
from lapse.broker.fast.permissions import TOPIC, TRANSACTIONAL_ID, WRITE, may
from lapse.broker.fast.produce_answer import answer
from lapse.broker.request.context import Services, Session
from lapse.broker.request.throttle import charge_produced
from lapse.kernels.produce_frame import BY_ID_FROM, COLUMNS, judge
from lapse.log.plain_appender import PlainBatch
from lapse.records.batch import Header
from lapse.wire.envelope import encode_response
from lapse.wire.schema.produce import (
    PRODUCE,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)

PARTITIONS_MAX = 1024
NO_ANSWER = b""

# A batch and where it goes; after the append its header there and its LogAppendTime, or why not.
Asked = tuple[LedPartition, PlainBatch]
Appended = tuple[Header, int] | Exception


class _Head(NamedTuple):
    """What `judge` says of a request."""

    partitions: int
    version: int
    correlation_id: int
    client: int
    client_size: int
    acks: int
    timeout_ms: int
    transaction: int
    transaction_size: int


class _Request(NamedTuple):
    """Whose it is, and how many bytes."""

    head: _Head
    session: Session
    client_id: str
    size: int


class FastProduce:
    """For all connections of one broker, in its event loop."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._topics = LedTopics(services)
        self._rows = np.empty((PARTITIONS_MAX, COLUMNS), np.int64)
        self._versions = PRODUCE.versions

    def __call__(
        self, buffer: memoryview, array: NDArray[np.uint8], start: int, end: int, session: Session
    ) -> bytes | Coroutine[Any, Any, bytes | LeftOver] | None:
        """The answer's whole frame to the request in buffer[start:end]; None: it is not plain.

        `array` is the same memory as `buffer`. NO_ANSWER for acks=0; with acks=-1 what other
        replicas have to have is waited for, and so is a disk that is behind. `session.muted_ms`
        says how long the client waits. Raises CloseConnection.
        """
        services = self._services
        began = services.clock.monotonic()
        waits = services.disk.is_behind
        if waits:  # more is read into the buffer meanwhile
            buffer = memoryview(bytearray(buffer[start:end]))
            array, start, end = np.frombuffer(buffer, np.uint8), 0, end - start
        head = _Head._make(judge(array, start, end, self._rows))
        if head.partitions < 1 or head.version not in self._versions or head.acks not in ACKS:
            return None
        try:
            asked = self._asked(buffer, head, session)
            client_id = str(buffer[head.client : head.client + max(head.client_size, 0)], "utf-8")
        except Exception:  # noqa: BLE001  (the readable path meets it again, and says what it is)
            return None
        if asked is None:
            return None
        request = _Request(head, session, client_id, end - start)
        if waits:
            return self._answer_by_thread(request, asked, buffer, began)
        appended = self._append(asked, buffer)
        if appended is None:
            return None
        return self._answer(request, asked, appended, services.clock.monotonic() - began)

    def _answer(
        self, request: _Request, asked: Sequence[Asked], appended: Sequence[Appended], took_s: float
    ) -> bytes | Coroutine[Any, Any, bytes]:
        """Count what was appended, and say it, which has taken the event loop so long."""
        services, (head, session, client_id, size) = self._services, request
        session.client_id = client_id
        services.counters.requests[PRODUCE.name] += 1
        services.counters.fast_requests[PRODUCE.name] += 1
        succeeded = [one for one in appended if isinstance(one, tuple)]
        waits = (
            head.acks == ALL
            and not services.topics.members.is_alone
            and any(partition.is_replicated for partition, _ in asked)
        )
        results = None
        if waits or len(succeeded) < len(asked):
            results = self._results(asked, appended)
        else:
            self._account(asked)
        session.muted_ms = 0
        if services.quotas.any:
            session.muted_ms = charge_produced(services, session, took_s, size)
        if results is None:
            if not head.acks:
                return NO_ANSWER
            wait_ms = session.muted_ms
            return answer(asked, succeeded, head.version, head.correlation_id, wait_ms)
        if waits:
            return self._answer_once_committed(asked, results, head, session)
        return self._respond(asked, results, head, session)

    def _asked(self, buffer: memoryview, head: _Head, session: Session) -> list[Asked] | None:
        """The batches and their partitions; None where one of them is not for this path."""
        services, topics, count = self._services, self._topics, head.partitions
        if head.transaction_size >= 0:
            at = head.transaction
            name = str(buffer[at : at + head.transaction_size], "utf-8")
            if not may(services, session, WRITE, TRANSACTIONAL_ID, name):
                return None
        asked: list[Asked] = []
        topic: LedTopic | None = None
        at = -1
        for row in self._rows[:count].tolist():
            batch = PlainBatch(*row)
            if batch.topic != at:
                at = batch.topic
                name_or_id = bytes(buffer[at : at + batch.topic_size])
                topic = (topics.of if head.version < BY_ID_FROM else topics.by_id)(name_or_id)
                if topic is None or not may(services, session, WRITE, TOPIC, topic.topic.name):
                    return None
            assert topic is not None
            partition = topics.partition(topic, batch.partition)
            if partition is None or (head.acks == ALL and not partition.has_enough):
                return None
            asked.append((partition, batch))
        if count > 1 and len({id(partition) for partition, _ in asked}) < count:
            return None  # one batch would depend on another
        return asked

    def _append(self, asked: Sequence[Asked], buffer: memoryview) -> list[Appended] | None:
        """What became of each; None if nothing was written, since one was in the way."""
        services = self._services
        now_ms = services.clock.now_ms()
        headers: list[Header] = []
        try:
            if not _begin_all(asked, headers, now_ms):
                return None
            # None where the disk is behind.
            return services.disk.try_now(_append_all, asked, headers, buffer, now_ms)
        finally:
            for (partition, _), _ in zip(asked, headers, strict=False):
                partition.log.plain.end()

    async def _answer_by_thread(
        self, request: _Request, asked: Sequence[Asked], frame: memoryview, began: float
    ) -> bytes | LeftOver:
        """The same where the event loop would have to wait for the disk."""
        services = self._services
        took_s = services.clock.monotonic() - began
        now_ms = services.clock.now_ms()
        appended = await services.disk.run(_append_waiting, asked, frame, now_ms)
        if appended is None:
            return LeftOver(frame)
        answered = self._answer(request, asked, appended, took_s)
        return answered if isinstance(answered, bytes) else await answered

    def _account(self, asked: Sequence[Asked]) -> None:
        services = self._services
        now_ms, watches = services.clock.now_ms(), services.purgatory.watches
        for partition, batch in asked:
            counters = partition.topic.counters
            counters.messages_in += batch.records
            counters.bytes_in += batch.size
            if batch.base_time >= 0:
                counters.timed_batches += 1
                counters.latency_ms += max(now_ms - batch.base_time, 0)
            if partition.is_replicated:
                services.replicas.appended(partition.where)
            if watches:
                services.purgatory.appended(partition.where, batch.size)

    # --- where not all is as nearly always: as the readable path has it --------------------------

    def _results(self, asked: Sequence[Asked], appended: Sequence[Appended]) -> list[AppendResult]:
        services = self._services
        results = [
            _result(services, *one, became) for one, became in zip(asked, appended, strict=True)
        ]
        now_ms = services.clock.now_ms()
        for result in results:
            account(services, result, now_ms)
        return results

    async def _answer_once_committed(
        self, asked: Sequence[Asked], results: list[AppendResult], head: _Head, session: Session
    ) -> bytes:
        results = await committed(self._services, session, results, head.timeout_ms)
        return self._respond(asked, results, head, session)

    def _respond(
        self, asked: Sequence[Asked], results: list[AppendResult], head: _Head, session: Session
    ) -> bytes:
        if head.acks == 0:
            close_if_failed(results)
        request = ProduceRequest(
            acks=head.acks, timeout_ms=head.timeout_ms, topic_data=_topics_of(asked)
        )
        response = respond(self._services, session, request, head.version, results)
        if session.muted_ms:
            response = replace(response, throttle_time_ms=session.muted_ms)
        parts = encode_response(response, version=head.version, correlation_id=head.correlation_id)
        return b"".join(cast("list[bytes]", parts))  # there are no records in it


def _append_waiting(
    asked: Sequence[Asked], buffer: memoryview, now_ms: int
) -> list[Appended] | None:
    """In a worker thread: as `FastProduce._append`, and a lone log is waited for.

    Who waited for one log while it holds another might wait for somebody who does the reverse.
    """
    headers: list[Header] = []
    try:
        if not _begin_all(asked, headers, now_ms, may_wait=len(asked) == 1):
            return None
        return _append_all(asked, headers, buffer, now_ms)
    finally:
        for (partition, _), _ in zip(asked, headers, strict=False):
            partition.log.plain.end()


def _begin_all(
    asked: Sequence[Asked], headers: list[Header], now_ms: int, *, may_wait: bool = False
) -> bool:
    """Ask the logs, up to one that says no; `headers` gets those of the logs that are held."""
    try:
        for partition, batch in asked:
            header = partition.log.plain.begin(
                batch, partition.leader_epoch, now_ms, may_wait=may_wait
            )
            if header is None:
                return False
            headers.append(header)
    except Exception:  # noqa: BLE001  (the readable path meets it again, and says what it is)
        return False
    return True


def _append_all(
    asked: Sequence[Asked], headers: Sequence[Header], buffer: memoryview, now_ms: int
) -> list[Appended]:
    appended: list[Appended] = []
    for (partition, batch), header in zip(asked, headers, strict=True):
        data = buffer[batch.position : batch.position + batch.size]
        try:
            time_ms = partition.log.plain.append(header, data, batch.tombstones, now_ms)
            appended.append((header, time_ms))
        except Exception as e:  # noqa: BLE001  (its partition's answer says so)
            appended.append(e)
    return appended


def _result(
    services: Services, partition: LedPartition, batch: PlainBatch, became: Appended
) -> AppendResult:
    if isinstance(became, Exception):
        return failed(services.partitions, partition.where, became)
    header, time_ms = became
    return AppendResult(
        partition.where, header.base_offset, time_ms, partition.log.log_start_offset,
        records=batch.records, bytes_appended=batch.size, created_ms=batch.base_time,
        leader_epoch=header.leader_epoch, end_offset=header.last_offset + 1,
    )  # fmt: skip


def _topics_of(asked: Sequence[Asked]) -> tuple[TopicProduceData, ...]:
    """The request's topics without their records; one that it names twice is there twice."""
    topics = []
    for _, of_topic in groupby(asked, lambda one: one[1].topic):
        some = list(of_topic)
        data = tuple(PartitionProduceData(index=batch.partition, records=None) for _, batch in some)
        topic = some[0][0].topic.topic
        topics.append(
            TopicProduceData(name=topic.name, topic_id=topic.topic_id, partition_data=data)
        )
    return tuple(topics)
