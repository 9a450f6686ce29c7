"""Every API in every version that is served: the answer can be encoded and read."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from lapse.broker.node import Node
from lapse.client.connection import BrokerConnection
from lapse.wire.schema.api_versions import ApiVersionsRequest
from lapse.wire.schema.create_topics import CreatableTopic, CreateTopicsRequest
from lapse.wire.schema.delete_topics import DeleteTopicsRequest, DeleteTopicState
from lapse.wire.schema.fetch import FetchPartition, FetchRequest, FetchTopic
from lapse.wire.schema.find_coordinator import FindCoordinatorRequest
from lapse.wire.schema.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from lapse.wire.schema.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from lapse.wire.schema.metadata import MetadataRequest
from lapse.wire.versions import SERVED
from tests.unit.broker.admin_requests import ADMIN_REQUESTS
from tests.unit.broker.epoch_requests import epoch_request
from tests.unit.broker.group_requests import expected_error, group_requests
from tests.unit.broker.running import (
    batch_of,
    create,
    produce,
    produce_request,
    running_node,
)
from tests.unit.broker.security_requests import SECURITY_ERRORS, SECURITY_REQUESTS
from tests.unit.broker.transaction_requests import TRANSACTION_ERRORS, transaction_requests

ALL = [
    (key, version)
    for key, row in SERVED.items()
    for version in range(row.versions.low, row.advertised_max + 1)
]
# Coordinators' topics are made anew in hundreds of tests.
FEW_PARTITIONS = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with running_node(tmp_path / "data", FEW_PARTITIONS) as running:
        yield running


def request_for(key: int, version: int, node: Node) -> Any:
    """A request that succeeds, with an error beside it where an API answers per topic."""
    topic_id = node.services.topics.image.topics["t"].topic_id
    name = {"topic": "t"} if version < 13 else {"topic_id": topic_id}
    new = {"num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}
    by_state = key == 20 and version >= 6
    return {
        0: produce_request("t", (0, batch_of(b"a")), (9, batch_of(b"b"))),
        1: FetchRequest(
            replica_id=-1,
            max_wait_ms=0,
            min_bytes=1,
            topics=tuple(
                FetchTopic(
                    partitions=(
                        FetchPartition(partition=n, fetch_offset=0, partition_max_bytes=1 << 20),
                    ),
                    **name,  # type: ignore[arg-type]
                )
                for n in (0, 9)
            ),
        ),
        2: ListOffsetsRequest(
            replica_id=-1,
            topics=(
                ListOffsetsTopic(
                    name="t",
                    partitions=tuple(
                        ListOffsetsPartition(partition_index=n, timestamp=-1) for n in (0, 9)
                    ),
                ),
            ),
        ),
        3: MetadataRequest(topics=None if version else ()),
        10: FindCoordinatorRequest(
            **({"key": "g"} if version < 4 else {"coordinator_keys": ("g",)})  # type: ignore[arg-type]
        ),
        18: ApiVersionsRequest(client_software_name="test", client_software_version="1"),
        19: CreateTopicsRequest(
            topics=tuple(CreatableTopic(name=n, **new) for n in ("u", "a/b"))  # type: ignore[arg-type]
        ),
        20: DeleteTopicsRequest(
            topics=tuple(DeleteTopicState(name=n) for n in ("t", "x")) if by_state else (),
            topic_names=() if by_state else ("t", "x"),
            timeout_ms=1000,
        ),
        23: epoch_request((0, 0), (9, 0)),
        22: InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0),
        **ADMIN_REQUESTS,
        **group_requests(version),
        **transaction_requests(),
        **SECURITY_REQUESTS,
    }[key]


@pytest.mark.parametrize(("key", "version"), ALL)
async def test_is_answered(
    key: int, version: int, node: Node, connection: BrokerConnection
) -> None:
    await create(node, "t", 2)
    await produce(connection, "t", (0, batch_of(b"a")))
    request = request_for(key, version, node)
    answer = await connection.request(request, SERVED[key].response, version=version)
    errors = {**TRANSACTION_ERRORS, **SECURITY_ERRORS}
    expected = errors.get(key, expected_error(key, version))
    assert getattr(answer, "error_code", 0) == expected


async def test_every_producer_id_is_new(node: Node, connection: BrokerConnection) -> None:
    """KIP-360: also for a producer that names the one it had."""
    seen = set()
    for producer_id in (-1, 0, 0, 5):
        request = InitProducerIdRequest(
            transactional_id=None,
            transaction_timeout_ms=0,
            producer_id=producer_id,
            producer_epoch=min(producer_id, 3),
        )
        answer = await connection.request(request, InitProducerIdResponse)
        assert (answer.error_code, answer.producer_epoch) == (0, 0)
        seen.add(answer.producer_id)
    assert len(seen) == 4
