"""DeleteRecords (key 21): the log start moves up, and what is before it goes (KIP-107).

v1 throttled after the answer is sent (KIP-219) · v2 flexible.
"""

from __future__ import annotations

from lapse.wire.declaration import (
    INT16,
    INT32,
    INT64,
    STRING,
    api,
    array,
    field,
    request,
    response,
    struct,
)

DELETE_RECORDS = api(21, "DeleteRecords", versions="0-2", flexible="2+")


@struct
class DeleteRecordsPartition:
    """The new log start; -1 means the high watermark."""

    partition_index: int = field(INT32)
    offset: int = field(INT64)


@struct
class DeleteRecordsTopic:
    """Log starts in one topic."""

    name: str = field(STRING)
    partitions: tuple[DeleteRecordsPartition, ...] = field(array(DeleteRecordsPartition))


@request(DELETE_RECORDS)
class DeleteRecordsRequest:
    """Answered once every replica has moved, or after `timeout_ms`."""

    topics: tuple[DeleteRecordsTopic, ...] = field(array(DeleteRecordsTopic))
    timeout_ms: int = field(INT32)


@struct
class DeleteRecordsPartitionResult:
    """The smallest log start of all live replicas, -1 with an error."""

    partition_index: int = field(INT32)
    low_watermark: int = field(INT64)
    error_code: int = field(INT16)


@struct
class DeleteRecordsTopicResult:
    """Answers for one topic."""

    name: str = field(STRING)
    partitions: tuple[DeleteRecordsPartitionResult, ...] = field(
        array(DeleteRecordsPartitionResult)
    )


@response(DELETE_RECORDS)
class DeleteRecordsResponse:
    """Answers per partition."""

    throttle_time_ms: int = field(INT32, default=0)
    topics: tuple[DeleteRecordsTopicResult, ...] = field(array(DeleteRecordsTopicResult))
