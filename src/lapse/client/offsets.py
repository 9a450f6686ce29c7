"""Offsets of a partition's log: its ends, and the first at or after a time (ListOffsets).

`OffsetSpec` says where: `EARLIEST`, `LATEST`, or a time as an aware `datetime`. All partitions that
one leader has are looked up together. Used by `consumer`, `deletion` and `age`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from enum import IntEnum

from lapse.base.errors import ConfigError, KafkaError
from lapse.base.ids import TopicPartition
from lapse.client.connection import ANSWER_SECONDS_MAX, BrokerConnection
from lapse.client.settings import refusal
from lapse.wire.schema.list_offsets import (
    BY_AGE,
    BY_APPEND,
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    LIST_OFFSETS,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from lapse.wire.schema.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

CONSUMER = -1
NO_OFFSET = -1
_BY_FROM = 6
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class OffsetSpec(IntEnum):
    """A named place in a log."""

    EARLIEST = EARLIEST_TIMESTAMP
    LATEST = LATEST_TIMESTAMP


class By(IntEnum):
    """What makes a record older than a time."""

    AGE = BY_AGE
    APPEND = BY_APPEND


EARLIEST, LATEST = OffsetSpec.EARLIEST, OffsetSpec.LATEST
Where = OffsetSpec | datetime


def to_ms(moment: datetime) -> int:
    """Milliseconds since the epoch, rounded up: nothing at or after the moment is before it.

    Raises:
        ConfigError: it is naive (of no time zone), or before 1970.
    """
    if moment.tzinfo is None:
        raise ConfigError(f"time {moment.isoformat()}: allowed is one with a time zone")
    ms = -((_EPOCH - moment) // timedelta(milliseconds=1))
    if ms < 0:
        raise ConfigError(f"time {moment.isoformat()}: allowed is one from 1970 on")
    return ms


async def list_offsets(
    connection: BrokerConnection,
    wanted: Mapping[TopicPartition, Where],
    *,
    committed: bool = False,
    timeout_seconds: float = ANSWER_SECONDS_MAX,
) -> dict[TopicPartition, int | KafkaError]:
    """Ask one leader; -1 where no record is that late, an error where it refuses.

    With `committed` LATEST is the last stable offset, else the high watermark.
    """
    request = ListOffsetsRequest(
        replica_id=CONSUMER, isolation_level=int(committed), topics=tuple(_topics(wanted))
    )
    answer = await connection.request(request, ListOffsetsResponse, timeout_seconds=timeout_seconds)
    return _offsets(answer)


async def list_offsets_by(
    connection: BrokerConnection,
    by: By,
    wanted: Mapping[TopicPartition, datetime],
    timeout_seconds: float,
) -> dict[TopicPartition, int | KafkaError] | None:
    """Ask a leader of ours for times that are not Kafka's (`by`); None: it is not one of ours."""
    if connection.version_of(LIST_OFFSETS) < _BY_FROM:
        return None
    request = ListOffsetsRequest(replica_id=CONSUMER, topics=tuple(_topics(wanted)), by=by)
    answer = await connection.request(request, ListOffsetsResponse, timeout_seconds=timeout_seconds)
    return _offsets(answer) if answer.by == by else None


async def log_end(connection: BrokerConnection, partition: TopicPartition, epoch: int) -> int:
    """Where a leader's log ends, above the high watermark too; -1 where it knows no epochs.

    `epoch` is the leader's, by metadata. Raises KafkaError.
    """
    asked = OffsetForLeaderPartition(
        partition=partition.partition, current_leader_epoch=epoch, leader_epoch=epoch
    )
    request = OffsetForLeaderEpochRequest(
        replica_id=CONSUMER,
        topics=(OffsetForLeaderTopic(topic=partition.topic, partitions=(asked,)),),
    )
    answer = await connection.request(request, OffsetForLeaderEpochResponse)
    [topic] = answer.topics
    [found] = topic.partitions
    if found.error_code:
        raise refusal(found.error_code, None, str(partition))
    return found.end_offset


def _offsets(answer: ListOffsetsResponse) -> dict[TopicPartition, int | KafkaError]:
    found: dict[TopicPartition, int | KafkaError] = {}
    for topic in answer.topics:
        for one in topic.partitions:
            where = TopicPartition(topic.name, one.partition_index)
            found[where] = (
                refusal(one.error_code, None, str(where)) if one.error_code else one.offset
            )
    return found


def _topics(wanted: Mapping[TopicPartition, Where]) -> Iterable[ListOffsetsTopic]:
    by_topic: dict[str, list[ListOffsetsPartition]] = {}
    for partition, where in wanted.items():
        timestamp = to_ms(where) if isinstance(where, datetime) else int(where)
        by_topic.setdefault(partition.topic, []).append(
            ListOffsetsPartition(partition_index=partition.partition, timestamp=timestamp)
        )
    for name, partitions in by_topic.items():
        yield ListOffsetsTopic(name=name, partitions=tuple(partitions))
