"""What a client can make the broker touch: files of its own directories, and nobody else.

Names that lead elsewhere are put into every API and every page, by somebody who may do everything.
"""

from __future__ import annotations

import asyncio
import base64
import json
import socket
from collections.abc import AsyncIterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from lapse.broker.access.listeners import Address
from lapse.broker.api.table import APIS
from lapse.broker.node import Node
from lapse.client.connection import ConnectionLost
from tests.hostile.watch import watched
from tests.support.broker.every_request import ALL, FEW_PARTITIONS, request_for
from tests.support.broker.running import connect, create, running_node
from tests.support.broker.secured import PASSWORDS, SECURED

NAMES = [
    "..", "../../escaped", "/etc/passwd", "t-0/../../escaped", "a\0b", "a\nb: c", "%2e%2e%2f",
    "..\\..\\escaped", "\\\\host\\share", "http://127.0.0.1:1/", "é" * 40, "a" * 250, "",
    "$(touch escaped)", "{0.__class__}", "%s%n",
]  # fmt: skip
# Good names, of files that lie where topics do.
OURS = ["control.sock", ".lapse", ".lock", "meta.properties", "a.cleaned", "b-0.1f-delete"]
NEWEST = {key: max(v for k, v in ALL if k == key) for key in APIS}
GIVEN = {"t", "u", "g", "x", "m", "alice"}  # the names in the tests' own requests


def renamed(message: Any, name: str) -> Any:
    """The request with another name wherever it has one."""
    if isinstance(message, str):
        return name if message in GIVEN else message
    if isinstance(message, tuple):
        return tuple(renamed(item, name) for item in message)
    if is_dataclass(message) and not isinstance(message, type):
        found = {f.name: renamed(getattr(message, f.name), name) for f in fields(message)}
        return replace(message, **found)
    return message


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    settings = {**FEW_PARTITIONS, "auto.create.topics.enable": "true"}
    async with running_node(tmp_path / "data", settings) as running:
        await create(running, "t", 2)
        yield running


@pytest.mark.parametrize("name", [*NAMES, *OURS])
async def test_no_name_leads_out_of_the_data_directory(
    name: str, node: Node, tmp_path: Path
) -> None:
    """Every API, in its newest version; what becomes of the request is another test's matter."""
    connection = await connect(node)
    asked = 0
    for key in APIS:
        if connection.is_lost:
            connection = await connect(node)
        if "t" not in node.services.topics.image.topics:
            await create(node, "t", 2)
        request = renamed(request_for(key, NEWEST[key], node), name)
        with watched(tmp_path / "data") as watch:
            try:
                await connection.request(request, APIS[key].response, version=NEWEST[key])
            except ConnectionLost:
                assert key in {17, 36}, f"{APIS[key].api.name} lost its connection"
        assert not watch.breaches, f"{APIS[key].api.name}: {watch.breaches}"
        asked += 1
    connection.close()
    assert asked == len(APIS)
    assert names_in(tmp_path) == ["data"]


async def test_the_watch_sees_what_it_is_to_see(node: Node, tmp_path: Path) -> None:
    with watched(tmp_path / "data") as watch:
        (tmp_path / "escaped").write_bytes(b"")
        (tmp_path / "data" / "t-0" / "x").write_bytes(b"")
        with pytest.raises(OSError), socket.create_connection(("127.0.0.1", 1)):  # noqa: PT011
            pass
        await create(node, "u")
    found = " ".join(watch.breaches)
    assert "escaped" in found
    assert "socket.connect" in found
    assert len(watch.breaches) > 2  # the test's own client, for one
    assert watch.seen > len(watch.breaches)


# --- pages ---------------------------------------------------------------------------------------

TARGETS = [
    "/../../../../etc/passwd", "//etc/passwd", "/%2e%2e/%2e%2e/%2e%2e/etc/passwd",
    "/..%2f..%2fetc%2fpasswd", "/health/../metrics", "/health/%2e%2e/metrics", "/health//metrics",
    "//metrics", "/metrics/", "/metrics;x", "/METRICS", "/rounds/../metrics", "/metrics%00",
    "/health\\..\\metrics", "/static/../metrics", "http://127.0.0.1:1/metrics", "*", "/docs",
    "/openapi.json", "/debug", "/rounds?url=http://127.0.0.1:1/", "/health?file=/etc/passwd",
]  # fmt: skip
HEADERS = (
    "X-Forwarded-For: 127.0.0.1", "X-Original-URL: /metrics", "X-Rewrite-URL: /metrics",
    "X-HTTP-Method-Override: POST", "Forwarded: for=127.0.0.1", "X-Forwarded-Host: a",
)  # fmt: skip


def http_of(node: Node) -> Address:
    host, port = node.ready_line().split("http=")[1].split()[0].rsplit(":", 1)
    return Address(host, int(port))


def sent(address: Address, head: str, body: bytes = b"") -> bytes:
    """One request over a bare connection, and all of its answer."""
    with socket.create_connection((address.host, address.port), timeout=30) as peer:
        peer.sendall(head.encode() + body)
        found = b""
        while part := peer.recv(1 << 16):
            found += part
    return found


def request(method: str, target: str, *headers: str) -> str:
    lines = [f"{method} {target} HTTP/1.1", "Host: lapse", "Connection: close", *headers]
    return "\r\n".join(lines) + "\r\n\r\n"


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "CONNECT"])
async def test_no_page_is_reached_by_another_name(method: str, tmp_path: Path) -> None:
    """Without a login there is `/health` alone, however it is asked for."""
    settings = {**SECURED, "lapse.http.port": "0"}
    async with running_node(tmp_path / "data", settings) as node:
        address = http_of(node)
        for target in TARGETS:
            found = await asyncio.to_thread(sent, address, request(method, target, *HEADERS))
            status = int(found.split()[1]) if found else 400
            is_health = target.startswith("/health?") and method in {"GET", "HEAD"}
            assert (status == 200) == is_health, (target, found[:300])
            assert b"lapse_" not in found, target
            assert b"root:" not in found, target
            location = [line for line in found.split(b"\r\n") if line.lower().startswith(b"loc")]
            assert all(b"127.0.0.1:1" not in line for line in location), location


@pytest.mark.parametrize("name", [n for n in NAMES if n])
async def test_a_page_that_changes_something_writes_where_it_is_to(
    name: str, tmp_path: Path
) -> None:
    """By a user who may: a log's name, and a reason, are never a path."""
    settings = {**SECURED, "lapse.http.port": "0"}
    token = base64.b64encode(f"admin:{PASSWORDS['admin']}".encode()).decode()
    body = json.dumps({"logs": [name], "reason": name}).encode()
    headers = (
        f"Authorization: Basic {token}", "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    )  # fmt: skip
    async with running_node(tmp_path / "data", settings) as node:
        for page in ("pause", "cancel", "resume"):
            head = request("POST", f"/rounds/{page}", *headers)
            found = await asyncio.to_thread(sent, http_of(node), head, body)
            assert int(found.split()[1]) < 500, found[:300]
    assert names_in(tmp_path) == ["data"]


# --- what is advertised --------------------------------------------------------------------------


async def test_nobody_is_asked_whether_an_advertised_address_is_there(tmp_path: Path) -> None:
    """It is told to clients and no more: a start does not look it up, nor connect."""
    with watched(tmp_path / "data") as watch:
        settings = {"advertised.listeners": "PLAINTEXT://metadata.internal:80"}
        async with running_node(tmp_path / "data", settings) as node:
            assert node.services.entrances
    peers = [b for b in watch.breaches if b.startswith(("socket.connect", "socket.getaddr"))]
    assert not [b for b in peers if "metadata.internal" in b or "socket.connect" in b]
