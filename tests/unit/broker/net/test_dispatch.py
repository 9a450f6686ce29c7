"""Every API in every version that is served: the answer can be encoded and read."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lapse.base.errors import ErrorCode
from lapse.broker.api.table import SERVED
from lapse.broker.node import Node
from lapse.client.connection import BrokerConnection
from lapse.wire.schema.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tests.support.broker.every_request import ALL, FEW_PARTITIONS, request_for
from tests.support.broker.group_requests import expected_error
from tests.support.broker.running import (
    batch_of,
    create,
    produce,
    running_node,
)
from tests.support.broker.security_requests import SECURITY_ERRORS
from tests.support.broker.transaction_requests import TRANSACTION_ERRORS


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    at_once = {**FEW_PARTITIONS, "group.initial.rebalance.delay.ms": "0"}
    async with running_node(tmp_path / "data", at_once) as running:
        yield running


# No service is on another machine unless somebody says so.
OWN_ERRORS = {10_002: ErrorCode.INVALID_REQUEST}


@pytest.mark.parametrize(("key", "version"), ALL)
async def test_is_answered(
    key: int, version: int, node: Node, connection: BrokerConnection
) -> None:
    await create(node, "t", 2)
    await produce(connection, "t", (0, batch_of(b"a")))
    request = request_for(key, version, node)
    answer = await connection.request(request, SERVED[key].response, version=version)
    errors = {**TRANSACTION_ERRORS, **SECURITY_ERRORS, **OWN_ERRORS}
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
