"""Metadata: what only some versions can ask. The rest is in `test_dispatch` and `test_topics`."""

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
    """The field for its id came with v10, what is done with it with v12; Java's name is empty."""
    await create(node, "t")
    topic_id = node.services.topics.image.topics["t"].topic_id
    asked = MetadataRequest(topics=(MetadataRequestTopic(topic_id=topic_id, name=name),))
    answer = await connection.request(asked, MetadataResponse, version=version)
    (only,) = answer.topics
    told = (only.error_code, only.name)
    assert told == ((0, "t") if version >= 12 else (ErrorCode.INVALID_REQUEST, ""))
