"""OffsetFetch: what was asked for comes back as it was asked for."""

from __future__ import annotations

from typing import Any

import pytest

from lapse.broker.node import Node
from lapse.client.connection import BrokerConnection
from lapse.wire.schema.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from lapse.wire.schema.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from tests.support.broker.running import create

SEVERAL_FROM = 8


async def commit(connection: BrokerConnection, topic: str, offset: int) -> None:
    partition = OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_metadata=""
    )
    request = OffsetCommitRequest(
        group_id="g", member_id="",
        topics=(OffsetCommitRequestTopic(name=topic, partitions=(partition,)),),
    )  # fmt: skip
    answer = await connection.request(request, OffsetCommitResponse)
    assert answer.topics[0].partitions[0].error_code == 0


async def fetch(
    connection: BrokerConnection, version: int, asked: list[tuple[str, tuple[int, ...]]] | None
) -> list[tuple[str, list[tuple[int, int]]]]:
    """Topics, each with partitions and their offsets."""
    request: Any
    if version < SEVERAL_FROM:
        old = None if asked is None else tuple(
            OffsetFetchRequestTopic(name=name, partition_indexes=numbers) for name, numbers in asked
        )  # fmt: skip
        request = OffsetFetchRequest(group_id="g", topics=old)
    else:
        new = None if asked is None else tuple(
            OffsetFetchRequestTopics(name=name, partition_indexes=numbers)
            for name, numbers in asked
        )  # fmt: skip
        group = OffsetFetchRequestGroup(
            group_id="g", topics=new, **({"member_epoch": -1} if version > SEVERAL_FROM else {})
        )
        request = OffsetFetchRequest(groups=(group,))
    answer = await connection.request(request, OffsetFetchResponse, version=version)
    (one,) = (answer,) if version < SEVERAL_FROM else answer.groups
    assert one.error_code == 0
    return [
        (topic.name, [(p.partition_index, p.committed_offset) for p in topic.partitions])
        for topic in one.topics
    ]


@pytest.mark.parametrize("version", range(1, 10))
async def test_in_the_order_of_the_request(
    node: Node, connection: BrokerConnection, version: int
) -> None:
    """As Kafka does it. kafkajs asks for no partition of a topic that it knows nothing of yet."""
    for name, offset in (("b", 5), ("a", 7)):
        await create(node, name, partitions=2)
        await commit(connection, name, offset)
    asked = [("b", (1, 0)), ("none", (3,)), ("empty", ()), ("a", (0,))]
    assert await fetch(connection, version, asked) == [
        ("b", [(1, -1), (0, 5)]), ("none", [(3, -1)]), ("empty", []), ("a", [(0, 7)]),
    ]  # fmt: skip
    assert await fetch(connection, version, []) == []
    if version > 1:
        assert await fetch(connection, version, None) == [("a", [(0, 7)]), ("b", [(0, 5)])]
