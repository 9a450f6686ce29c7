"""ListOffsets (key 2): the offset for a timestamp, or for one of the special timestamps.

Needs DESCRIBE topic; a follower CLUSTER_ACTION cluster instead.

Behaviour (T-17 … T-19, and L8): -1 latest, which is the end of what the isolation level
shows; -2 log start; a timestamp: the first record at or after it, in any segment and never below
the log start; where there is none, offset -1 and timestamp -1. A partition named twice is
INVALID_REQUEST; another leader epoch is FENCED_LEADER_EPOCH or UNKNOWN_LEADER_EPOCH. A leader that
was just elected answers OFFSET_NOT_AVAILABLE (before v5 LEADER_NOT_AVAILABLE) until it knows that
all is committed that was there when its epoch began; the log start it tells (KIP-207).

v0 offsets where segments begin, up to `max_num_offsets`, descending: -1 from the end of the log on,
-2 the log start, a timestamp those of the segments without later appends (as Kafka did before 4.0;
clients from before 0.10.1 know nothing else). Any other negative number is before all times, and a
partition may be named twice · v1-6 -1, -2 and timestamps · v7 -3, the record with the greatest
timestamp · v8 -4, the local start (the log start: nothing is tiered) · v9 -5, the last tiered
offset (none). In an older version, and for any other negative number: UNSUPPORTED_VERSION.

Lapse's own field `by` (v6) says what a timestamp is compared with. BY_AGE: the first record that
may not be older; a record without a timestamp is as old as its append. BY_APPEND: the first offset
that may not have been appended before. Where every record is older, the end; every record below
the returned offset is older for certain, so a client may delete it. The response has the same `by`;
a `by` that the broker does not know is INVALID_REQUEST.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lapse.base.errors import ErrorCode, KafkaError
from lapse.base.ids import TopicPartition
from lapse.broker.logs.faults import code_of
from lapse.broker.logs.leader_epochs import check_leader_epoch
from lapse.broker.logs.led import Led
from lapse.broker.logs.partitions import Partitions
from lapse.broker.request.authorize import Caller, Handle, Items, each, of_topic, uncommitted
from lapse.broker.request.context import Services, Session
from lapse.broker.request.endpoint import Endpoint
from lapse.broker.request.repeated import named_twice
from lapse.log.lookup import FoundRecord
from lapse.log.partition_log import PartitionLog
from lapse.log.state import LogState
from lapse.security.acls import Operation
from lapse.wire.schema.list_offsets import (
    BY_AGE,
    BY_APPEND,
    BY_TIMESTAMP,
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    LATEST_TIMESTAMP,
    LIST_OFFSETS,
    MAX_TIMESTAMP,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

READ_COMMITTED = 1
NONE = -1
_EPOCHS_FROM = 4
_NOT_AVAILABLE_FROM = 5
_ONE_OFFSET_FROM = 1
_TIME_GREATEST_MS = (1 << 63) - 1

# The version from which a request may use each special timestamp.
_SINCE = {
    LATEST_TIMESTAMP: 1,
    EARLIEST_TIMESTAMP: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL_TIMESTAMP: 8,
    LATEST_TIERED_TIMESTAMP: 9,
}

_LOOKUPS: Mapping[int, Callable[[LogState, int], FoundRecord | None]] = {
    BY_TIMESTAMP: LogState.offset_for_time,
    BY_AGE: LogState.first_not_older,
    BY_APPEND: LogState.first_appended,
}


@dataclass(frozen=True, slots=True)
class FoundOffset:
    """A found offset and its record's timestamp (-1 for special timestamps).

    Attributes:
        leader_epoch: the record's epoch, the current one for the end; -1 in old formats.
    """

    offset: int = NONE
    timestamp: int = NONE
    leader_epoch: int = NONE


_EARLIEST = frozenset({EARLIEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP})


async def handle(
    services: Services, _session: Session, version: int, request: ListOffsetsRequest
) -> ListOffsetsResponse:
    """Look up each partition; a search reads files, so it runs in a worker thread."""
    if version < _ONE_OFFSET_FROM:
        return _look_up_old_style(services.partitions, request, services.clock.now_ms())
    return await services.disk.run(_look_up_all, services.partitions, version, request)


def _look_up_all(
    partitions: Partitions, version: int, request: ListOffsetsRequest
) -> ListOffsetsResponse:
    times = Counter((t.name, p.partition_index) for t in request.topics for p in t.partitions)
    committed = request.isolation_level == READ_COMMITTED
    return ListOffsetsResponse(
        by=request.by,
        topics=tuple(
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=tuple(
                    _result(
                        partitions,
                        version,
                        TopicPartition(topic.name, requested.partition_index),
                        requested,
                        by=request.by,
                        repeated=times[topic.name, requested.partition_index] > 1,
                        committed=committed,
                    )
                    for requested in topic.partitions
                ),
            )
            for topic in request.topics
        ),
    )


def _result(
    partitions: Partitions,
    version: int,
    where: TopicPartition,
    requested: ListOffsetsPartition,
    *,
    by: int,
    repeated: bool,
    committed: bool,
) -> ListOffsetsPartitionResponse:
    try:
        if repeated:
            raise named_twice(str(where))
        if by not in _LOOKUPS:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"lookup by {by} is unknown")
        if requested.timestamp < 0 and version < _SINCE.get(requested.timestamp, version + 1):
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION, f"timestamp {requested.timestamp} in v{version}"
            )
        led = partitions.led(where)
        check_leader_epoch(requested.current_leader_epoch, led)
        known_to = led.log.high_watermark  # before the look, which may know more
        found = find(led.log, requested.timestamp, committed=committed, by=by)
        if requested.timestamp not in _EARLIEST and found.timestamp < 0:
            _require_caught_up(led, known_to, version)
        error = ErrorCode.NONE
    except Exception as e:  # noqa: BLE001  (it is logged there)
        found, error = FoundOffset(), code_of(partitions, where, "ListOffsets", e)
    return ListOffsetsPartitionResponse(
        partition_index=where.partition,
        error_code=error,
        timestamp=found.timestamp,
        offset=found.offset,
        leader_epoch=found.leader_epoch if version >= _EPOCHS_FROM else NONE,
    )


def _require_caught_up(led: Led, high_watermark: int, version: int) -> None:
    """A new leader may not know yet all that consumers have seen (KIP-207).

    What it has found below is there all the same.
    """
    if high_watermark < led.begins_at:
        known = version >= _NOT_AVAILABLE_FROM
        raise KafkaError(
            ErrorCode.OFFSET_NOT_AVAILABLE if known else ErrorCode.LEADER_NOT_AVAILABLE,
            f"{led.log.partition}: the high watermark is known up to {high_watermark} only, "
            f"epoch {led.epoch} begins at {led.begins_at}",
        )


def _look_up_old_style(
    partitions: Partitions, request: ListOffsetsRequest, now_ms: int
) -> ListOffsetsResponse:
    """Look up for v0, which reads no file."""
    return ListOffsetsResponse(
        topics=tuple(
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=tuple(
                    _result_old_style(
                        partitions,
                        TopicPartition(topic.name, requested.partition_index),
                        requested,
                        now_ms,
                    )
                    for requested in topic.partitions
                ),
            )
            for topic in request.topics
        ),
    )


def _result_old_style(
    partitions: Partitions, where: TopicPartition, requested: ListOffsetsPartition, now_ms: int
) -> ListOffsetsPartitionResponse:
    try:
        found, error = find_old_style(partitions.led(where).log, requested, now_ms), ErrorCode.NONE
    except Exception as e:  # noqa: BLE001  (it is logged there)
        found, error = (), code_of(partitions, where, "ListOffsets", e)
    return ListOffsetsPartitionResponse(
        partition_index=where.partition, error_code=error, old_style_offsets=found
    )


def find_old_style(
    log: PartitionLog, requested: ListOffsetsPartition, now_ms: int
) -> tuple[int, ...]:
    """The offsets in one log for a timestamp, as before KIP-79."""
    if requested.max_num_offsets < 0:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"{log.partition}: {requested.max_num_offsets} offsets"
        )
    if requested.timestamp == EARLIEST_TIMESTAMP:
        return (log.log_start_offset,)[: requested.max_num_offsets]
    by_ms = _TIME_GREATEST_MS if requested.timestamp == LATEST_TIMESTAMP else requested.timestamp
    return log.state.offsets_before(by_ms, requested.max_num_offsets, now_ms)


def find(
    log: PartitionLog, timestamp: int, *, committed: bool, by: int = BY_TIMESTAMP
) -> FoundOffset:
    """The offset in one log for a timestamp or special timestamp."""
    state = log.state
    end = state.last_stable_offset if committed else state.high_watermark
    if timestamp == LATEST_TIMESTAMP:
        return FoundOffset(end, leader_epoch=log.leader_epoch)
    if timestamp in _EARLIEST:
        start = state.log_start_offset
        return FoundOffset(start, leader_epoch=log.epoch_at(start))
    if timestamp == LATEST_TIERED_TIMESTAMP:
        return FoundOffset()
    greatest = timestamp == MAX_TIMESTAMP
    hit = state.greatest_timestamp() if greatest else _LOOKUPS[by](state, timestamp)
    if hit is None or hit.offset >= end:
        return FoundOffset() if by == BY_TIMESTAMP or greatest else FoundOffset(end)
    return FoundOffset(hit.offset, hit.timestamp, log.epoch_at(hit.offset))


# --- authorization --------------------------------------------------------------------------------


async def _authorize(
    caller: Caller, version: int, request: ListOffsetsRequest, handle: Handle
) -> Any:
    if request.replica_id >= 0 and caller.may_cluster(Operation.CLUSTER_ACTION):
        return await handle(request)
    return await _list_offsets(caller, version, request, handle)


_list_offsets = each(
    Items(
        "topics",
        "topics",
        of_topic(Operation.DESCRIBE),
        uncommitted(ListOffsetsTopicResponse, ListOffsetsPartitionResponse),
    )
)

API = Endpoint(LIST_OFFSETS, ListOffsetsRequest, ListOffsetsResponse, handle, _authorize)
