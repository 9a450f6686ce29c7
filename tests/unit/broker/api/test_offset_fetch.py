"""OffsetFetch: what was asked for comes back as it was asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lapse.broker.api.offset_fetch import handle
from lapse.broker.node import Node
from lapse.broker.request.context import Session
from lapse.client.connection import BrokerConnection
from lapse.security.acls import Operation, ResourceType
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
from tests.support.broker.running import create, running_node
from tests.support.broker.secured import WITH_ACLS, allow, logged_in, set_acls

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


async def test_what_a_group_has_is_made_once_however_often_it_is_named(
    node: Node, connection: BrokerConnection
) -> None:
    """Null topics are a byte. Members are no other groups: a classic one does not ask for them."""
    await create(node, "a")
    await commit(connection, "a", 7)
    groups = tuple(
        OffsetFetchRequestGroup(group_id="g", member_id=member, topics=None)
        for member in ("", "b", "c", "c")
    )
    session = Session("127.0.0.1:5", "127.0.0.1", node.services.entrances[0])
    request = OffsetFetchRequest(groups=groups)
    answer = await handle(node.services, session, SEVERAL_FROM + 1, request)
    found = [group.topics for group in answer.groups]
    assert [topics[0].partitions[0].committed_offset for topics in found] == [7, 7, 7, 7]
    assert len(set(map(id, found))) == 1


async def test_each_time_that_a_group_is_named_has_its_own_refusals(tmp_path: Path) -> None:
    async with running_node(tmp_path, WITH_ACLS) as node:
        await set_acls(node, [allow(Operation.DESCRIBE, ResourceType.GROUP, "g")])
        groups = tuple(
            OffsetFetchRequestGroup(
                group_id="g",
                topics=(OffsetFetchRequestTopics(name=name, partition_indexes=(0,)),),
            )
            for name in "ab"
        )
        async with await logged_in(node, "alice") as alice:
            request = OffsetFetchRequest(groups=groups)
            answer = await alice.request(request, OffsetFetchResponse, version=SEVERAL_FROM)
    assert [[topic.name for topic in group.topics] for group in answer.groups] == [["a"], ["b"]]


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
