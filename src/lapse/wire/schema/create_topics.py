"""CreateTopics (key 19).

v2 the oldest still spoken · v3 throttled after the answer is sent (KIP-219) · v4 partition count
and replication factor -1 mean the broker's defaults (KIP-464) · v5 flexible; the answer lists the
new topic's settings (KIP-525) · v6 THROTTLING_QUOTA_EXCEEDED (KIP-599) · v7 topic id (KIP-516).
"""

from __future__ import annotations

import uuid

from lapse.wire.declaration import (
    BOOL,
    INT8,
    INT16,
    INT32,
    STRING,
    UUID,
    ZERO_UUID,
    api,
    array,
    field,
    request,
    response,
    struct,
)

CREATE_TOPICS = api(19, "CreateTopics", versions="2-7", flexible="5+")


@struct
class CreatableReplicaAssignment:
    """Brokers chosen by hand for one partition."""

    partition_index: int = field(INT32)
    broker_ids: tuple[int, ...] = field(array(INT32))


@struct
class CreatableTopicConfig:
    """One setting."""

    name: str = field(STRING)
    value: str | None = field(STRING, nullable="0+")


@struct
class CreatableTopic:
    """A topic wanted. With `assignments`, both counts are -1."""

    name: str = field(STRING)
    num_partitions: int = field(INT32)
    replication_factor: int = field(INT16)
    assignments: tuple[CreatableReplicaAssignment, ...] = field(array(CreatableReplicaAssignment))
    configs: tuple[CreatableTopicConfig, ...] = field(array(CreatableTopicConfig))


@request(CREATE_TOPICS)
class CreateTopicsRequest:
    """With `validate_only` nothing is created."""

    topics: tuple[CreatableTopic, ...] = field(array(CreatableTopic))
    timeout_ms: int = field(INT32, default=60_000)
    validate_only: bool = field(BOOL, "1+", default=False)


@struct
class CreatableTopicConfigs:
    """One effective setting of the new topic."""

    name: str = field(STRING, "5+")
    value: str | None = field(STRING, "5+", nullable="5+")
    read_only: bool = field(BOOL, "5+")
    config_source: int = field(INT8, "5+", default=-1, ignorable=True)
    is_sensitive: bool = field(BOOL, "5+")


@struct
class CreatableTopicResult:
    """What became of one topic.

    `configs` is null, and `topic_config_error_code` set, where they may not be described.
    """

    name: str = field(STRING)
    topic_id: uuid.UUID = field(UUID, "7+", default=ZERO_UUID, ignorable=True)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, "1+", nullable="0+", ignorable=True)
    topic_config_error_code: int = field(INT16, "5+", tag=0, default=0, ignorable=True)
    num_partitions: int = field(INT32, "5+", default=-1, ignorable=True)
    replication_factor: int = field(INT16, "5+", default=-1, ignorable=True)
    configs: tuple[CreatableTopicConfigs, ...] | None = field(
        array(CreatableTopicConfigs), "5+", nullable="5+", default=(), ignorable=True
    )


@response(CREATE_TOPICS)
class CreateTopicsResponse:
    """Answers per topic."""

    throttle_time_ms: int = field(INT32, "2+", default=0, ignorable=True)
    topics: tuple[CreatableTopicResult, ...] = field(array(CreatableTopicResult))
