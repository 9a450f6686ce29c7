"""DeleteRecords (key 21): nothing below an offset is served any more (KIP-107, D-1 … D-16).

Needs DELETE topic.

Behaviour: each partition by itself. The answer comes when its log start is durable, which Kafka
does not wait for (L11); whole segments are gone then, what is dead in the one that holds the new
start leaves its file within `lapse.physical.delete.max.lag.ms`. The low watermark is the least log
start of all replicas that are alive or in sync, once each has reached the offset, durably. An
answer has no room for the names of the others: the broker's log has them. Offset -1 is the high
watermark; one at or below the log start succeeds and changes nothing.

An error comes with low watermark -1: UNSUPPORTED_VERSION while the feature level is before KIP-107
(`inter.broker.protocol.version`); UNKNOWN_TOPIC_OR_PARTITION; INVALID_TOPIC_EXCEPTION for an
internal topic; POLICY_VIOLATION for a topic that is compacted and not deleted from (neither is
fine); OFFSET_OUT_OF_RANGE above the high watermark or below -1; KAFKA_STORAGE_ERROR, and then the
deletion may or may not be in force after the next start; REQUEST_TIMED_OUT for a partition that is
not done after the request's timeout, whose deletion goes on all the same (KIP-107; Kafka 4.3 puts
in the log start as of then). A timeout below 100 ms counts as that: Kafka has no wait at all here.

v0-2 the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from lapse.base.errors import ErrorCode, KafkaError
from lapse.base.ids import TopicPartition
from lapse.broker.logs.faults import code_of
from lapse.broker.logs.partitions import Partitions
from lapse.broker.request.authorize import Items, each, of_topic, uncommitted
from lapse.broker.request.context import Services, Session
from lapse.broker.request.endpoint import Endpoint
from lapse.log.partition_log import PartitionLog
from lapse.metadata.image import INTERNAL_TOPICS, Image
from lapse.security.acls import Operation
from lapse.wire.schema.delete_records import (
    DELETE_RECORDS,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

NO_LOW_WATERMARK = -1
LEAST_WAIT_MS = 100
_THREADS_AT_ONCE = 2  # of the disk threads: produce and fetch need the others


@dataclass(frozen=True, slots=True)
class DeleteResult:
    """The outcome for one partition; an error has a low watermark of -1."""

    low_watermark: int = NO_LOW_WATERMARK
    error: ErrorCode = ErrorCode.NONE


_TIMED_OUT = DeleteResult(error=ErrorCode.REQUEST_TIMED_OUT)


async def handle(
    services: Services, _session: Session, _version: int, request: DeleteRecordsRequest
) -> DeleteRecordsResponse:
    """Delete, and wait until the deletions are durable or the timeout has passed."""
    deletions = [
        (TopicPartition(topic.name, partition.partition_index), partition.offset)
        for topic in request.topics
        for partition in topic.partitions
    ]
    outcomes = iter(await _delete_all(services, deletions, request.timeout_ms))
    return DeleteRecordsResponse(
        topics=tuple(
            DeleteRecordsTopicResult(
                name=topic.name,
                partitions=tuple(
                    _answer(partition.partition_index, next(outcomes))
                    for partition in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )


async def _delete_all(
    services: Services, deletions: Sequence[tuple[TopicPartition, int]], timeout_ms: int
) -> list[DeleteResult]:
    """One outcome for each, in order."""
    if not services.topics.settings.levels.has_deletions:
        return [DeleteResult(error=ErrorCode.UNSUPPORTED_VERSION) for _ in deletions]
    turns = asyncio.Semaphore(_THREADS_AT_ONCE)

    async def delete(where: TopicPartition, offset: int) -> DeleteResult:
        async with turns:
            outcome = await services.disk.run(
                delete_one, services.partitions, services.topics.image, where, offset
            )
        services.purgatory.changed(where)  # a fetch may wait below the new log start
        if outcome.error:
            return outcome
        try:
            low_watermark = await services.replicas.deleted(
                where, outcome.low_watermark, max(timeout_ms, LEAST_WAIT_MS) / 1000
            )
        except KafkaError as e:
            return DeleteResult(error=e.code)
        return replace(outcome, low_watermark=low_watermark)

    tasks = [asyncio.create_task(delete(where, offset)) for where, offset in deletions]
    if tasks:
        await asyncio.wait(tasks, timeout=max(timeout_ms, LEAST_WAIT_MS) / 1000)
    outcomes = [task.result() if task.done() else _TIMED_OUT for task in tasks]
    expired = sum(one.error is ErrorCode.REQUEST_TIMED_OUT for one in outcomes)
    services.counters.deletions_expired += expired
    return outcomes


def delete_one(
    partitions: Partitions, image: Image, where: TopicPartition, offset: int
) -> DeleteResult:
    """Delete in one partition, in a worker thread."""
    try:
        _check_deletable(image, where)
        log = partitions.led(where).log
        _check_policy(log)
        return DeleteResult(log.delete_records(offset))
    except Exception as e:  # noqa: BLE001  (`code_of` logs it)
        return DeleteResult(error=code_of(partitions, where, "DeleteRecords", e))


def _check_deletable(image: Image, where: TopicPartition) -> None:
    """Check that the partition exists and is not internal (D-1, D-2)."""
    topic = image.topics.get(where.topic)
    if topic is None or not 0 <= where.partition < topic.partitions:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {where}")
    if where.topic in INTERNAL_TOPICS:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{where.topic} is internal")


def _check_policy(log: PartitionLog) -> None:
    """Check that cleanup.policy allows deletion (D-4)."""
    if log.config.compacts and not log.config.deletes:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION, f"{log.partition}: its cleanup.policy is compact alone"
        )


def _answer(partition: int, outcome: DeleteResult) -> DeleteRecordsPartitionResult:
    return DeleteRecordsPartitionResult(
        partition_index=partition,
        low_watermark=outcome.low_watermark,
        error_code=outcome.error,
    )


API = Endpoint(
    DELETE_RECORDS,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    handle,
    each(
        Items(
            "topics",
            "topics",
            of_topic(Operation.DELETE),
            uncommitted(
                DeleteRecordsTopicResult,
                DeleteRecordsPartitionResult,
                low_watermark=NO_LOW_WATERMARK,
            ),
        )
    ),
)
