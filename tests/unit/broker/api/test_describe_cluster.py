"""DescribeCluster: this broker is all there is."""

from __future__ import annotations

from pathlib import Path

import pytest

from lapse.base.errors import ErrorCode
from lapse.broker.node import Node
from lapse.client.connection import BrokerConnection
from lapse.wire.schema.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from lapse.wire.schema.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from lapse.wire.schema.metadata import MetadataRequest, MetadataResponse
from tests.support.broker.running import create, running_node
from tests.support.broker.secured import address_of


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


ADVERTISED = {
    "listeners": "REACHED://127.0.0.1:0,NAMED://127.0.0.1:0,HIDDEN://127.0.0.1:0",
    "listener.security.protocol.map": "REACHED:PLAINTEXT,NAMED:PLAINTEXT,HIDDEN:PLAINTEXT",
    "advertised.listeners": "REACHED://:0,NAMED://kafka.example:443",
}


@pytest.mark.parametrize("listener", ["REACHED", "NAMED", "HIDDEN"])
async def test_each_listener_tells_its_own_address(tmp_path: Path, listener: str) -> None:
    """As do Metadata and FindCoordinator, of which two say that something is missing."""
    async with running_node(tmp_path, ADVERTISED) as node:
        await create(node, "t")
        reached = address_of(node, listener)
        async with await BrokerConnection.open(reached.host, reached.port) as connection:
            described = await ask(connection)
            metadata = [
                await connection.request(MetadataRequest(topics=None), MetadataResponse, version=v)
                for v in (5, 6)
            ]
            request = FindCoordinatorRequest(key="g")
            found = await connection.request(request, FindCoordinatorResponse, version=3)
    told = {"REACHED": [(reached.host, reached.port)], "NAMED": [("kafka.example", 443)]}
    expected = told.get(listener, [])
    assert [(b.host, b.port) for b in described.brokers] == expected
    assert [[(b.host, b.port) for b in m.brokers] for m in metadata] == [expected] * 2
    assert [(found.host, found.port)] == (expected or [("", -1)])
    leads = [[(p.leader_id, p.error_code) for p in m.topics[0].partitions] for m in metadata]
    unknown = [ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.LISTENER_NOT_FOUND]
    assert leads == ([[(0, 0)]] * 2 if expected else [[(-1, code)] for code in unknown])
    assert found.error_code == (0 if expected else ErrorCode.COORDINATOR_NOT_AVAILABLE)


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
