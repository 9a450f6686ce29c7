"""Reads all batches in a range of offsets of one partition, and ends after the last one.

For callers that have planned what to read (the data source, copies): a consumer waits for new
records, this reader ends. The range ends at or below an end that the broker has reported, so a
response without a record means that the rest of the range is empty: compaction or the end of a
transaction removed the records.

The next request is under way while the caller handles the batches of the last response.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from lapse.base.backoff import backoff_ms
from lapse.base.errors import CorruptData, ErrorCode, KafkaError, LapseError
from lapse.base.ids import TopicPartition, format_topic_id
from lapse.client.cluster import RETRIABLE, Cluster, Topic
from lapse.client.connection import ConnectionLost
from lapse.client.fetched import Fetched, answered
from lapse.client.settings import refusal
from lapse.wire.schema.fetch import (
    FETCH,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets of a partition, `offset_until` excluded.

    Attributes:
        topic_id: of the topic that is meant; None: of whatever has its name, or of a broker that
            reports no ids.
    """

    partition: TopicPartition
    offset_from: int
    offset_until: int
    topic_id: uuid.UUID | None = None


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """How many bytes one Fetch requests, and how long a broker that does not answer is retried."""

    partition_bytes_max: int = 8 << 20
    api_timeout_ms: int = 60_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1000


DEFAULTS = FetchLimits()


async def read_range(
    cluster: Cluster, wanted: OffsetRange, *, committed: bool, limits: FetchLimits = DEFAULTS
) -> AsyncGenerator[Fetched]:
    """Whole batches in order; the first may begin below the range, the last may reach beyond it.

    With `committed`, `Fetched.counts` leaves aborted transactions out.

    Raises:
        KafkaError: OFFSET_OUT_OF_RANGE where `offset_from` is deleted, UNKNOWN_TOPIC_ID where the
            topic has another id for `api_timeout_ms`, or another refusal.
        ConnectionLost: no broker answers for `api_timeout_ms`.
        CorruptData: a batch does not parse, or is not one that was requested.
    """
    reader = _Reader(cluster, wanted, committed, limits)
    offset = wanted.offset_from
    fetching = asyncio.create_task(reader.ask(offset)) if offset < wanted.offset_until else None
    try:
        while fetching is not None:
            one = await fetching
            fetching = None
            if one is None:
                return
            if one.next_offset <= offset:  # stopping here would leave records out
                what = f"what was fetched at offset {offset} ends before it"
                raise CorruptData(str(wanted.partition), 0, what)
            offset = one.next_offset
            if offset < wanted.offset_until:
                fetching = asyncio.create_task(reader.ask(offset))
            yield one
    finally:
        if fetching is not None:
            fetching.cancel()
            # Nobody wants it: who has enough, or another error, is not told what became of it.
            with contextlib.suppress(asyncio.CancelledError, LapseError):
                await fetching


@dataclass(frozen=True, slots=True)
class _Reader:
    cluster: Cluster
    wanted: OffsetRange
    committed: bool
    limits: FetchLimits

    @property
    def partition(self) -> TopicPartition:
        return self.wanted.partition

    async def ask(self, offset: int) -> Fetched | None:
        """Fetch from an offset on, with retries until the timeout; None: no records are left."""
        limits, failures = self.limits, 0
        last: KafkaError | ConnectionLost | None = None
        try:
            async with asyncio.timeout(limits.api_timeout_ms / 1000):
                while True:
                    try:
                        return await self._ask_once(offset)
                    except ConnectionLost as e:
                        last = e
                    except KafkaError as e:
                        if e.code not in RETRIABLE:
                            raise
                        last = e
                    self.cluster.forget(self.partition.topic)
                    failures += 1
                    wait_ms = backoff_ms(
                        failures, limits.retry_backoff_ms, limits.retry_backoff_max_ms
                    )
                    await asyncio.sleep(wait_ms / 1000)
        except TimeoutError as e:
            raise last or ConnectionLost(f"{self.partition}: no answer in time") from e

    async def _ask_once(self, offset: int) -> Fetched | None:
        connection = await self.cluster.leader_connection(self.partition)
        topic = await self.cluster.topic(self.partition.topic)
        self._require_same(topic)
        version = connection.version_naming(FETCH, [topic.topic_id])
        size = self.limits.partition_bytes_max
        fetch_partition = FetchPartition(
            partition=self.partition.partition, fetch_offset=offset, partition_max_bytes=size
        )
        fetch_topic = FetchTopic(
            topic=topic.name, topic_id=topic.topic_id, partitions=(fetch_partition,)
        )
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=size,
            isolation_level=int(self.committed),
            topics=(fetch_topic,),
            tombstone_values=True,
        )
        try:
            answer = await connection.request(request, FetchResponse, version=version)
        except ConnectionLost:
            self.cluster.failed(connection, topic.name)
            raise
        if answer.error_code:
            raise refusal(answer.error_code, None, f"Fetch from {connection.address}")
        if not answer.responses:  # a client over its quota gets no partitions, and has to wait
            await asyncio.sleep(answer.throttle_time_ms / 1000)
            raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE, f"{self.partition}: throttled")
        for topic_data in answer.responses:
            for data in topic_data.partitions:
                return self._judged(offset, data)
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{self.partition}: left out of Fetch")

    def _require_same(self, topic: Topic) -> None:
        """Names are given anew, and offsets of another topic say nothing. Raises KafkaError.

        Metadata may be old, so it is asked again.
        """
        wanted = self.wanted.topic_id
        if wanted is not None and topic.topic_id.int and topic.topic_id != wanted:
            ids = f"{format_topic_id(topic.topic_id)}, not {format_topic_id(wanted)}"
            what = f"{topic.name} has another id by now: {ids}"
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, what)

    def _judged(self, offset: int, data: PartitionData) -> Fetched | None:
        if data.error_code:
            raise refusal(data.error_code, None, f"{self.partition} at offset {offset}")
        if not data.records:
            end = data.last_stable_offset if self.committed else data.high_watermark
            if end < self.wanted.offset_until:  # of a new leader, until its followers have fetched
                raise KafkaError(
                    ErrorCode.OFFSET_NOT_AVAILABLE, f"{self.partition} ends at {end} for now"
                )
            return None
        return answered(self.partition, offset, data, committed=self.committed)
