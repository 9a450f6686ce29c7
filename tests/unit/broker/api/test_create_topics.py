"""CreateTopics with many topics, and without; `logs/test_topics` has what becomes of each."""

from __future__ import annotations

from pathlib import Path

import pytest

from lapse.base.errors import ErrorCode
from lapse.broker.api.create_topics import handle
from lapse.broker.node import Node
from lapse.broker.request.context import Session
from lapse.wire.schema.create_topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tests.support.broker.counted import Counted, counted
from tests.support.broker.running import connect, running_node


async def test_many_topics_take_no_look_each_at_all_others(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither at those of the request nor at those that are there: the event loop stood still."""
    topics = Counted(
        CreatableTopic(
            name=f"t{n}", num_partitions=1, replication_factor=1, assignments=(), configs=()
        )
        for n in range(50)
    )
    image, looks = counted(node.services.topics.image)
    monkeypatch.setattr(node.services.topics, "_image", image)
    session = Session("127.0.0.1:5", "127.0.0.1", node.services.entrances[0])
    request = CreateTopicsRequest(topics=topics, timeout_ms=1000, validate_only=True)
    answer = await handle(node.services, session, 7, request)
    assert [one.error_code for one in answer.topics] == 50 * [0]
    assert topics.looks <= 3
    assert looks() <= 1


@pytest.mark.parametrize(
    ("factor", "code"), [("3", ErrorCode.INVALID_REPLICATION_FACTOR), ("1", ErrorCode.NONE)]
)
async def test_what_is_validated_alone_goes_by_the_brokers_factor_too(
    tmp_path: Path, factor: str, code: int
) -> None:
    asked = CreatableTopic(
        name="t", num_partitions=1, replication_factor=-1, assignments=(), configs=()
    )
    async with (
        running_node(tmp_path, {"default.replication.factor": factor}) as node,
        await connect(node) as connection,
    ):
        for validate_only in (True, False):
            request = CreateTopicsRequest(
                topics=(asked,), timeout_ms=1000, validate_only=validate_only
            )
            [answer] = (await connection.request(request, CreateTopicsResponse)).topics
            assert answer.error_code == code
