"""A node with its pages, and a plain HTTP client for them."""

from __future__ import annotations

import asyncio
import base64
import http.client
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from lapse.base.clock import SystemClock
from lapse.base.config import broker_config
from lapse.base.fs import RealFs
from lapse.broker.node import Node
from lapse.log.env import LogEnv
from lapse.web.app import routes


class Answer(NamedTuple):
    """What came back."""

    status: int
    headers: Mapping[str, str]
    text: str


@asynccontextmanager
async def node_with_pages(
    data: Path, settings: Mapping[str, str] | None = None
) -> AsyncIterator[Node]:
    """As `lapse broker` wires it."""
    properties = {
        "log.dirs": str(data),
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "lapse.http.port": "0",
        **(settings or {}),
    }
    clock = SystemClock()
    pages = partial(routes, clock=clock)
    node = Node(broker_config(properties), LogEnv(RealFs(), clock), pages=pages)
    try:
        await node.start()
        yield node
    finally:
        await node.stop()


def basic(user: str, password: str) -> dict[str, str]:
    """The header of a login."""
    token = base64.b64encode(f"{user}:{password}".encode()).decode()
    return {"Authorization": f"Basic {token}"}


async def ask(
    node: Node,
    path: str,
    headers: Mapping[str, str] | None = None,
    *,
    method: str = "GET",
    body: str | None = None,
) -> Answer:
    """One request, in a thread; nothing is followed, no header is added but Host."""
    assert node._http is not None
    host, port = node._http.host, node._http.port

    def answered() -> Answer:
        connection = http.client.HTTPConnection(host, port, timeout=60)
        try:
            connection.request(method, path, body, dict(headers or {}))
            response = connection.getresponse()
            text = response.read().decode()
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, text)
        finally:
            connection.close()

    return await asyncio.to_thread(answered)


FORM = {"Content-Type": "application/x-www-form-urlencoded", "Sec-Fetch-Site": "same-origin"}
