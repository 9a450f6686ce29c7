"""Deleting records before an offset or a time, at every leader at once (KIP-107).

`delete_records_before` groups partitions by leader. If a leader does not answer in time, only its
partitions get a timeout, with low watermark -1; the other leaders' answers are not held up. A call
is retried only where a retry cannot delete more than the caller requested: "up to the high
watermark" means another offset a moment later.

A time stands for the first record that may not be older (`age`). Without such a record, all records
present at that moment are deleted, and none appended during the look-up: the log's end is read
first.

DeleteRecords names a topic, without its id. A caller that has judged a topic passes its id: right
before each call, the leader's metadata must still show that id for the topic.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime

from lapse.base.backoff import backoff_ms
from lapse.base.errors import ErrorCode, KafkaError, LapseError
from lapse.base.ids import TopicPartition, format_topic_id
from lapse.client.age import older_until
from lapse.client.cluster import Cluster, as_kafka, may_try_again
from lapse.client.connection import BrokerConnection, ConnectionLost
from lapse.client.offsets import By
from lapse.client.settings import (
    NO_LOW_WATERMARK,
    DeleteRecordsResult,
    delete_request,
    deleted,
    refusal,
)
from lapse.wire.schema.delete_records import DeleteRecordsResponse

HIGH_WATERMARK = -1
Before = int | datetime
_RETRY_BACKOFF_MS, _RETRY_BACKOFF_MAX_MS = 100, 1000
# The broker's share of the time left: its answer, also a timeout error, must arrive in time.
_BROKERS_PART = 0.8


async def delete_records_before(
    cluster: Cluster,
    before: Mapping[TopicPartition, Before],
    request_timeout_ms: int,
    topic_ids: Mapping[str, uuid.UUID] | None = None,
    by: By = By.AGE,
) -> dict[TopicPartition, DeleteRecordsResult]:
    """A result for each partition, within `request_timeout_ms`.

    A time is compared with records' own times, and with the append times of those without one, or,
    `by` append, with those of all. Nothing is deleted from a topic of `topic_ids` that has another
    id: UNKNOWN_TOPIC_ID.
    """
    deadline = asyncio.get_running_loop().time() + request_timeout_ms / 1000
    calls = _Calls(cluster, dict(before), deadline, topic_ids or {}, by)
    failures = 0
    while calls.missing:
        await calls.once()
        failures += 1
        wait_ms = backoff_ms(failures, _RETRY_BACKOFF_MS, _RETRY_BACKOFF_MAX_MS)
        if calls.missing and not await _slept(wait_ms / 1000, deadline):
            break
    for partition in calls.missing:
        calls.give_up(partition)
    return {partition: calls.results[partition] for partition in before}


async def _slept(seconds: float, deadline: float) -> bool:
    """Whether there is time for another attempt."""
    left = deadline - asyncio.get_running_loop().time()
    if left <= seconds:
        return False
    await asyncio.sleep(seconds)
    return True


class _Calls:
    """The partitions without a result so far, and the results of the other partitions."""

    def __init__(
        self,
        cluster: Cluster,
        before: dict[TopicPartition, Before],
        deadline: float,
        topic_ids: Mapping[str, uuid.UUID],
        by: By,
    ) -> None:
        self._cluster = cluster
        self._deadline = deadline
        self._topic_ids = topic_ids
        self._by = by
        self._errors: dict[TopicPartition, LapseError] = {}
        self.missing = before
        self.results: dict[TopicPartition, DeleteRecordsResult] = {}

    async def once(self) -> None:
        """Make one attempt at all missing partitions, at each leader independently."""
        by_leader: dict[int, list[TopicPartition]] = {}
        try:
            async with asyncio.timeout_at(self._deadline):
                for partition in list(self.missing):
                    try:
                        leader = await self._cluster.leader(partition)
                        by_leader.setdefault(leader, []).append(partition)
                    except (KafkaError, ConnectionLost) as e:
                        self._failed([partition], e, harmless=True)
        except TimeoutError:
            return
        await asyncio.gather(
            *(self._ask(node_id, partitions) for node_id, partitions in by_leader.items())
        )

    async def _ask(self, node_id: int, partitions: Sequence[TopicPartition]) -> None:
        with contextlib.suppress(TimeoutError):  # they stay missing
            async with asyncio.timeout_at(self._deadline):
                await self._ask_leader(node_id, partitions)

    async def _ask_leader(self, node_id: int, partitions: Sequence[TopicPartition]) -> None:
        try:
            connection = await self._cluster.connection(node_id)
            offsets = await self._offsets(connection, partitions)
            offsets = await self._still_the_same(connection, offsets)
        except (KafkaError, ConnectionLost) as e:
            self._failed(partitions, e, harmless=True)
            return
        if not offsets:
            return
        left = self._left()
        request = delete_request(offsets, int(left * _BROKERS_PART * 1000))
        try:
            answer = await connection.request(
                request, DeleteRecordsResponse, timeout_seconds=left + 1
            )
        except ConnectionLost as e:
            for partition, offset in offsets.items():
                self._cluster.failed(connection, partition.topic)
                self._failed([partition], e, harmless=not e.sent or offset != HIGH_WATERMARK)
            return
        except KafkaError as e:
            self._failed(offsets, e, harmless=False)
            return
        for partition, result in deleted(answer).items():
            if partition not in offsets:
                continue
            if result.error is None:
                self._settle(partition, result)
            else:
                unsure = result.error.code == ErrorCode.REQUEST_TIMED_OUT
                self._failed([partition], result.error, harmless=not unsure)

    async def _offsets(
        self, connection: BrokerConnection, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Return the offsets to delete up to; a partition without one is recorded as failed."""
        wanted = {p: self.missing[p] for p in partitions}
        offsets = {p: b for p, b in wanted.items() if isinstance(b, int)}
        times = {p: b for p, b in wanted.items() if isinstance(b, datetime)}
        if not times:
            return offsets
        older = await older_until(self._cluster, connection, times, self._deadline, self._by)
        for partition, until in older.items():
            if isinstance(until, KafkaError):
                self._failed([partition], until, harmless=True)
            else:
                offsets[partition] = until
        return offsets

    async def _still_the_same(
        self, connection: BrokerConnection, offsets: dict[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Return `offsets` without topics that have another id by now; those are refused."""
        names = sorted({p.topic for p in offsets} & self._topic_ids.keys())
        if not names:
            return offsets
        there = await self._cluster.topics(names, at=connection)
        ids = {name: there[name].topic_id if name in there else None for name in names}
        gone = {name for name, topic_id in ids.items() if topic_id != self._topic_ids[name]}
        for partition in [p for p in offsets if p.topic in gone]:
            del offsets[partition]
            topic_id = format_topic_id(self._topic_ids[partition.topic])
            error = refusal(
                ErrorCode.UNKNOWN_TOPIC_ID, f"the topic with id {topic_id} is gone", str(partition)
            )
            self._failed([partition], error, harmless=False)
        return offsets

    def _left(self) -> float:
        return max(self._deadline - asyncio.get_running_loop().time(), 0.0)

    def _failed(
        self, partitions: Sequence[TopicPartition] | Mapping[TopicPartition, int],
        error: KafkaError | ConnectionLost, *, harmless: bool,
    ) -> None:  # fmt: skip
        """Retry if that may help and, `harmless`, cannot delete more than was requested."""
        for partition in partitions:
            self._cluster.forget(partition.topic)
            if harmless and may_try_again(error):
                self._errors[partition] = error
            else:
                self._settle(partition, DeleteRecordsResult(NO_LOW_WATERMARK, as_kafka(error)))

    def _settle(self, partition: TopicPartition, result: DeleteRecordsResult) -> None:
        del self.missing[partition]
        self.results[partition] = result

    def give_up(self, partition: TopicPartition) -> None:
        """KIP-107: not answered within the request's timeout."""
        last = self._errors.get(partition)
        why = f"; the last attempt: {last}" if last is not None else ""
        error = refusal(
            ErrorCode.REQUEST_TIMED_OUT, f"no answer within the request timeout{why}",
            str(partition),
        )  # fmt: skip
        self.results[partition] = DeleteRecordsResult(NO_LOW_WATERMARK, error)
