"""Produce with topics by id (v13, KIP-516): the topic counts, and not who has its name."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from lapse.base.errors import ErrorCode
from lapse.base.ids import TopicPartition, format_topic_id
from lapse.broker.api.produce import Terms, append_all, append_at_once
from lapse.broker.logs.topics import NewTopic
from lapse.broker.node import Node
from lapse.client.admin import Admin
from lapse.client.connection import BrokerConnection
from lapse.metadata.image import INTERNAL_TOPICS
from lapse.wire.declaration import ZERO_UUID
from lapse.wire.schema.produce import PartitionProduceData, ProduceRequest, ProduceResponse
from tests.support.broker.running import (
    BY_NAME,
    batch_of,
    create,
    produce,
    produce_request,
    until,
)

T0 = TopicPartition("t", 0)
BY_ID = BY_NAME + 1


async def test_a_topic_of_an_id_that_none_has_is_refused_alone(
    node: Node, connection: BrokerConnection
) -> None:
    """Two such topics and one that is there; nothing is taken for a name."""
    await create(node, "t", 2)
    ids = [node.services.topics.image.topics["t"].topic_id, uuid.UUID(int=7), ZERO_UUID]
    topics = [
        produce_request("t", (0, batch_of(b"a")), topic_id=of).topic_data[0]
        for of in (ids[1], ids[0], ids[2])
    ]
    request = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=(*topics,))
    answer = await connection.request(request, ProduceResponse, version=BY_ID)
    found = {
        one.topic_id: (partition.error_code, partition.base_offset)
        for one in answer.responses
        for partition in one.partition_responses
    }
    unknown = ErrorCode.UNKNOWN_TOPIC_ID, -1
    assert found == {ids[0]: (0, 0), ids[1]: unknown, ids[2]: unknown}
    assert node.services.partitions.get(T0).log_end_offset == 1
    await connection.send(replace(request, acks=0), version=BY_ID)
    await until(lambda: connection.is_lost)


async def test_an_id_goes_with_its_topic(node: Node, connection: BrokerConnection) -> None:
    """What is written to a topic that was deleted does not reach one that has its name."""
    topic_ids = []
    for _ in range(2):
        await create(node, "t")
        topic_ids.append(node.services.topics.image.topics["t"].topic_id)
        (answer,) = await produce(
            connection, "t", (0, batch_of(b"a")), version=BY_ID, topic_id=topic_ids[-1]
        )
        assert answer.error_code == 0
        if len(topic_ids) == 1:
            await Admin(connection).delete_topic("t")
    (answer,) = await produce(
        connection, "t", (0, batch_of(b"late")), version=BY_ID, topic_id=topic_ids[0]
    )
    assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert node.services.partitions.get(T0).log_end_offset == 1


async def test_a_topic_made_anew_while_its_batch_waits_does_not_get_it(
    node: Node, connection: BrokerConnection
) -> None:
    """For its transaction to be verified, say."""
    await create(node, "t")
    data = PartitionProduceData(index=0, records=batch_of(b"a"))
    topic_id = node.services.topics.image.topics["t"].topic_id
    await produce(connection, "t", (0, batch_of(b"a")))  # which opens the file
    for sent_to, error in ((uuid.UUID(int=7), ErrorCode.UNKNOWN_TOPIC_ID), (topic_id, None)):
        terms = Terms(1, BY_ID, {}, {"t": format_topic_id(sent_to)})
        for append in (append_at_once, append_all):
            [result] = append(node.services.partitions, terms, [(T0, data)])
            assert result.error is error
    assert node.services.partitions.get(T0).log_end_offset == 3


@pytest.mark.parametrize("topic", sorted(INTERNAL_TOPICS))
async def test_an_internal_topic_is_refused_by_its_id_too(
    node: Node, connection: BrokerConnection, topic: str
) -> None:
    await node.services.topics.create(NewTopic(topic, 1, {}))
    topic_id = node.services.topics.image.topics[topic].topic_id
    (answer,) = await produce(
        connection, topic, (0, batch_of(b"a")), version=BY_ID, topic_id=topic_id
    )
    assert answer.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


async def test_no_name_is_taken_for_an_id(node: Node, connection: BrokerConnection) -> None:
    """Not even the words by which messages call a topic that is not there."""
    answers = [
        (await produce(connection, name, (0, batch_of(b"a")), version=version))[0]
        for name in ("", f"the topic of id {format_topic_id(uuid.UUID(int=7))}")
        for version in (3, BY_NAME)
    ]
    codes = {answer.error_code for answer in answers}
    assert codes == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert not node.services.topics.image.topics
