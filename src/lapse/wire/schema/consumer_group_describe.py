"""ConsumerGroupDescribe (key 69): new groups with their members (KIP-848).

v0 flexible · v1 whether a member uses the classic calls (KIP-1099).
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
    api,
    array,
    field,
    nested,
    request,
    response,
    struct,
)
from lapse.wire.schema.metadata import OPERATIONS_UNKNOWN

CONSUMER_GROUP_DESCRIBE = api(69, "ConsumerGroupDescribe", versions="0-1", flexible="0+")


@request(CONSUMER_GROUP_DESCRIBE)
class ConsumerGroupDescribeRequest:
    """Asked of each group's coordinator."""

    group_ids: tuple[str, ...] = field(array(STRING))
    include_authorized_operations: bool = field(BOOL)


@struct
class TopicPartitions:
    """Partitions of one topic."""

    topic_id: uuid.UUID = field(UUID)
    topic_name: str = field(STRING)
    partitions: tuple[int, ...] = field(array(INT32))


@struct
class Assignment:
    """What a member has, or is to have."""

    topic_partitions: tuple[TopicPartitions, ...] = field(array(TopicPartitions))


@struct
class Member:
    """A member; `member_type` 0 uses the classic calls, 1 the new one, -1 is unknown."""

    member_id: str = field(STRING)
    instance_id: str | None = field(STRING, nullable="0+", default=None)
    rack_id: str | None = field(STRING, nullable="0+", default=None)
    member_epoch: int = field(INT32)
    client_id: str = field(STRING)
    client_host: str = field(STRING)
    subscribed_topic_names: tuple[str, ...] = field(array(STRING))
    subscribed_topic_regex: str | None = field(STRING, nullable="0+", default=None)
    assignment: Assignment = field(nested(Assignment))
    target_assignment: Assignment = field(nested(Assignment))
    member_type: int = field(INT8, "1+", default=-1, ignorable=True)


@struct
class DescribedGroup:
    """A group; `assignment_epoch` is behind `group_epoch` until a new target is made."""

    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+", default=None)
    group_id: str = field(STRING)
    group_state: str = field(STRING)
    group_epoch: int = field(INT32)
    assignment_epoch: int = field(INT32)
    assignor_name: str = field(STRING)
    members: tuple[Member, ...] = field(array(Member))
    authorized_operations: int = field(INT32, default=OPERATIONS_UNKNOWN)


@response(CONSUMER_GROUP_DESCRIBE)
class ConsumerGroupDescribeResponse:
    """Answers per group."""

    throttle_time_ms: int = field(INT32, default=0)
    groups: tuple[DescribedGroup, ...] = field(array(DescribedGroup))
