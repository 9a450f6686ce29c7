"""What a deletion (KIP-107) would remove, and which groups have not read all of it.

`judge` turns offsets and times into the offset below which records would be deleted, and reads the
committed offsets of every group: a group that has committed less has not read all those records. A
caller that deletes afterwards uses that offset. `extent` reads the records that would be deleted,
so its numbers are exact and it takes as long as reading them.

This module only reads; any broker that knows KIP-447 will do. Only ListOffsets v0 shows the number
of segments; Kafka had it until 4.0, and Lapse has it.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from lapse.base.errors import ErrorCode, KafkaError
from lapse.base.ids import TopicPartition
from lapse.client.age import older_until
from lapse.client.cluster import Cluster
from lapse.client.connection import BrokerConnection
from lapse.client.deletion import HIGH_WATERMARK, Before
from lapse.client.groups import GroupOffsets, group_ids, group_offsets
from lapse.client.offsets import CONSUMER, EARLIEST, LATEST, By, list_offsets
from lapse.client.range_reader import OffsetRange, read_range
from lapse.client.settings import refusal
from lapse.records.batch import decode_rows
from lapse.records.layout import NO_TIMESTAMP, TimestampType, timestamp_type_of
from lapse.wire.schema.list_offsets import (
    LATEST_TIMESTAMP,
    LIST_OFFSETS,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

SEGMENTS_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class Judged:
    """One partition, as of the time of the request.

    Attributes:
        until: the first offset that would stay.
        start, end: log start offset and high watermark.
        standing: groups that have committed less than `until`, by id; an error where a group's
            committed offset cannot be determined.
        error: why the partition cannot be judged; the other fields then mean nothing.
    """

    until: int = -1
    start: int = -1
    end: int = -1
    standing: Mapping[str, int | KafkaError] | None = None
    error: KafkaError | None = None

    @property
    def goes(self) -> bool:
        """Whether any offset would be deleted."""
        return self.error is None and self.until > self.start


@dataclass(frozen=True, slots=True)
class Extent:
    """What would be deleted.

    Attributes:
        records: number of producers' records; transaction markers do not count.
        size: bytes of the batches that would go whole; of a batch that is cut, its share.
        segments: number of segments that would go whole; None where the broker does not show it.
        first_ms, last_ms: the least and the greatest of the records' times; -1 without any.
    """

    records: int = 0
    size: int = 0
    segments: int | None = None
    first_ms: int = NO_TIMESTAMP
    last_ms: int = NO_TIMESTAMP


async def judge(
    cluster: Cluster, before: Mapping[TopicPartition, Before], timeout_ms: int, by: By = By.AGE
) -> tuple[dict[TopicPartition, Judged], dict[str, uuid.UUID]]:
    """Return each partition's judgement, and the ids of the judged topics.

    `by` selects which of a record's times is meant. Groups' offsets are read last, so that what
    they commit meanwhile counts. Raises ConnectionLost where no broker can be reached, and
    KafkaError where a broker does not list its groups.
    """
    topics = await cluster.topics({partition.topic for partition in before})
    deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
    judged: dict[TopicPartition, Judged] = {}
    by_leader: dict[int, list[TopicPartition]] = {}
    for partition in before:
        try:
            by_leader.setdefault(await cluster.leader(partition), []).append(partition)
        except KafkaError as e:
            judged[partition] = Judged(error=e)
    for leader, partitions in by_leader.items():
        connection = await cluster.connection(leader)
        wanted = {partition: before[partition] for partition in partitions}
        try:
            judged |= await _bounds(cluster, connection, wanted, deadline, by)
        except KafkaError as e:
            judged |= dict.fromkeys(wanted, Judged(error=e))
    groups = await group_offsets(cluster, await group_ids(cluster), timeout_ms)
    result = {partition: _with_groups(partition, one, groups) for partition, one in judged.items()}
    ids = {name: topic.topic_id for name, topic in topics.items() if topic.topic_id.int}
    return {partition: result[partition] for partition in before}, ids


async def _bounds(
    cluster: Cluster,
    connection: BrokerConnection,
    before: Mapping[TopicPartition, Before],
    deadline: float,
    by: By,
) -> dict[TopicPartition, Judged]:
    """Judge partitions that one broker leads, without the groups."""
    times = {p: b for p, b in before.items() if isinstance(b, datetime)}
    starts = await list_offsets(connection, dict.fromkeys(before, EARLIEST))
    older = await older_until(cluster, connection, times, deadline, by) if times else {}
    ends = await list_offsets(connection, dict.fromkeys(before, LATEST))
    judged = {}
    for partition, wanted in before.items():
        until = wanted if isinstance(wanted, int) else older[partition]
        judged[partition] = _judged(partition, starts[partition], ends[partition], until)
    return judged


def _judged(
    partition: TopicPartition, start: int | KafkaError, end: int | KafkaError,
    until: int | KafkaError,
) -> Judged:  # fmt: skip
    """D-5: -1 is the high watermark; beyond that, and below -1, is no offset."""
    if isinstance(start, KafkaError):
        return Judged(error=start)
    if isinstance(end, KafkaError):
        return Judged(error=end)
    if isinstance(until, KafkaError):
        return Judged(error=until)
    if until == HIGH_WATERMARK:
        until = end
    if not 0 <= until <= end:
        said = f"offset {until} is not in [0, {end}], which ends at the high watermark"
        return Judged(error=refusal(ErrorCode.OFFSET_OUT_OF_RANGE, said, str(partition)))
    return Judged(until, start, end)


def _with_groups(
    partition: TopicPartition, one: Judged, groups: Mapping[str, GroupOffsets]
) -> Judged:
    if not one.goes:
        return one
    standing: dict[str, int | KafkaError] = {}
    for group_id, group in sorted(groups.items()):
        at = group.error or group.offsets.get(partition)
        if at is not None and (isinstance(at, KafkaError) or at < one.until):
            standing[group_id] = at
    return Judged(one.until, one.start, one.end, standing)


# --- what would go --------------------------------------------------------------------------------


async def extent(cluster: Cluster, partition: TopicPartition, judged: Judged) -> Extent:
    """Read the records that would go; raises KafkaError, ConnectionLost, CorruptData."""
    if not judged.goes:
        return Extent(segments=0)
    count, size, first_ms, last_ms = 0, 0, NO_TIMESTAMP, NO_TIMESTAMP
    wanted = OffsetRange(partition, judged.start, judged.until)
    async for some in read_range(cluster, wanted, committed=False):
        for row in some.rows[some.counts]:
            records, share, times = _below(some.data, row, judged, str(partition))
            count += records
            if row["last_offset"] >= judged.until:
                size += int(row["size"] * share)
            if len(times):
                first_ms = min(int(times.min()), first_ms) if first_ms >= 0 else int(times.min())
                last_ms = max(last_ms, int(times.max()))
        whole = some.rows["last_offset"] < judged.until
        size += int(some.rows["size"][whole].sum())
    segments = await _segments(cluster, partition, judged)
    return Extent(count, size, segments, first_ms, last_ms)


def _below(
    data: bytes | memoryview, row: np.void, judged: Judged, where: str
) -> tuple[int, float, np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """Return how many records of a batch would go, their share of it, and the times they have."""
    _, records = decode_rows(data, row, where)
    offsets = records["offset_delta"] + row["base_offset"]
    gone = records[(offsets >= judged.start) & (offsets < judged.until)]
    times = gone["timestamp_delta"] + row["base_timestamp"]
    if timestamp_type_of(row) is TimestampType.LOG_APPEND_TIME:
        times = np.full(len(gone), row["max_timestamp"])
    return len(gone), len(gone) / max(len(records), 1), times[times > NO_TIMESTAMP]


async def _segments(cluster: Cluster, partition: TopicPartition, judged: Judged) -> int | None:
    """Return how many segments would go whole; ListOffsets v0 has the segments' base offsets."""
    wanted = ListOffsetsPartition(
        partition_index=partition.partition, timestamp=LATEST_TIMESTAMP,
        max_num_offsets=SEGMENTS_MAX,
    )  # fmt: skip
    request = ListOffsetsRequest(
        replica_id=CONSUMER, topics=(ListOffsetsTopic(name=partition.topic, partitions=(wanted,)),)
    )
    connection = await cluster.leader_connection(partition)
    if not connection.speaks(LIST_OFFSETS, 0):
        return None
    answer = await connection.request(request, ListOffsetsResponse, version=0)
    (found,) = answer.topics[0].partitions
    if found.error_code:
        return None
    ends = sorted(set(found.old_style_offsets))[1:]  # next segment's base offset; last: log end
    return sum(end <= judged.until for end in ends)


# --- in words -------------------------------------------------------------------------------------


def objections(judged: Judged) -> Sequence[str]:
    """Return a sentence for each group that has not read all records that would go."""
    return [
        f"group {name}: {at}"
        if isinstance(at, KafkaError)
        else f"group {name} stands at {at}, below {judged.until}"
        for name, at in (judged.standing or {}).items()
    ]
