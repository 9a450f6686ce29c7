"""A running node and a connection to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lapse.broker.node import Node
from lapse.client.connection import BrokerConnection
from tests.support.broker.running import connect, running_node


@pytest.fixture
async def node(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Node]:
    async with running_node(tmp_path / "data", getattr(request, "param", None)) as running:
        yield running


@pytest.fixture
async def connection(node: Node) -> AsyncIterator[BrokerConnection]:
    async with await connect(node) as opened:
        yield opened
