"""What is prepared of topics is prepared anew whenever what it rests on has changed."""

from __future__ import annotations

import pytest

from lapse.broker.fast.led_topics import LedPartition, LedTopics
from lapse.broker.node import Node
from lapse.client.admin import Admin
from lapse.client.connection import BrokerConnection
from lapse.client.settings import TOPIC, ConfigChange, Resource
from tests.support.broker.running import create


def found(topics: LedTopics, number: int = 0, name: bytes = b"t") -> LedPartition | None:
    topic = topics.of(name)
    return None if topic is None else topics.partition(topic, number)


async def test_what_is_prepared_stays(node: Node) -> None:
    topics = LedTopics(node.services)
    assert found(topics) is None
    await create(node, "t", 2)
    first = found(topics)
    assert first is not None
    assert (str(first.where), first.has_enough, first.is_replicated) == ("t-0", True, False)
    assert found(topics) is first
    assert found(topics, 1) is not first


@pytest.mark.parametrize("number", [-1, 2, 1 << 31])
async def test_there_is_no_other_partition(node: Node, number: int) -> None:
    await create(node, "t", 2)
    topics = LedTopics(node.services)
    assert found(topics, number) is None
    topic = topics.of(b"t")
    assert topic is not None
    assert topic.partitions == {}, "what is asked for takes no memory"


@pytest.mark.parametrize("name", [b"", b"u", b"\xff", b"__consumer_offsets", b"__cluster_metadata"])
async def test_there_is_no_other_topic(node: Node, name: bytes) -> None:
    await create(node, "t")
    await create(node, "__consumer_offsets")
    assert LedTopics(node.services).of(name) is None


async def test_a_new_image_counts(node: Node, connection: BrokerConnection) -> None:
    await create(node, "t")
    topics = LedTopics(node.services)
    first = found(topics)
    changes = [ConfigChange("min.insync.replicas", "2")]
    await Admin(connection).incremental_alter_configs({Resource(TOPIC, "t"): changes})
    second = found(topics)
    assert first is not None
    assert second is not None
    assert (first.has_enough, second.has_enough) == (True, False)


async def test_by_id_it_is_the_same(node: Node, connection: BrokerConnection) -> None:
    await create(node, "t")
    topics = LedTopics(node.services)
    raw = node.services.topics.image.topics["t"].topic_id.bytes
    topic = topics.by_id(raw)
    assert topic is not None
    assert topics.by_id(raw) is topic
    assert topics.of(raw) is topics.by_id(b"t" * 16) is None
    await Admin(connection).delete_topic("t")
    assert topics.by_id(raw) is None


async def test_so_does_another_leader(node: Node) -> None:
    await create(node, "t")
    topics, partitions = LedTopics(node.services), node.services.partitions
    assert found(topics) is not None
    partitions.set_states({}, {}, {})  # of a cluster: who leads is not known
    assert found(topics) is None


async def test_a_topic_made_anew_is_another(node: Node, connection: BrokerConnection) -> None:
    await create(node, "t")
    topics = LedTopics(node.services)
    first = found(topics)
    await Admin(connection).delete_topic("t")
    assert found(topics) is None
    await create(node, "t")
    second = found(topics)
    assert first is not None
    assert second is not None
    assert second.log is not first.log
