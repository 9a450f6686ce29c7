"""A request of each group API, in a version: the group is new, so members are unknown to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lapse.base.errors import ErrorCode
from lapse.wire.schema.consumer_group_describe import ConsumerGroupDescribeRequest
from lapse.wire.schema.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from lapse.wire.schema.delete_groups import DeleteGroupsRequest
from lapse.wire.schema.describe_groups import DescribeGroupsRequest
from lapse.wire.schema.heartbeat import HeartbeatRequest
from lapse.wire.schema.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from lapse.wire.schema.leave_group import LeaveGroupRequest, MemberIdentity
from lapse.wire.schema.list_groups import ListGroupsRequest
from lapse.wire.schema.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from lapse.wire.schema.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from lapse.wire.schema.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from lapse.wire.schema.sync_group import SyncGroupRequest


def group_requests(version: int) -> Mapping[int, Any]:
    """By API key; topic t has two partitions, and there is no topic x."""
    partitions = tuple(
        OffsetCommitRequestPartition(partition_index=n, committed_offset=5, committed_metadata="m")
        for n in (0, 9)
    )
    commits = tuple(OffsetCommitRequestTopic(name=n, partitions=partitions) for n in ("t", "x"))
    if version < 8:
        old = OffsetFetchRequestTopic(name="t", partition_indexes=(0, 9))
        fetch = OffsetFetchRequest(group_id="g", topics=(old,))
    else:
        new = OffsetFetchRequestTopics(name="t", partition_indexes=(0, 9))
        groups = (OffsetFetchRequestGroup(group_id="g", topics=(new,)),)
        fetch = OffsetFetchRequest(groups=groups)
    leaving = (MemberIdentity(member_id="m", group_instance_id=None),) if version > 2 else ()
    return {
        8: OffsetCommitRequest(group_id="g", member_id="", topics=commits),
        9: fetch,
        11: JoinGroupRequest(
            group_id="g",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            member_id="",
            protocol_type="consumer",
            protocols=(JoinGroupRequestProtocol(name="range", metadata=b"\0"),),
        ),
        12: HeartbeatRequest(group_id="g", generation_id=1, member_id="m"),
        13: LeaveGroupRequest(group_id="g", member_id="" if version > 2 else "m", members=leaving),
        14: SyncGroupRequest(group_id="g", generation_id=1, member_id="m", assignments=()),
        15: DescribeGroupsRequest(groups=("g",)),
        16: ListGroupsRequest(),
        42: DeleteGroupsRequest(groups_names=("g",)),
        47: OffsetDeleteRequest(
            group_id="g",
            topics=(
                OffsetDeleteRequestTopic(
                    name="t", partitions=(OffsetDeleteRequestPartition(partition_index=0),)
                ),
            ),
        ),
        68: ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id="m",
            member_epoch=0,
            rebalance_timeout_ms=10_000,
            subscribed_topic_names=("t",),
            topic_partitions=(),
        ),
        69: ConsumerGroupDescribeRequest(group_ids=("g",), include_authorized_operations=True),
    }


def expected_error(key: int, version: int) -> ErrorCode:
    """The error of the whole answer."""
    if key in {12, 14} or (key == 13 and version < 3):
        return ErrorCode.UNKNOWN_MEMBER_ID
    if key == 11 and version >= 4:
        return ErrorCode.MEMBER_ID_REQUIRED
    return ErrorCode.GROUP_ID_NOT_FOUND if key == 47 else ErrorCode.NONE
