"""ConsumerGroupHeartbeat (key 68): the one call of a member of a new group (KIP-848).

v0 flexible · v1 subscription by regular expression; the member makes its own id (KIP-1082).
"""

from __future__ import annotations

import uuid

from lapse.wire.declaration import (
    INT16,
    INT32,
    STRING,
    UUID,
    api,
    array,
    field,
    nested,
    request,
    response,
    struct,
)

CONSUMER_GROUP_HEARTBEAT = api(68, "ConsumerGroupHeartbeat", versions="0-1", flexible="0+")


@struct
class TopicPartitions:
    """Partitions of one topic."""

    topic_id: uuid.UUID = field(UUID)
    partitions: tuple[int, ...] = field(array(INT32))


@request(CONSUMER_GROUP_HEARTBEAT)
class ConsumerGroupHeartbeatRequest:
    """Null, and -1 for the timeout, mean "as before".

    `member_epoch` 0 joins, -1 leaves, -2 is a static member that will be back.
    """

    group_id: str = field(STRING)
    member_id: str = field(STRING)
    member_epoch: int = field(INT32)
    instance_id: str | None = field(STRING, nullable="0+", default=None)
    rack_id: str | None = field(STRING, nullable="0+", default=None)
    rebalance_timeout_ms: int = field(INT32, default=-1)
    subscribed_topic_names: tuple[str, ...] | None = field(
        array(STRING), nullable="0+", default=None
    )
    subscribed_topic_regex: str | None = field(STRING, "1+", nullable="1+", default=None)
    server_assignor: str | None = field(STRING, nullable="0+", default=None)
    topic_partitions: tuple[TopicPartitions, ...] | None = field(
        array(TopicPartitions), nullable="0+", default=None
    )


@struct
class Assignment:
    """All that the member is to have."""

    topic_partitions: tuple[TopicPartitions, ...] = field(array(TopicPartitions))


@response(CONSUMER_GROUP_HEARTBEAT)
class ConsumerGroupHeartbeatResponse:
    """The member's epoch and its next heartbeat.

    `assignment` is null where it has not changed.
    """

    throttle_time_ms: int = field(INT32, default=0)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)
    member_id: str | None = field(STRING, nullable="0+", default=None)
    member_epoch: int = field(INT32)
    heartbeat_interval_ms: int = field(INT32)
    assignment: Assignment | None = field(nested(Assignment), nullable="0+", default=None)
