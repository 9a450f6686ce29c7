"""Produce with acks=-1 where fewer replicas are in sync than `min.insync.replicas` wants."""

from __future__ import annotations

from pathlib import Path

import pytest

from lapse.base.errors import ErrorCode
from lapse.base.ids import TopicPartition
from lapse.broker.logs.topics import NewTopic
from lapse.broker.node import Node
from lapse.client.connection import BrokerConnection
from lapse.testing.clock import ManualClock
from tests.support.broker.running import batch_of, connect, create, produce, until
from tests.support.broker.transaction_requests import TransactionalProducer
from tests.support.broker.two_nodes import two_nodes

T0 = TopicPartition("t", 0)


async def test_more_replicas_than_there_are(node: Node, connection: BrokerConnection) -> None:
    """`min.insync.replicas` applies to acks=-1, and to that topic alone."""
    await create(node, "t", min_insync_replicas="2")
    await create(node, "u")
    (refused,) = await produce(connection, "t", (0, batch_of(b"a")), acks=-1)
    assert refused.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert "min.insync.replicas=2" in (refused.error_message or "")
    (taken,) = await produce(connection, "u", (0, batch_of(b"a")), acks=-1)
    (one,) = await produce(connection, "t", (0, batch_of(b"b")), acks=1)
    assert (taken.error_code, one.error_code, one.base_offset) == (0, 0, 0)


@pytest.mark.parametrize("fast", ["true", "false"])
async def test_where_a_partition_is_comes_before_how_many_have_it(
    tmp_path: Path, fast: str
) -> None:
    """A client that hears of too few replicas waits for them, and does not look for the leader."""
    more = {"lapse_fast_requests": fast}
    async with two_nodes(tmp_path, ManualClock(), **more) as both:
        await both[0].services.topics.create(NewTopic("t", 1, {"min.insync.replicas": "2"}, 1, ()))
        await until(lambda: all(n.services.partitions.state_of(T0) for n in both))
        (state,) = both[0].services.topics.image.topics["t"].states
        codes = {}
        for node in both:
            async with await connect(node) as opened:
                answer = await produce(opened, "t", (0, batch_of(b"a")), (5, batch_of(b"a")))
            codes[node.services.config.node_id] = [one.error_code for one in answer]
    there_not = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert codes == {
        state.leader: [ErrorCode.NOT_ENOUGH_REPLICAS, there_not],
        3 - state.leader: [ErrorCode.NOT_LEADER_OR_FOLLOWER, there_not],
    }


async def test_an_error_of_a_transaction_is_told_before_too_few_replicas(
    node: Node, connection: BrokerConnection
) -> None:
    """It will not go by itself, and its producer is to abort."""
    await create(node, "t", min_insync_replicas="2")
    producer = TransactionalProducer(connection, "x")
    await producer.start()
    assert await producer.send(T0, b"a") == ErrorCode.TRANSACTION_ABORTABLE
    await producer.add(T0)
    assert await producer.send(T0, b"a") == ErrorCode.NOT_ENOUGH_REPLICAS
