"""CreatePartitions (key 37): topics grow (KIP-195).

v1 throttled after the answer is sent (KIP-219) · v2 flexible · v3 THROTTLING_QUOTA_EXCEEDED
(KIP-599).
"""

from __future__ import annotations

from lapse.wire.declaration import (
    BOOL,
    INT16,
    INT32,
    STRING,
    api,
    array,
    field,
    request,
    response,
    struct,
)

CREATE_PARTITIONS = api(37, "CreatePartitions", versions="0-3", flexible="2+")


@struct
class CreatePartitionsAssignment:
    """Brokers chosen by hand for one new partition."""

    broker_ids: tuple[int, ...] = field(array(INT32))


@struct
class CreatePartitionsTopic:
    """`count` is of all partitions, old and new; assignments are of the new ones."""

    name: str = field(STRING)
    count: int = field(INT32)
    assignments: tuple[CreatePartitionsAssignment, ...] | None = field(
        array(CreatePartitionsAssignment), nullable="0+"
    )


@request(CREATE_PARTITIONS)
class CreatePartitionsRequest:
    """With `validate_only` nothing is created."""

    topics: tuple[CreatePartitionsTopic, ...] = field(array(CreatePartitionsTopic))
    timeout_ms: int = field(INT32)
    validate_only: bool = field(BOOL)


@struct
class CreatePartitionsTopicResult:
    """What became of one topic."""

    name: str = field(STRING)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)


@response(CREATE_PARTITIONS)
class CreatePartitionsResponse:
    """Answers per topic."""

    throttle_time_ms: int = field(INT32, default=0)
    results: tuple[CreatePartitionsTopicResult, ...] = field(array(CreatePartitionsTopicResult))
