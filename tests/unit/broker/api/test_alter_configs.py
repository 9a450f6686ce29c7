"""AlterConfigs: what is not named goes back to its default."""

from __future__ import annotations

import pytest

from lapse.base.errors import ErrorCode
from lapse.broker.node import Node
from lapse.client.connection import BrokerConnection
from lapse.wire.schema.alter_configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)
from tests.support.broker.running import create

TOPIC, BROKER = 2, 4


async def replace(
    connection: BrokerConnection,
    kind: int,
    name: str,
    *configs: tuple[str, str | None],
    validate_only: bool = False,
) -> AlterConfigsResourceResponse:
    resource = AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=tuple(AlterableConfig(name=key, value=value) for key, value in configs),
    )
    request = AlterConfigsRequest(resources=(resource,), validate_only=validate_only)
    (answer,) = (await connection.request(request, AlterConfigsResponse)).responses
    assert (answer.resource_type, answer.resource_name) == (kind, name)
    return answer


async def test_all_settings_are_replaced(node: Node, connection: BrokerConnection) -> None:
    await create(node, "t", retention_ms="5", segment_ms="6")
    topics = node.services.topics
    answer = await replace(connection, TOPIC, "t", ("segment.ms", "7"), ("retention.bytes", "8"))
    assert (answer.error_code, answer.error_message) == (0, None)
    assert topics.image.topics["t"].overrides == {"segment.ms": "7", "retention.bytes": "8"}
    (log,) = node.services.partitions.all()
    assert (log.config.segment_ms, log.config.retention_ms) == (7, 7 * 86_400_000)
    await replace(connection, TOPIC, "t", validate_only=True)
    assert topics.image.topics["t"].overrides
    await replace(connection, TOPIC, "t")
    assert topics.image.topics["t"].overrides == {}
    await replace(connection, BROKER, "", ("log.retention.ms", "9"), ("log.roll.ms", "9"))
    await replace(connection, BROKER, "", ("log.retention.ms", "10"))
    assert topics.settings.cluster == {"log.retention.ms": "10"}
    assert log.config.retention_ms == 10


REFUSED = {
    "bad": (TOPIC, "t", [("retention.ms", "x")], ErrorCode.INVALID_CONFIG, "allowed is"),
    "null": (TOPIC, "t", [("retention.ms", None)], ErrorCode.INVALID_REQUEST, "null"),
    "twice": (TOPIC, "t", [("segment.ms", "1")] * 2, ErrorCode.INVALID_REQUEST, "segment.ms"),
    "no topic": (TOPIC, "u", [], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "'u'"),
    "read-only": (BROKER, "0", [("listeners", "x")], ErrorCode.INVALID_REQUEST, "read-only"),
    "loggers": (8, "0", [], ErrorCode.INVALID_REQUEST, "resource type 8"),
}  # fmt: skip


async def test_refused_and_nothing_is_changed(node: Node, connection: BrokerConnection) -> None:
    await create(node, "t", retention_ms="5")
    before = node.services.topics.image
    for name, (kind, resource, configs, code, words) in REFUSED.items():
        answer = await replace(connection, kind, resource, *configs)
        assert answer.error_code == code, name
        assert words in (answer.error_message or ""), name
    assert node.services.topics.image is before


@pytest.mark.parametrize("version", range(3))
async def test_every_version(node: Node, connection: BrokerConnection, version: int) -> None:
    await create(node, "t")
    resource = AlterConfigsResource(resource_type=TOPIC, resource_name="t", configs=())
    request = AlterConfigsRequest(resources=(resource, resource), validate_only=False)
    answer = await connection.request(request, AlterConfigsResponse, version=version)
    assert [r.error_code for r in answer.responses] == [ErrorCode.INVALID_REQUEST] * 2
