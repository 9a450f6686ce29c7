"""Groups that have come so far, without members: offsets committed from outside, groups deleted."""

from __future__ import annotations

from collections.abc import Mapping

from lapse.base.ids import TopicPartition
from lapse.client.connection import BrokerConnection
from lapse.wire.schema.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from lapse.wire.schema.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from lapse.wire.schema.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)


async def commit(
    connection: BrokerConnection, group_id: str, offsets: Mapping[TopicPartition, int]
) -> None:
    """Commit these offsets; the group is made if need be."""
    await connection.request(  # the first one makes the topic that groups are kept in
        FindCoordinatorRequest(coordinator_keys=(group_id,)), FindCoordinatorResponse
    )
    topics = tuple(
        OffsetCommitRequestTopic(
            name=partition.topic,
            partitions=(
                OffsetCommitRequestPartition(
                    partition_index=partition.partition,
                    committed_offset=offset,
                    committed_metadata=None,
                ),
            ),
        )
        for partition, offset in offsets.items()
    )
    request = OffsetCommitRequest(group_id=group_id, member_id="", topics=topics)
    answer = await connection.request(request, OffsetCommitResponse)
    assert not [p for topic in answer.topics for p in topic.partitions if p.error_code]


async def delete_group(connection: BrokerConnection, group_id: str) -> None:
    """Delete a group, its offsets with it."""
    request = DeleteGroupsRequest(groups_names=(group_id,))
    (done,) = (await connection.request(request, DeleteGroupsResponse)).results
    assert not done.error_code
