"""CreatePartitions: topics grow, durably, or stay as they are."""

from __future__ import annotations

from pathlib import Path

from lapse.base.errors import ErrorCode
from lapse.base.ids import TopicPartition
from lapse.broker.api.create_partitions import handle
from lapse.broker.logs.topics import NewTopic
from lapse.broker.node import Node
from lapse.broker.request.context import Session
from lapse.client.admin import Admin
from lapse.client.connection import BrokerConnection
from lapse.wire.schema.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from tests.support.broker.counted import Counted
from tests.support.broker.failing import FailingFs
from tests.support.broker.running import batch_of, connect, create, fetch, produce, running_node


def more(name: str, count: int, *brokers: tuple[int, ...] | None) -> CreatePartitionsTopic:
    assignments = tuple(CreatePartitionsAssignment(broker_ids=ids) for ids in brokers if ids)
    return CreatePartitionsTopic(
        name=name, count=count, assignments=assignments if brokers else None
    )


async def ask(connection: BrokerConnection, *topics: CreatePartitionsTopic, **fields: bool):  # type: ignore[no-untyped-def]
    request = CreatePartitionsRequest(
        topics=topics, timeout_ms=1000, **{"validate_only": False, **fields}
    )
    return (await connection.request(request, CreatePartitionsResponse)).results


async def test_many_topics_take_no_look_each_at_all_others(node: Node) -> None:
    session = Session("127.0.0.1:5", "127.0.0.1", node.services.entrances[0])
    topics = Counted(more(f"t{n}", 2) for n in range(50))
    request = CreatePartitionsRequest(topics=topics, timeout_ms=1000, validate_only=True)
    answer = await handle(node.services, session, 3, request)
    assert len(answer.results) == 50
    assert topics.looks <= 3


async def test_a_topic_grows_and_stays_so(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, await connect(node) as connection:
        await create(node, "t", 1, retention_ms="5", cleanup_policy="compact")
        await produce(connection, "t", (0, batch_of(b"old")))
        before = node.services.topics.image.topics["t"]
        first = node.services.partitions.get(TopicPartition("t", 0))
        await Admin(connection).create_partitions("t", 3)
        done = await produce(connection, "t", (1, batch_of(b"a")), (2, batch_of(b"b")))
        assert [d.error_code for d in done] == [0, 0]
        assert node.services.partitions.get(TopicPartition("t", 0)) is first
        described = await Admin(connection).describe_topic("t")
        assert [p.log_end_offset for p in described.partitions] == [1, 1, 1]
        assert described.topic_id == before.topic_id
    async with running_node(tmp_path) as node, await connect(node) as connection:
        assert node.services.topics.image.topics["t"].partitions == 3
        configs = {log.config for log in node.services.partitions.all()}
        assert configs == {before.config}
        (data,) = await fetch(connection, "t", (2, 0))
        assert (data.error_code, data.high_watermark) == (0, 1)


REFUSED = {
    "as many": (more("t", 2), ErrorCode.INVALID_PARTITIONS, "2 would not be more"),
    "fewer": (more("t", 1), ErrorCode.INVALID_PARTITIONS, "has 2 partitions"),
    "negative": (more("t", -1), ErrorCode.INVALID_PARTITIONS, "has 2 partitions"),
    "too many": (more("t", 10_003), ErrorCode.POLICY_VIOLATION, "10001 partitions more"),
    "unknown": (more("u", 3), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "'u'"),
    "elsewhere": (more("t", 3, (1,)), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "[1]"),
    "two replicas": (more("t", 3, (0, 1)), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "[0, 1]"),
    "one too few": (more("t", 4, (0,)), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "1 assignments"),
    "none": (more("t", 3, None), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "0 assignments"),
    "internal": (more("__transaction_state", 3), ErrorCode.INVALID_TOPIC_EXCEPTION, "internal"),
}


async def test_refused_and_nothing_is_changed(node: Node, connection: BrokerConnection) -> None:
    await create(node, "t", 2)
    if "__transaction_state" not in node.services.topics.image.topics:
        await node.services.topics.create(NewTopic("__transaction_state", 1, {}))
    before = node.services.topics.image
    for name, (asked, code, words) in REFUSED.items():
        (answer,) = await ask(connection, asked)
        assert answer.error_code == code, name
        assert words in (answer.error_message or ""), name
    assert node.services.topics.image is before


async def test_topics_are_judged_one_by_one(node: Node, connection: BrokerConnection) -> None:
    await create(node, "a")
    await create(node, "b")
    asked = (more("a", 2), more("a", 3), more("b", 2, (0,)), more("c", 2))
    answers = await ask(connection, *asked, validate_only=True)
    assert {a.name: a.error_code for a in answers} == {
        "a": ErrorCode.INVALID_REQUEST, "b": 0, "c": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }  # fmt: skip
    assert node.services.topics.image.topics["b"].partitions == 1
    answers = await ask(connection, *asked)
    assert [a.error_code for a in answers if a.name == "b"] == [0]
    assert node.services.topics.image.topics["b"].partitions == 2


async def test_a_failing_disk_leaves_the_topic_as_it_was(tmp_path: Path) -> None:
    fs = FailingFs()
    async with running_node(tmp_path, fs=fs) as node, await connect(node) as connection:
        await create(node, "t", 1)
        # In the way, so that the second of two cannot be made: somebody else's directory.
        (tmp_path / "t-2").mkdir()
        (tmp_path / "t-2" / "00000000000000000000.log").write_bytes(b"somebody's")
        (tmp_path / "t-2" / "partition.metadata").write_text("version: 0\ntopic_id: " + "A" * 22)
        (answer,) = await ask(connection, more("t", 3))
        assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert "another topic's records" in (answer.error_message or "")
        assert node.services.topics.image.topics["t"].partitions == 1
        (refused,) = await produce(connection, "t", (1, batch_of(b"a")))
        assert refused.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert not (tmp_path / "t-1").exists()
        (done,) = await produce(connection, "t", (0, batch_of(b"a")))
        assert done.error_code == 0
    async with running_node(tmp_path) as node:
        assert node.services.topics.image.topics["t"].partitions == 1
