"""OffsetDelete: only of what exists."""

from __future__ import annotations

from pathlib import Path

from lapse.base.errors import ErrorCode
from lapse.wire.schema.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from tests.support.broker.running import connect, create, running_node
from tests.unit.broker.api.test_offset_fetch import commit, fetch


async def test_what_does_not_exist_is_not_said_to_be_deleted(tmp_path: Path) -> None:
    async with running_node(tmp_path / "data") as node, await connect(node) as connection:
        await create(node, "t")
        await commit(connection, "t", 5)
        partitions = tuple(OffsetDeleteRequestPartition(partition_index=n) for n in (0, 9, -1))
        request = OffsetDeleteRequest(
            group_id="g",
            topics=tuple(
                OffsetDeleteRequestTopic(name=name, partitions=partitions) for name in ("x", "t")
            ),
        )
        answer = await connection.request(request, OffsetDeleteResponse)
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert answer.error_code == ErrorCode.NONE
        assert [
            (topic.name, [(p.partition_index, p.error_code) for p in topic.partitions])
            for topic in answer.topics
        ] == [
            ("x", [(0, unknown), (9, unknown), (-1, unknown)]),
            ("t", [(0, ErrorCode.NONE), (9, unknown), (-1, unknown)]),
        ]
        assert await fetch(connection, 8, None) == []
