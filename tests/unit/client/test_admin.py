"""Our admin client against our broker, and against things that are no broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lapse.base.errors import ErrorCode, KafkaError
from lapse.broker.node import Node
from lapse.client.admin import Admin
from lapse.client.connection import BrokerConnection, ConnectionLost
from lapse.client.settings import refusal
from lapse.wire.schema.metadata import MetadataRequest, MetadataResponse
from tests.support.broker.running import batch_of, connect, produce, running_node


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with running_node(tmp_path) as running:
        yield running


async def test_create_list_describe_delete(node: Node) -> None:
    async with await connect(node) as connection:
        admin = Admin(connection)
        made = await admin.create_topic("t", partitions=2, configs={"retention.ms": "5"})
        assert (made.name, made.partitions) == ("t", 2)
        assert await admin.list_topics() == [made]
        await produce(connection, "t", (1, batch_of(b"a")))
        described = await admin.describe_topic("t")
        assert described.topic_id == made.topic_id
        ends = [(p.partition, p.log_start_offset, p.log_end_offset) for p in described.partitions]
        assert ends == [(0, 0, 0), (1, 0, 1)]
        await admin.delete_topic("t")
        assert await admin.list_topics() == []


async def test_refusals_carry_code_and_words(node: Node) -> None:
    async with await connect(node) as connection:
        admin = Admin(connection)
        for ask, code, words in (
            (admin.describe_topic("t"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "^t: UNKNOWN_TOPIC"),
            (admin.delete_topic("t"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no topic"),
            (admin.create_partitions("t", 2), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no topic 't'"),
            (
                admin.create_topic("t", configs={"retention.ms": "x"}),
                ErrorCode.INVALID_CONFIG,
                "retention.ms=x: allowed is a whole number",
            ),
        ):
            with pytest.raises(KafkaError, match=words) as refused:
                await ask
            assert refused.value.code == code


def test_an_unknown_code_is_told_as_it_is() -> None:
    error = refusal(12345, None, "t")
    assert (error.code, str(error)) == (ErrorCode.UNKNOWN_SERVER_ERROR, "t: error 12345")


async def test_many_requests_at_once_get_their_own_answers(node: Node) -> None:
    async with await connect(node) as connection:
        admin = Admin(connection)
        names = [f"t{n}" for n in range(20)]
        made = await asyncio.gather(*(admin.create_topic(name) for name in names))
        assert [listing.name for listing in made] == names


async def test_nobody_there(node: Node) -> None:
    port = node.services.address.port
    await node.stop()
    with pytest.raises(ConnectionLost, match=f"cannot connect to 127.0.0.1:{port}"):
        await BrokerConnection.open("127.0.0.1", port)


async def test_a_broker_that_goes_away_fails_what_waits(node: Node) -> None:
    connection = await connect(node)
    await node.stop()
    with pytest.raises(ConnectionLost):
        await connection.request(MetadataRequest(topics=None), MetadataResponse)
    connection.close()
