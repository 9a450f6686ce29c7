"""Changes of one topic that are asked for at once: each is judged by what is there in its turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from lapse.base.clock import SystemClock
from lapse.base.errors import ErrorCode, KafkaError
from lapse.broker.logs.topics import NewTopic
from lapse.broker.node import Node
from lapse.client.admin import Admin
from lapse.client.connection import BrokerConnection
from tests.support.broker.running import connect, create, running_node
from tests.support.broker.two_nodes import two_nodes
from tests.unit.broker.api.test_create_partitions import ask, more


@asynccontextmanager
async def topic_and_two(
    path: Path,
) -> AsyncIterator[tuple[Node, BrokerConnection, BrokerConnection]]:
    """A broker with the topic t, and two clients."""
    async with (
        running_node(path) as node,
        await connect(node) as one,
        await connect(node) as other,
    ):
        await create(node, "t", 1)
        yield node, one, other


async def test_one_that_grows_before_its_deletion_is_deleted_whole(tmp_path: Path) -> None:
    """Else partitions that came last stay on the disk, of a topic that nobody knows any more."""
    async with topic_and_two(tmp_path) as (node, one, other):
        await asyncio.gather(Admin(one).create_partitions("t", 3), Admin(other).delete_topic("t"))
        assert "t" not in node.services.topics.image.topics
        assert node.services.partitions.all() == ()
        await create(node, "t", 3)  # nothing of the other is in the way


async def test_one_is_deleted_once(tmp_path: Path) -> None:
    async with topic_and_two(tmp_path) as (_, one, other):
        done = await asyncio.gather(
            *(Admin(connection).delete_topic("t") for connection in (one, other)),
            return_exceptions=True,
        )
        [refused] = [error for error in done if error is not None]
        assert isinstance(refused, KafkaError)
        assert refused.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_assignments_are_counted_when_the_topic_grows(tmp_path: Path) -> None:
    """Else the store has states of more partitions than the topic, which never grows again."""
    async with (
        two_nodes(tmp_path, SystemClock()) as (controller, _),
        await connect(controller) as one,
        await connect(controller) as other,
    ):
        await controller.services.topics.create(NewTopic("t", 1, {}, 1))
        [[first], [second]] = await asyncio.gather(
            ask(one, more("t", 2)), ask(other, more("t", 3, (1,), (2,)))
        )
        assert first.error_code == ErrorCode.NONE
        assert second.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
        [again] = await ask(one, more("t", 4))
        assert again.error_code == ErrorCode.NONE


async def test_names_that_collide_are_refused_also_at_once(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        done = await asyncio.gather(
            create(node, "a.b"), create(node, "a_b"), return_exceptions=True
        )
        [refused] = [error for error in done if isinstance(error, BaseException)]
        with pytest.raises(KafkaError, match="collides with"):
            raise refused
        assert len(node.services.topics.image.topics) == 1
