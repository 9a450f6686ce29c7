"""DescribeConfigs: values, where they come from, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from lapse.base.config import BROKER_SETTINGS, TOPIC_SETTINGS
from lapse.base.errors import ErrorCode
from lapse.broker.node import Node
from lapse.client.admin import Admin
from lapse.client.connection import BrokerConnection
from lapse.client.settings import ALL_BROKERS, BROKER, TOPIC, ConfigChange, Resource
from lapse.wire.schema.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
)
from tests.support.broker.running import AS_ASKED, connect, create, running_node

T = Resource(TOPIC, "t")
THIS = Resource(BROKER, "0")
ALL = Resource(BROKER, ALL_BROKERS)


async def ask(  # every entry as it is on the wire
    connection: BrokerConnection, *resources: Resource, version: int | None = None, **fields: bool
) -> list[tuple[DescribeConfigsResourceResult, ...]]:
    asked = tuple(
        DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
        for kind, name in resources
    )
    request = DescribeConfigsRequest(resources=asked, **fields)
    answer = await connection.request(request, DescribeConfigsResponse, version=version)
    assert [r.error_code for r in answer.results] == [0] * len(resources)
    return [result.configs for result in answer.results]


async def test_sources_and_synonyms_in_their_order(tmp_path: Path) -> None:
    settings = {"log.retention.hours": "3", "num.partitions": "2"}
    async with running_node(tmp_path, settings) as node, await connect(node) as connection:
        admin = Admin(connection)
        await create(node, "t", retention_ms="5", cleanup_policy="compact")
        changes = {
            ALL: [ConfigChange("log.retention.ms", "7"), ConfigChange("message.max.bytes", "99")],
            THIS: [ConfigChange("log.retention.ms", "6")],
        }
        assert set((await admin.incremental_alter_configs(changes)).values()) == {None}
        found = await admin.describe_configs([T, THIS, ALL], synonyms=True, documentation=True)
        topic, broker, brokers = (found[r].entries for r in (T, THIS, ALL))
        assert set(topic) == {s.name for s in TOPIC_SETTINGS}
        retention = topic["retention.ms"]
        assert (retention.value, retention.source, retention.kind) == ("5", 1, 5)
        assert retention.synonyms == (
            ("retention.ms", "5", 1), ("log.retention.ms", "6", 2), ("log.retention.ms", "7", 3),
            ("log.retention.hours", "3", 4), ("log.retention.hours", "168", 5),
        )  # fmt: skip
        assert (topic["max.message.bytes"].value, topic["max.message.bytes"].source) == ("99", 3)
        assert (topic["segment.bytes"].source, topic["cleanup.policy"].kind) == (5, 7)
        assert "expires by age" in (topic["cleanup.policy"].documentation or "")
        assert {s.name for s in BROKER_SETTINGS} <= set(broker)
        assert (broker["num.partitions"].value, broker["num.partitions"].source) == ("2", 4)
        assert broker["num.partitions"].read_only
        own = broker["log.retention.ms"]
        assert (own.value, own.source, own.read_only) == ("6", 2, False)
        assert {name: (e.value, e.source) for name, e in brokers.items()} == {
            "log.retention.ms": ("7", 3), "message.max.bytes": ("99", 3),
        }  # fmt: skip


async def test_what_is_not_asked_for_is_not_told(node: Node, connection: BrokerConnection) -> None:
    await create(node, "t", retention_ms="5")
    ((entry, *_),) = await ask(connection, T)
    assert (entry.synonyms, entry.documentation) == ((), None)
    ((entry, *_),) = await ask(connection, T, include_synonyms=True, include_documentation=True)
    assert len(entry.synonyms) == 1
    assert entry.documentation
    ((entry, *_),) = await ask(connection, T, version=2, include_synonyms=True)
    assert (len(entry.synonyms), entry.config_type) == (1, 0)


async def test_names_pick_some(node: Node, connection: BrokerConnection) -> None:
    await create(node, "t")
    admin = Admin(connection)
    for resource, names, expected in (
        (T, ["retention.ms", "nonsense"], {"retention.ms"}),
        (THIS, ["retention.ms", "log.retention.ms"], {"log.retention.ms"}),
        (T, ["nonsense"], set()),
        (T, [], {s.name for s in TOPIC_SETTINGS}),  # as in Kafka
    ):
        found = await admin.describe_configs([resource], names)
        assert set(found[resource].entries) == expected


async def test_a_resource_asked_for_twice_is_told_once(
    node: Node, connection: BrokerConnection
) -> None:
    await create(node, "t")
    for keys, told in (
        ((("retention.ms",), ("segment.ms", "retention.ms")), {"retention.ms", "segment.ms"}),
        ((("retention.ms",), None), {s.name for s in TOPIC_SETTINGS}),
        (((), ("retention.ms",)), {s.name for s in TOPIC_SETTINGS}),
    ):
        asked = tuple(
            DescribeConfigsResource(resource_type=TOPIC, resource_name="t", configuration_keys=k)
            for k in keys
        )
        request = DescribeConfigsRequest(resources=asked)
        (one,) = (await connection.request(request, DescribeConfigsResponse)).results
        assert {config.name for config in one.configs} == told


REFUSED = {
    "no such topic": (TOPIC, "u", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no topic 'u'"),
    "no topic name": (TOPIC, "a/b", ErrorCode.INVALID_TOPIC_EXCEPTION, "a/b"),
    "all topics": (TOPIC, "", ErrorCode.INVALID_REQUEST, "name one"),
    "another broker": (BROKER, "7", ErrorCode.INVALID_REQUEST, "this is broker 0"),
    "no broker": (BROKER, "x", ErrorCode.INVALID_REQUEST, "this is broker 0"),
    "many digits": (BROKER, "9" * 9999, ErrorCode.INVALID_REQUEST, "this is broker 0"),
    "loggers": (8, "0", ErrorCode.INVALID_REQUEST, "resource type 8"),
    "nothing": (-3, "t", ErrorCode.INVALID_REQUEST, "resource type -3"),
}


async def test_refused_one_by_one(node: Node, connection: BrokerConnection) -> None:
    await create(node, "t")
    asked = [T, *(Resource(kind, name) for kind, name, _, _ in REFUSED.values())]
    found = await Admin(connection).describe_configs(asked)
    assert found[T].error is None
    for kind, name, code, words in REFUSED.values():
        refused = found[Resource(kind, name)]
        assert refused.error is not None
        assert (refused.error.code, refused.entries) == (code, {})
        assert words in str(refused.error)


async def test_a_broker_tells_the_settings_of_its_file_alone(
    node: Node, connection: BrokerConnection
) -> None:
    """What was set where: log.dirs by the test, all the rest by nobody."""
    found = await Admin(connection).describe_configs([THIS, ALL])
    set_ones = {n: e.source for n, e in found[THIS].entries.items() if e.source != 5}
    names = ("log.dirs", "listeners", "lapse.http.port", *AS_ASKED)
    assert set_ones == dict.fromkeys(names, 4)
    assert found[ALL].entries == {}


@pytest.mark.parametrize("resource", [T, THIS])
async def test_no_type_is_unknown(
    node: Node, connection: BrokerConnection, resource: Resource
) -> None:
    await create(node, "t")
    (entries,) = await ask(connection, resource)
    assert all(entry.config_type for entry in entries)
