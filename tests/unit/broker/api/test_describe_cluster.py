"""DescribeCluster: this broker is all there is."""

from __future__ import annotations

from pathlib import Path

import pytest

from lapse.base.errors import ErrorCode
from lapse.broker.node import Node
from lapse.client.connection import BrokerConnection
from lapse.wire.schema.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from tests.unit.broker.running import running_node


async def ask(
    connection: BrokerConnection, version: int | None = None, **fields: int
) -> DescribeClusterResponse:
    request = DescribeClusterRequest(include_cluster_authorized_operations=False, **fields)
    return await connection.request(request, DescribeClusterResponse, version=version)


@pytest.mark.parametrize("version", range(3))
async def test_the_one_broker(node: Node, connection: BrokerConnection, version: int) -> None:
    answer = await ask(connection, version)
    assert (answer.error_code, answer.controller_id, answer.endpoint_type) == (0, 0, 1)
    assert answer.cluster_id == node.services.topics.image.cluster_id
    (broker,) = answer.brokers
    assert (broker.broker_id, broker.host, broker.port, broker.rack, broker.is_fenced) == (
        0, "127.0.0.1", node.services.address.port, None, False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("endpoints", "code"),
    [(2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (0, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE),
     (-1, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)],
)  # fmt: skip
async def test_other_endpoints(
    node: Node, connection: BrokerConnection, endpoints: int, code: ErrorCode
) -> None:
    assert node.is_serving
    answer = await ask(connection, endpoint_type=endpoints)
    assert (answer.error_code, answer.brokers) == (code, ())


async def test_all_addresses_are_told_as_the_one_reached(tmp_path: Path) -> None:
    settings = {"listeners": "PLAINTEXT://0.0.0.0:0", "node.id": "7"}
    async with running_node(tmp_path, settings) as node:
        port = node.services.address.port
        async with await BrokerConnection.open("127.0.0.1", port) as connection:
            answer = await ask(connection)
    (broker,) = answer.brokers
    assert (broker.broker_id, broker.host, answer.controller_id) == (7, "127.0.0.1", 7)
