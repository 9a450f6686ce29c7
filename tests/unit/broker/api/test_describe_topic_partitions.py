"""DescribeTopicPartitions: all topics, page by page."""

from __future__ import annotations

from lapse.base.errors import ErrorCode
from lapse.broker.logs.topics import NewTopic
from lapse.broker.node import Node
from lapse.client.connection import BrokerConnection
from lapse.metadata.image import INTERNAL_TOPICS
from lapse.wire.schema.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    TopicRequest,
)
from lapse.wire.schema.metadata import MetadataRequest, MetadataResponse
from tests.support.broker.running import create

Told = list[tuple[str | None, int]]


async def ask(
    connection: BrokerConnection, *names: str, limit: int = 2000, cursor: Cursor | None = None
) -> DescribeTopicPartitionsResponse:
    request = DescribeTopicPartitionsRequest(
        topics=tuple(TopicRequest(name=name) for name in names),
        response_partition_limit=limit,
        cursor=cursor,
    )
    return await connection.request(request, DescribeTopicPartitionsResponse)


def told(answer: DescribeTopicPartitionsResponse) -> Told:
    return [(t.name, p.partition_index) for t in answer.topics for p in t.partitions]


def at(topic: str, partition: int) -> Cursor:
    return Cursor(topic_name=topic, partition_index=partition)


ALL: Told = [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("c", 0), ("c", 1)]


async def make(node: Node) -> None:
    for name, partitions in (("c", 2), ("a", 3), ("b", 1)):
        await create(node, name, partitions)


async def test_pages_of_any_size_are_the_whole(node: Node, connection: BrokerConnection) -> None:
    await make(node)
    for names in ((), ("b", "a", "c")):
        for limit in (1, 2, 3, 4, 6, 7, 0, -1):
            found: Told = []
            cursor = None
            while True:
                answer = await ask(connection, *names, limit=limit, cursor=cursor)
                page = told(answer)
                assert 1 <= len(page) <= max(limit, 1)
                found += page
                cursor = answer.next_cursor
                if cursor is None:
                    break
            assert found == ALL, (names, limit)


async def test_a_page_ends_between_topics_or_within_one(
    node: Node, connection: BrokerConnection
) -> None:
    await make(node)
    ends = {2: at("a", 2), 3: at("b", 0), 4: at("c", 0), 5: at("c", 1), 6: None}
    for limit, cursor in ends.items():
        assert (await ask(connection, limit=limit)).next_cursor == cursor
    assert told(await ask(connection, cursor=at("aa", 7))) == ALL[3:]
    assert told(await ask(connection, cursor=at("a", 9))) == ALL[3:]


async def test_one_topic_as_metadata_tells_it(node: Node, connection: BrokerConnection) -> None:
    await make(node)
    (topic,) = (await ask(connection, "b")).topics
    assert topic.topic_id == node.services.topics.image.topics["b"].topic_id
    (one,) = topic.partitions
    assert (one.error_code, one.leader_id, one.leader_epoch) == (0, 0, 0)
    assert (one.replica_nodes, one.isr_nodes, one.offline_replicas) == ((0,), (0,), ())


async def test_kafkas_own_topics_are_marked(node: Node, connection: BrokerConnection) -> None:
    """By Metadata too, so that consumers of a pattern pass them over."""
    await make(node)
    for name in INTERNAL_TOPICS - node.services.topics.image.topics.keys():
        await node.services.topics.create(NewTopic(name, 1, {}))
    page = await ask(connection)
    metadata = await connection.request(MetadataRequest(topics=None), MetadataResponse)
    for answer in (page, metadata):
        assert {t.name for t in answer.topics if t.is_internal} == INTERNAL_TOPICS


async def test_errors(node: Node, connection: BrokerConnection) -> None:
    await make(node)
    answer = await ask(connection, "a/b", "b", "x")
    assert {t.name: t.error_code for t in answer.topics} == {
        "a/b": ErrorCode.INVALID_TOPIC_EXCEPTION, "b": 0,
        "x": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }  # fmt: skip
    for names, cursor in ((("a",), at("b", 0)), (("a",), at("a", -1)), ((), at("a", -1))):
        answer = await ask(connection, *names, cursor=cursor)
        assert [(t.name, t.error_code) for t in answer.topics] == [("a", ErrorCode.INVALID_REQUEST)]
