"""Metadata: requests of some versions only; `test_dispatch` and `test_topics` have more."""

from __future__ import annotations

import pytest

from lapse.base.errors import ErrorCode
from lapse.broker.node import Node
from lapse.client.connection import BrokerConnection
from lapse.wire.schema.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tests.support.broker.running import create


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
