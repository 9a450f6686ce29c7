"""IncrementalAlterConfigs: operations, their effect on logs, and refusals."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from lapse.base.config import TopicConfig
from lapse.base.errors import ErrorCode
from lapse.base.ids import TopicPartition
from lapse.broker.node import Node
from lapse.client.admin import Admin
from lapse.client.connection import BrokerConnection
from lapse.client.settings import (
    ALL_BROKERS,
    BROKER,
    TOPIC,
    ConfigChange,
    Operation,
    Resource,
)
from lapse.metadata.sqlite import STORE, SqliteStore
from lapse.wire.schema.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from tests.support.broker.running import batch_of, connect, create, produce, running_node

T, U = Resource(TOPIC, "t"), Resource(TOPIC, "u")
THIS, ALL = Resource(BROKER, "0"), Resource(BROKER, ALL_BROKERS)
POLICY = "cleanup.policy"
SET, DELETE, APPEND, SUBTRACT = Operation


async def alter(connection: BrokerConnection, resource: Resource, *changes: ConfigChange) -> None:
    done = await Admin(connection).incremental_alter_configs({resource: changes})
    assert done == {resource: None}


async def value(
    connection: BrokerConnection, resource: Resource, name: str
) -> tuple[str | None, int]:
    found = await Admin(connection).describe_configs([resource], [name])
    entry = found[resource].entries[name]
    return entry.value, entry.source


def log_config(node: Node, topic: str = "t") -> TopicConfig:
    """The settings that the log itself uses."""
    return node.services.partitions.get(TopicPartition(topic, 0)).config


async def test_a_setting_that_an_older_version_took_hinders_no_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_node(tmp_path) as node:
        await create(node, "t")
    store = SqliteStore(tmp_path / STORE, str)
    store.set_broker_settings("", {"log.retention.ms": "0", "log.roll.ms": "9"})
    store.close()
    async with running_node(tmp_path) as node, await connect(node) as connection:
        assert "log.retention.ms=0: allowed is -1" in caplog.text
        assert (log_config(node).retention_ms, log_config(node).segment_ms) == (7 * 86_400_000, 9)
        assert await value(connection, ALL, "log.retention.ms") == ("0", 3)
        await alter(connection, ALL, ConfigChange("log.retention.ms", None, DELETE))
        assert node.services.topics.settings.cluster == {"log.roll.ms": "9"}


# --- topics ---------------------------------------------------------------------------------------


async def test_operations_and_a_restart(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, await connect(node) as connection:
        await create(node, "t", 2, retention_ms="5")
        await alter(connection, T, ConfigChange("segment.bytes", "2000000"),
                    ConfigChange(POLICY, "compact"))  # fmt: skip
        assert (log_config(node).segment_bytes, log_config(node).retention_ms) == (2_000_000, 5)
        await alter(connection, T, ConfigChange(POLICY, "delete,compact", APPEND))
        assert await value(connection, T, POLICY) == ("compact,delete", 1)
        assert log_config(node).cleanup_policy == {"compact", "delete"}
        await alter(connection, T, ConfigChange(POLICY, "delete , other", SUBTRACT))
        assert log_config(node).cleanup_policy == {"compact"}
        await alter(connection, T, ConfigChange("retention.ms", None, DELETE),
                    ConfigChange("segment.ms", None, DELETE))  # fmt: skip
        assert await value(connection, T, "retention.ms") == (str(7 * 86_400_000), 5)
        in_force = node.services.topics.image.topics["t"].config
        logs = node.services.partitions.all()
        assert {log.config for log in logs} == {in_force} == {log_config(node)}
    async with running_node(tmp_path) as node:
        assert log_config(node) == in_force
        overrides = node.services.topics.image.topics["t"].overrides
        assert overrides == {"segment.bytes": "2000000", POLICY: "compact"}


async def test_the_log_goes_by_it_at_once(node: Node, connection: BrokerConnection) -> None:
    await create(node, "t")
    await alter(connection, T, ConfigChange("max.message.bytes", "10"))
    (refused,) = await produce(connection, "t", (0, batch_of(b"a" * 100)))
    assert refused.error_code == ErrorCode.MESSAGE_TOO_LARGE
    await alter(connection, T, ConfigChange("max.message.bytes", None, DELETE))
    (done,) = await produce(connection, "t", (0, batch_of(b"a" * 100)))
    assert done.error_code == 0


async def test_a_list_begins_as_the_one_in_force(tmp_path: Path) -> None:
    """Not as Kafka's default: an APPEND to compact must not remove compact."""
    settings = {"log.cleanup.policy": "compact"}
    async with running_node(tmp_path, settings) as node, await connect(node) as connection:
        await create(node, "t")
        await alter(connection, T, ConfigChange(POLICY, "delete", APPEND))
        assert log_config(node).cleanup_policy == {"compact", "delete"}
        await alter(connection, ALL, ConfigChange("log.cleanup.policy", "delete", APPEND))
        assert node.services.topics.settings.cluster == {"log.cleanup.policy": "compact,delete"}


REFUSED = {
    "bad value": (T, [ConfigChange("retention.ms", "soon")], ErrorCode.INVALID_CONFIG,
                  "retention.ms=soon: allowed is a whole number from -1"),
    "unknown": (T, [ConfigChange("retention", "1")], ErrorCode.INVALID_CONFIG,
                "unknown setting retention"),
    "a broker's name": (T, [ConfigChange("log.retention.ms", "1")], ErrorCode.INVALID_CONFIG,
                        "unknown setting log.retention.ms"),
    "lags": (T, [ConfigChange("min.compaction.lag.ms", "9"),
                 ConfigChange("max.compaction.lag.ms", "8")], ErrorCode.INVALID_CONFIG,
             "min.compaction.lag.ms=9: allowed is at most max.compaction.lag.ms, which is 8"),
    "no list": (T, [ConfigChange("retention.ms", "1", APPEND)], ErrorCode.INVALID_CONFIG,
                "retention.ms: APPEND is for lists"),
    "unknown list": (T, [ConfigChange("policy", "1", SUBTRACT)], ErrorCode.INVALID_CONFIG,
                     "unknown setting policy"),
    "null": (T, [ConfigChange("retention.ms", None)], ErrorCode.INVALID_REQUEST,
             "null is no value for retention.ms"),
    "null in a list": (T, [ConfigChange(POLICY, None, APPEND)], ErrorCode.INVALID_REQUEST, "null"),
    "twice": (T, [ConfigChange("retention.ms", "1"), ConfigChange("retention.ms", "2")],
              ErrorCode.INVALID_REQUEST, "more than once: retention.ms"),
    "operation": (T, [ConfigChange("retention.ms", "1", 9)], ErrorCode.INVALID_REQUEST,  # type: ignore[arg-type]
                  "retention.ms: there is no operation 9"),
    "no topic": (U, [ConfigChange("retention.ms", "1")], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                 "no topic 'u'"),
    "no name": (Resource(TOPIC, ""), [ConfigChange("retention.ms", "1")],
                ErrorCode.INVALID_REQUEST, "name one"),
    "loggers": (Resource(8, "0"), [ConfigChange("root", "INFO")], ErrorCode.INVALID_REQUEST,
                "resource type 8"),
    "another broker": (Resource(BROKER, "1"), [ConfigChange("message.max.bytes", "1")],
                       ErrorCode.INVALID_REQUEST, "this is broker 0"),
    "read-only": (THIS, [ConfigChange("num.partitions", "2")], ErrorCode.INVALID_REQUEST,
                  "num.partitions: read-only"),
    "read-only hours": (ALL, [ConfigChange("log.retention.hours", "2")],
                        ErrorCode.INVALID_REQUEST, "log.retention.hours: read-only"),
    "unknown broker setting": (ALL, [ConfigChange("num.io.threads", "2")],
                               ErrorCode.INVALID_CONFIG, "unknown setting num.io.threads"),
    "bad broker value": (ALL, [ConfigChange("message.max.bytes", "-1")],
                         ErrorCode.INVALID_CONFIG, "message.max.bytes=-1: allowed is"),
    "a topic's other lag": (ALL, [ConfigChange("log.cleaner.min.compaction.lag.ms", "101")],
                            ErrorCode.INVALID_CONFIG, "with the settings of topic t"),
    "no such codec": (T, [ConfigChange("compression.type", "zstd"),
                          ConfigChange("message.format.version", "0.10.0")],
                      ErrorCode.INVALID_CONFIG, "compression.type=zstd: allowed with"),
    "no such codec there": (ALL, [ConfigChange("compression.type", "zstd")],
                            ErrorCode.INVALID_CONFIG,
                            "with the settings of topic old: compression.type=zstd: allowed with"),
}  # fmt: skip


async def test_refused_and_nothing_is_changed(node: Node, connection: BrokerConnection) -> None:
    await create(node, "t", retention_ms="5", max_compaction_lag_ms="100")
    await create(node, "old", message_format_version="0.10.0")
    before, admin = node.services.topics.image, Admin(connection)
    for name, (resource, changes, code, words) in REFUSED.items():
        also = [ConfigChange("segment.ms", "9")] if resource.kind == TOPIC else []
        done = await admin.incremental_alter_configs({resource: [*also, *changes]})
        error = done[resource]
        assert error is not None, name
        assert (error.code, words in str(error)) == (code, True), (name, str(error))
        assert node.services.topics.image is before, name
    assert node.services.topics.settings.cluster == {}
    assert log_config(node).retention_ms == 5


async def test_all_topics_in_the_way_are_named(node: Node, connection: BrokerConnection) -> None:
    for name in "gfedcba":
        await create(node, name, message_format_version="0.10.0")
    await create(node, "z")
    admin, zstd = Admin(connection), ConfigChange("compression.type", "zstd")
    error = (await admin.incremental_alter_configs({ALL: [zstd]}))[ALL]
    assert "with the settings of topics a, b, c, d, e and 2 more: compression" in str(error)
    for name in "abcde":
        await alter(connection, Resource(TOPIC, name), ConfigChange("compression.type", "lz4"))
    error = (await admin.incremental_alter_configs({ALL: [zstd]}))[ALL]
    assert "with the settings of topics f, g: compression" in str(error)


async def test_resources_stand_for_themselves(node: Node, connection: BrokerConnection) -> None:
    await create(node, "t")
    await create(node, "u")
    done = await Admin(connection).incremental_alter_configs({
        T: [ConfigChange("retention.ms", "x")], U: [ConfigChange("retention.ms", "6")],
    })  # fmt: skip
    assert [done[T] is None, done[U]] == [False, None]
    assert log_config(node, "u").retention_ms == 6


async def test_a_resource_named_twice_is_left_alone(
    node: Node, connection: BrokerConnection
) -> None:
    await create(node, "t")
    config = AlterableConfig(name="retention.ms", config_operation=0, value="6")
    one = AlterConfigsResource(resource_type=TOPIC, resource_name="t", configs=(config,))
    request = IncrementalAlterConfigsRequest(resources=(one, one), validate_only=False)
    answer = await connection.request(request, IncrementalAlterConfigsResponse)
    assert [r.error_code for r in answer.responses] == [ErrorCode.INVALID_REQUEST] * 2
    assert node.services.topics.image.topics["t"].overrides == {}


async def test_validate_only_judges(node: Node, connection: BrokerConnection) -> None:
    await create(node, "t")
    before = node.services.topics.image
    for resource, name, good, bad in (
        (T, "retention.ms", "6", "x"), (ALL, "log.retention.ms", "6", "x"),
    ):  # fmt: skip
        for text, refused in ((good, False), (bad, True)):
            changes = {resource: [ConfigChange(name, text)]}
            done = await Admin(connection).incremental_alter_configs(changes, validate_only=True)
            assert (done[resource] is not None) == refused
    assert node.services.topics.image is before
    assert node.services.topics.settings.cluster == {}


async def test_changes_at_once_are_all_kept(node: Node, connection: BrokerConnection) -> None:
    await create(node, "t")
    names = ["retention.ms", "retention.bytes", "segment.ms", "segment.jitter.ms",
             "file.delete.delay.ms", "delete.retention.ms"]  # fmt: skip
    connections = [await connect(node) for _ in names]
    await asyncio.gather(*(
        alter(one, T, ConfigChange(name, "77"))
        for one, name in zip(connections, names, strict=True)
    ))  # fmt: skip
    assert node.services.topics.image.topics["t"].overrides == dict.fromkeys(names, "77")
    for one in connections:
        one.close()


async def test_a_store_that_fails_changes_nothing(node: Node, connection: BrokerConnection) -> None:
    await create(node, "t")
    node.services.topics._store.close()
    for resource, name in ((T, "retention.ms"), (ALL, "log.retention.ms")):
        done = await Admin(connection).incremental_alter_configs({
            resource: [ConfigChange(name, "6")]
        })  # fmt: skip
        error = done[resource]
        assert error is not None
        assert error.code == ErrorCode.KAFKA_STORAGE_ERROR
        assert log_config(node).retention_ms == 7 * 86_400_000


# --- brokers --------------------------------------------------------------------------------------


async def test_a_brokers_settings_reach_logs_without_their_own(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, await connect(node) as connection:
        await create(node, "t")
        await create(node, "u", retention_ms="5")
        await alter(connection, ALL, ConfigChange("log.retention.ms", "8"),
                    ConfigChange("log.cleaner.delete.retention.ms", "9"))  # fmt: skip
        assert [log_config(node, n).retention_ms for n in "tu"] == [8, 5]
        assert [log_config(node, n).delete_retention_ms for n in "tu"] == [9, 9]
        await alter(connection, THIS, ConfigChange("log.retention.ms", "7"))
        assert [log_config(node, n).retention_ms for n in "tu"] == [7, 5]
        await create(node, "v")
        assert log_config(node, "v").retention_ms == 7
        assert await value(connection, Resource(TOPIC, "v"), "retention.ms") == ("7", 2)
    async with running_node(tmp_path) as node, await connect(node) as connection:
        assert [log_config(node, n).retention_ms for n in "tuv"] == [7, 5, 7]
        await alter(connection, THIS, ConfigChange("log.retention.ms", None, DELETE))
        assert log_config(node).retention_ms == 8
        await alter(connection, ALL, ConfigChange("log.retention.ms", None, DELETE))
        assert log_config(node).retention_ms == 7 * 86_400_000
        assert log_config(node).delete_retention_ms == 9
        assert await value(connection, T, "retention.ms") == (str(7 * 86_400_000), 5)


@pytest.mark.parametrize("static", [{"log.retention.hours": "2"}, {"log.retention.ms": "3"}])
async def test_what_is_set_while_running_hides_the_file(
    tmp_path: Path, static: dict[str, str]
) -> None:
    async with running_node(tmp_path, static) as node, await connect(node) as connection:
        await create(node, "t")
        before = log_config(node).retention_ms
        await alter(connection, ALL, ConfigChange("log.retention.ms", "8"))
        assert log_config(node).retention_ms == 8
        await alter(connection, ALL, ConfigChange("log.retention.ms", None, DELETE))
        assert log_config(node).retention_ms == before
