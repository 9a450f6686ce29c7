"""Metadata: requests of some versions only; `test_dispatch` and `test_topics` have more."""

from __future__ import annotations

from pathlib import Path

import pytest

from lapse.base.errors import ErrorCode
from lapse.broker.node import Node
from lapse.client.connection import BrokerConnection
from lapse.wire.schema.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tests.support.broker.running import create, running_node
from tests.support.broker.secured import WITH_ACLS, logged_in


@pytest.mark.parametrize("name", [None, ""])
@pytest.mark.parametrize("version", [10, 11, 12, 13])
async def test_a_topic_without_a_name(
    node: Node, connection: BrokerConnection, version: int, name: str | None
) -> None:
    """The topic id field came with v10, the lookup by it with v12; Java sends an empty name."""
    await create(node, "t")
    topic_id = node.services.topics.image.topics["t"].topic_id
    request = MetadataRequest(topics=(MetadataRequestTopic(topic_id=topic_id, name=name),))
    response = await connection.request(request, MetadataResponse, version=version)
    (only,) = response.topics
    described = (only.error_code, only.name)
    assert described == ((0, "t") if version >= 12 else (ErrorCode.INVALID_REQUEST, ""))


async def test_a_topic_that_is_named_often_is_described_once(
    node: Node, connection: BrokerConnection
) -> None:
    """As in Kafka: 8,000 times one topic of a hundred partitions would take seconds, and 20 MB."""
    for name in ("b", "a"):
        await create(node, name)
    topic_id = node.services.topics.image.topics["a"].topic_id
    names = ("b", "none", "a", "b", "none", "a")
    topics = [MetadataRequestTopic(name=name) for name in names]
    request = MetadataRequest(topics=tuple(topics), allow_auto_topic_creation=False)
    for version in (4, 9, 12):
        response = await connection.request(request, MetadataResponse, version=version)
        assert [topic.name for topic in response.topics] == ["b", "none", "a"]
    by_id = [MetadataRequestTopic(topic_id=topic_id, name=name) for name in (None, "", None)]
    both = MetadataRequest(topics=(*by_id, *topics), allow_auto_topic_creation=False)
    response = await connection.request(both, MetadataResponse, version=12)
    assert [topic.name for topic in response.topics] == ["a", "b", "none", "a"]


async def test_a_topic_that_is_named_often_is_refused_once(tmp_path: Path) -> None:
    async with running_node(tmp_path, WITH_ACLS) as node, await logged_in(node, "alice") as alice:
        topics = (MetadataRequestTopic(name="t"), MetadataRequestTopic(name="t"))
        response = await alice.request(MetadataRequest(topics=topics), MetadataResponse, version=9)
    (only,) = response.topics
    assert only.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
