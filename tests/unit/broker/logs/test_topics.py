"""CreateTopics, DeleteTopics and Metadata: what exists, what may, and what survives a restart."""

from __future__ import annotations

import os
import shutil
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from lapse.base.errors import ConfigError, ErrorCode, KafkaError
from lapse.base.fs import RealFs
from lapse.base.ids import TopicPartition
from lapse.broker.node import STORE, Node
from lapse.client.admin import Admin
from lapse.client.connection import BrokerConnection
from lapse.client.settings import BROKER, TOPIC, ConfigChange, Resource
from lapse.log.checkpoints import read_topic_id, write_topic_id
from lapse.log.roster import ROSTER
from lapse.metadata.sqlite import SqliteStore
from lapse.wire.schema.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from lapse.wire.schema.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from lapse.wire.schema.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tests.support.broker.running import batch_of, connect, create, fetch, produce, running_node


def topic(name: str, partitions: int = 1, factor: int = 1, **more: object) -> CreatableTopic:
    fields = {"assignments": (), "configs": (), **more}
    return CreatableTopic(name=name, num_partitions=partitions, replication_factor=factor, **fields)


def config(name: str, value: str) -> tuple[CreatableTopicConfig, ...]:
    return (CreatableTopicConfig(name=name, value=value),)


def by_hand(*assigned: tuple[int, tuple[int, ...]]) -> CreatableTopic:
    """Partitions with their brokers."""
    assignments = tuple(
        CreatableReplicaAssignment(partition_index=number, broker_ids=ids)
        for number, ids in assigned
    )
    return topic("new", -1, -1, assignments=assignments)


UNASSIGNABLE = ErrorCode.INVALID_REPLICA_ASSIGNMENT
REFUSED = {
    "slash": (topic("a/b"), ErrorCode.INVALID_TOPIC_EXCEPTION, "a/b"),
    "dots": (topic(".."), ErrorCode.INVALID_TOPIC_EXCEPTION, ".."),
    "exists": (topic("there"), ErrorCode.TOPIC_ALREADY_EXISTS, "there"),
    "kafka's metadata log": (
        topic("__cluster_metadata"),
        ErrorCode.INVALID_REQUEST,
        "Kafka's metadata log",
    ),
    "collides": (topic("a_b"), ErrorCode.INVALID_TOPIC_EXCEPTION, "collides with 'a.b'"),
    "none": (topic("new", 0), ErrorCode.INVALID_PARTITIONS, "at least 1"),
    "too many": (topic("new", 10_001), ErrorCode.POLICY_VIOLATION, "10000"),
    "replicas": (topic("new", 1, 3), ErrorCode.INVALID_REPLICATION_FACTOR, "one broker"),
    "assigned elsewhere": (
        by_hand((0, (0,)), (1, (1,))),
        UNASSIGNABLE,
        "brokers [1]; allowed is each of [0]",
    ),
    "assigned twice": (by_hand((0, (0, 0))), UNASSIGNABLE, "brokers [0, 0]"),
    "assigned to nobody": (by_hand((0, ())), UNASSIGNABLE, "brokers []"),
    "a gap": (by_hand((0, (0,)), (2, (0,))), UNASSIGNABLE, "partitions [0, 2]"),
    "a number twice": (by_hand((0, (0,)), (0, (0,))), UNASSIGNABLE, "partitions [0, 0]"),
    "assigned and counted": (
        replace(by_hand((0, (0,))), num_partitions=1),
        ErrorCode.INVALID_REQUEST,
        "are -1",
    ),
    "assigned and replicated": (
        replace(by_hand((0, (0,))), replication_factor=3),
        ErrorCode.INVALID_REQUEST,
        "are -1",
    ),
    "no such codec": (
        topic(
            "new",
            configs=config("compression.type", "zstd") + config("message.format.version", "0.10.2"),
        ),
        ErrorCode.INVALID_CONFIG,
        "compression.type=zstd: allowed with message.format.version 0.11",
    ),
    "bad value": (
        topic("new", configs=config("cleanup.policy", "shred")),
        ErrorCode.INVALID_CONFIG,
        "cleanup.policy=shred: allowed is a list of compact and delete",
    ),
    "bad name": (
        topic("new", configs=config("cleanup", "x")),
        ErrorCode.INVALID_CONFIG,
        "unknown setting cleanup",
    ),
}


async def ask_to_create(connection: BrokerConnection, *topics: CreatableTopic, **more: bool):  # type: ignore[no-untyped-def]
    request = CreateTopicsRequest(topics=topics, timeout_ms=1000, **more)
    return (await connection.request(request, CreateTopicsResponse)).topics


@pytest.mark.parametrize("name", REFUSED)
async def test_refused(name: str, node: Node, connection: BrokerConnection) -> None:
    requested, code, words = REFUSED[name]
    await create(node, "there")
    await create(node, "a.b")
    (answer,) = await ask_to_create(connection, requested)
    assert answer.error_code == code
    assert words in (answer.error_message or "")
    assert set(node.services.topics.image.topics) == {"there", "a.b"}


async def test_topics_are_judged_one_by_one(node: Node, connection: BrokerConnection) -> None:
    answers = await ask_to_create(connection, topic("a"), topic("b", 0), topic("c"), topic("c"))
    assert {a.name: a.error_code for a in answers} == {
        "a": 0,
        "b": ErrorCode.INVALID_PARTITIONS,
        "c": ErrorCode.INVALID_REQUEST,
    }
    assert set(node.services.topics.image.topics) == {"a"}


async def test_partitions_assigned_by_hand(node: Node, connection: BrokerConnection) -> None:
    (answer,) = await ask_to_create(connection, by_hand((1, (0,)), (0, (0,)), (2, (0,))))
    assert (answer.error_code, answer.num_partitions, answer.replication_factor) == (0, 3, 1)
    made = node.services.topics.image.topics["new"]
    assert (made.partitions, made.states) == (3, ())  # a broker that is alone leads all


async def test_the_answer_tells_the_settings(node: Node, connection: BrokerConnection) -> None:
    """KIP-525."""
    requested = topic("t", 3, -1, configs=config("cleanup.policy", "delete,compact"))
    (answer,) = await ask_to_create(connection, requested)
    assert (answer.num_partitions, answer.replication_factor) == (3, 1)
    settings = {c.name: (c.value, c.config_source) for c in answer.configs or ()}
    assert settings["cleanup.policy"] == ("compact,delete", 1)
    assert settings["message.timestamp.type"] == ("CreateTime", 5)


# By KIP-32's names, KIP-87's, and Lapse's: requested, described, and in force.
FORMAT_SETTINGS = {
    "message.format.version": ("0.10.2", "message_format_version", 1),
    "message.timestamp.type": ("LogAppendTime", "message_timestamp_type", 1),
    "message.timestamp.difference.max.ms": ("5000", "message_timestamp_before_max_ms", 5000),
    "message.timestamp.after.max.ms": ("7000", "message_timestamp_after_max_ms", 7000),
    "lapse.roll.time": ("record", "roll_time", "record"),
    "lapse.tombstone.values.enable": ("true", "tombstone_values_enable", True),
}


async def test_settings_of_formats_and_times(tmp_path: Path) -> None:
    """KIP-32."""
    settings = {"log.message.format.version": "0.9.0"}
    async with running_node(tmp_path, settings) as node, await connect(node) as connection:
        configs = tuple(
            CreatableTopicConfig(name=name, value=text)
            for name, (text, _, _) in FORMAT_SETTINGS.items()
        )
        answers = await ask_to_create(
            connection, topic("t", configs=configs), topic("plain"),
            topic("bad", configs=config("message.format.version", "0.7")),
        )  # fmt: skip
        described = {c.name: (c.value, c.config_source) for c in answers[0].configs or ()}
        in_force = node.services.topics.image.topics["t"].config
        for name, (text, field, value) in FORMAT_SETTINGS.items():
            assert described[name] == (text, 1)
            assert getattr(in_force, field) == value
        plain = {c.name: (c.value, c.config_source) for c in answers[1].configs or ()}
        assert plain["message.format.version"] == ("0.9.0", 4)
        assert plain["lapse.tombstone.values.enable"] == ("false", 5)
        assert answers[2].error_code == ErrorCode.INVALID_CONFIG
        assert "a Kafka version from 0.8.0 on" in (answers[2].error_message or "")


async def test_validate_only_creates_nothing(node: Node, connection: BrokerConnection) -> None:
    (answer,) = await ask_to_create(connection, topic("t"), validate_only=True)
    assert answer.error_code == 0
    assert not node.services.topics.image.topics


async def test_broker_defaults_count(tmp_path: Path) -> None:
    settings = {"num.partitions": "4", "log.cleanup.policy": "compact"}
    async with running_node(tmp_path, settings) as node, await connect(node) as connection:
        (answer,) = await ask_to_create(connection, topic("t", -1))
        assert answer.num_partitions == 4
        described = {c.name: (c.value, c.config_source) for c in answer.configs or ()}
        assert described["cleanup.policy"] == ("compact", 4)
        assert node.services.topics.image.topics["t"].config.compacts


async def test_a_default_that_contradicts_a_topic_stops_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The topic keeps its own setting, is named, and can be used and mended."""
    async with running_node(tmp_path) as node:
        await create(node, "held", min_compaction_lag_ms="600000")
        await create(node, "old", message_format_version="0.10.0")
        await create(node, "other")
    edited = {"log.cleaner.max.compaction.lag.ms": "300000", "compression.type": "zstd"}
    async with running_node(tmp_path, edited) as node, await connect(node) as connection:
        said = [r.getMessage() for r in caplog.records if r.name == "lapse.broker.logs.topics"]
        assert [(line.split(":")[0], line.split("; ")[1].split()[0]) for line in said] == [
            ("topic held", "max.compaction.lag.ms=600000"),
            ("topic old", "compression.type=producer"),
        ]
        config = node.services.partitions.get(TopicPartition("held", 0)).config
        assert (config.min_compaction_lag_ms, config.max_compaction_lag_ms) == (600_000, 600_000)
        other = node.services.partitions.get(TopicPartition("other", 0)).config
        assert (other.min_compaction_lag_ms, other.max_compaction_lag_ms) == (0, 300_000)
        for name in ("held", "old", "other"):
            (answer,) = await produce(connection, name, (0, batch_of(b"a")))
            assert answer.error_code == 0
        admin, held = Admin(connection), Resource(TOPIC, "held")
        for name, value, refused in (
            ("retention.ms", "5", False),  # has nothing to do with it
            ("min.compaction.lag.ms", "600001", True),
            ("min.compaction.lag.ms", "300000", False),
        ):
            done = await admin.incremental_alter_configs({held: [ConfigChange(name, value)]})
            assert (done[held] is not None) is refused, (name, done)
        for resource in (Resource(BROKER, "0"), Resource(BROKER, "")):  # nor have they
            change = ConfigChange("log.retention.ms", "7")
            assert await admin.incremental_alter_configs({resource: [change]}) == {resource: None}


async def test_defaults_that_contradict_each_other_stop_nobody(tmp_path: Path) -> None:
    """One was changed while the broker ran, the other is in the file since."""
    async with running_node(tmp_path) as node, await connect(node) as connection:
        await create(node, "t")
        every = Resource(BROKER, "")
        change = ConfigChange("log.cleaner.max.compaction.lag.ms", "300000")
        assert await Admin(connection).incremental_alter_configs({every: [change]}) == {every: None}
    edited = {"log.cleaner.min.compaction.lag.ms": "600000"}
    async with running_node(tmp_path, edited) as node:
        await create(node, "new")
        for name in ("t", "new"):
            config = node.services.partitions.get(TopicPartition(name, 0)).config
            assert config.max_compaction_lag_ms == config.min_compaction_lag_ms == 600_000


async def test_a_bad_setting_in_the_store_names_its_topic(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        await create(node, "t")
    store = SqliteStore(tmp_path / STORE, str)
    (record,) = store.topics()
    store.change_topic(replace(record, overrides={"retention.ms": "soon"}), record)
    store.close()
    with pytest.raises(ConfigError, match=r"^topic t: retention.ms=soon: allowed is"):
        async with running_node(tmp_path):
            pass


async def test_topics_survive_a_restart(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, await connect(node) as connection:
        await create(node, "t", 2, cleanup_policy="compact")
        await produce(connection, "t", (1, batch_of(b"a")))
        before = node.services.topics.image
    async with running_node(tmp_path) as node:
        after = node.services.topics.image
        assert (after.cluster_id, dict(after.topics)) == (before.cluster_id, dict(before.topics))
        assert node.services.partitions.get(TopicPartition("t", 1)).log_end_offset == 1


async def test_a_deleted_topic_is_gone_and_its_name_free(
    node: Node, connection: BrokerConnection
) -> None:
    await create(node, "t")
    await produce(connection, "t", (0, batch_of(b"a")))
    await Admin(connection).delete_topic("t")
    (gone,) = await produce(connection, "t", (0, batch_of(b"a")))
    assert gone.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    await create(node, "t")
    (empty,) = await fetch(connection, "t", (0, 0))
    assert (empty.error_code, empty.high_watermark) == (0, 0)


async def test_delete_by_id_and_its_errors(node: Node, connection: BrokerConnection) -> None:
    await create(node, "a")
    await create(node, "b")
    ids = {name: t.topic_id for name, t in node.services.topics.image.topics.items()}
    requested = (
        DeleteTopicState(topic_id=ids["a"]),
        DeleteTopicState(topic_id=uuid.uuid4()),
        DeleteTopicState(name="b", topic_id=ids["b"]),
        DeleteTopicState(name="nowhere"),
    )
    request = DeleteTopicsRequest(topics=requested, timeout_ms=1000)
    answer = await connection.request(request, DeleteTopicsResponse)
    assert [r.error_code for r in answer.responses] == [
        0,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert answer.responses[0].name == "a"
    assert set(node.services.topics.image.topics) == {"b"}


async def test_one_topic_by_its_name_and_by_its_id_is_named_twice(
    node: Node, connection: BrokerConnection
) -> None:
    await create(node, "t")
    [topic] = node.services.topics.image.topics.values()
    requested = (
        DeleteTopicState(name="t"),
        DeleteTopicState(topic_id=topic.topic_id),
        DeleteTopicState(),
    )
    request = DeleteTopicsRequest(topics=requested, timeout_ms=1000)
    answer = await connection.request(request, DeleteTopicsResponse)
    assert [r.error_code for r in answer.responses] == 3 * [ErrorCode.INVALID_REQUEST]
    assert "t" in node.services.topics.image.topics


async def test_a_deletion_cut_short_is_finished_at_the_next_start(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        await create(node, "t", 2)
        topic_id = node.services.topics.image.topics["t"].topic_id
    store = SqliteStore(tmp_path / STORE, str)
    store.start_deletion(topic_id)
    store.close()
    async with running_node(tmp_path) as node:
        assert not node.services.topics.image.topics
        assert not node.services.partitions.all()
    left = [name for name in os.listdir(tmp_path) if name.startswith("t")]
    assert len(left) == 2
    assert all(name.endswith("-delete") for name in left)


async def test_a_creation_cut_short_is_finished_at_the_next_start(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        await create(node, "t", 2)
    shutil.rmtree(tmp_path / "t-1")
    (tmp_path / ROSTER).unlink()  # which is written when all are made
    async with running_node(tmp_path) as node, await connect(node) as connection:
        (answer,) = await produce(connection, "t", (1, batch_of(b"a")))
        assert (answer.error_code, answer.base_offset) == (0, 0)


async def test_a_stranger_in_the_directory_is_left_alone(tmp_path: Path) -> None:
    """Files of no known topic, or of another one with the same name, are not ours to touch."""
    async with running_node(tmp_path) as node:
        await create(node, "t", 2)
    stranger, other = tmp_path / "foreign-0", uuid.uuid4()
    stranger.mkdir()
    (stranger / "00000000000000000000.log").write_bytes(b"somebody's")
    write_topic_id(RealFs(), tmp_path / "t-1", other)
    async with running_node(tmp_path) as node, await connect(node) as connection:
        served, refused = await produce(connection, "t", (0, batch_of(b"a")), (1, batch_of(b"b")))
        assert served.error_code == 0
        assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert list(node.services.partitions.offline) == [TopicPartition("t", 1)]
        answer = await connection.request(MetadataRequest(topics=None), MetadataResponse)
        leaders = [(p.leader_id, p.error_code) for p in answer.topics[0].partitions]
        assert leaders == [(0, 0), (-1, ErrorCode.LEADER_NOT_AVAILABLE)]
        with pytest.raises(KafkaError, match="KAFKA_STORAGE_ERROR"):
            await Admin(connection).create_topic("foreign")
    assert (stranger / "00000000000000000000.log").read_bytes() == b"somebody's"
    assert read_topic_id(tmp_path / "t-1") == other


@pytest.mark.parametrize("version", range(14))
async def test_metadata_of_known_and_unknown(tmp_path: Path, version: int) -> None:
    settings = {"auto.create.topics.enable": "false"}
    async with running_node(tmp_path, settings) as node, await connect(node) as connection:
        await create(node, "t", 2)
        requested = tuple(MetadataRequestTopic(name=name) for name in ("t", "nowhere", "a/b"))
        answer = await connection.request(
            MetadataRequest(topics=requested), MetadataResponse, version=version
        )
        assert [t.error_code for t in answer.topics] == [
            0,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.INVALID_TOPIC_EXCEPTION,
        ]
        assert [(b.node_id, b.port) for b in answer.brokers] == [(0, node.services.address.port)]
        assert [p.leader_id for p in answer.topics[0].partitions] == [0, 0]
        every = MetadataRequest(topics=None if version else ())
        answer = await connection.request(every, MetadataResponse, version=version)
        assert [t.name for t in answer.topics] == ["t"]


async def test_metadata_by_id(node: Node, connection: BrokerConnection) -> None:
    await create(node, "t")
    known, unknown = node.services.topics.image.topics["t"].topic_id, uuid.uuid4()
    requested = tuple(MetadataRequestTopic(name=None, topic_id=i) for i in (known, unknown))
    answer = await connection.request(MetadataRequest(topics=requested), MetadataResponse)
    assert [(t.name, t.error_code) for t in answer.topics] == [
        ("t", 0),
        (None, ErrorCode.UNKNOWN_TOPIC_ID),
    ]


@pytest.mark.parametrize(("wanted", "allowed"), [(True, True), (True, False), (False, True)])
async def test_auto_creation_needs_both_sides(tmp_path: Path, wanted: bool, allowed: bool) -> None:
    settings = {"auto.create.topics.enable": str(wanted).lower()}
    async with running_node(tmp_path, settings) as node, await connect(node) as connection:
        requested = tuple(MetadataRequestTopic(name=name) for name in ("new", "a/b"))
        request = MetadataRequest(topics=requested, allow_auto_topic_creation=allowed)
        answer = await connection.request(request, MetadataResponse)
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert answer.topics[0].error_code == (0 if wanted and allowed else unknown)
        assert answer.topics[1].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


async def metadata_errors(connection: BrokerConnection, *names: str) -> list[int]:
    """Error codes of a metadata request by a producer that uses these topics."""
    topics = tuple(MetadataRequestTopic(name=name) for name in names)
    answer = await connection.request(MetadataRequest(topics=topics), MetadataResponse)
    return [topic.error_code for topic in answer.topics]


async def test_asking_creates_by_default_as_in_kafka(tmp_path: Path) -> None:
    """Connect's sources and Kafka Streams wait for it for ever otherwise."""
    async with running_node(tmp_path, {"num.partitions": "3"}) as node, await connect(node) as c:
        assert await metadata_errors(c, "new") == [0]
        (done,) = await produce(c, "new", (2, batch_of(b"a")))
        assert (done.error_code, done.base_offset) == (0, 0)
        assert await Admin(c).list_topics() != []


async def test_what_create_topics_refuses_is_not_made_by_asking(
    node: Node, connection: BrokerConnection
) -> None:
    """In metrics the two would be one."""
    await create(node, "one.two")
    collides = ErrorCode.INVALID_TOPIC_EXCEPTION
    assert await metadata_errors(connection, "one_two", "one.two") == [collides, 0]
    assert list(node.services.topics.image.topics) == ["one.two"]


async def test_a_coordinators_topic_is_made_as_that_makes_it(tmp_path: Path) -> None:
    """Else its records would expire, and groups would be in partitions that are never looked up."""
    settings = {
        "offsets.topic.num.partitions": "7", "transaction.state.log.num.partitions": "5",
        "num.partitions": "2",
    }  # fmt: skip
    async with running_node(tmp_path, settings) as node, await connect(node) as c:
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        wanted = (
            "__consumer_offsets", "__transaction_state", "__share_group_state",
            "__cluster_metadata",
        )  # fmt: skip
        assert await metadata_errors(c, *wanted) == [0, 0, unknown, unknown]
        topics = node.services.topics.image.topics
        assert {name: topic.partitions for name, topic in topics.items()} == {
            "__consumer_offsets": 7, "__transaction_state": 5,
        }  # fmt: skip
        assert all(topic.config.cleanup_policy == {"compact"} for topic in topics.values())


async def test_all_addresses_are_told_as_the_one_reached(tmp_path: Path) -> None:
    settings = {"listeners": "PLAINTEXT://0.0.0.0:0"}
    async with running_node(tmp_path, settings) as node:
        port = node.services.address.port
        async with await BrokerConnection.open("127.0.0.1", port) as connection:
            answer = await connection.request(MetadataRequest(topics=None), MetadataResponse)
        assert [(b.host, b.port) for b in answer.brokers] == [("127.0.0.1", port)]
