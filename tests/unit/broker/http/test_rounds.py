"""Rounds at the HTTP port: what may be read, what may be changed, and by whom."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lapse.base.fs import RealFs
from lapse.broker.http.rounds import BODY_BYTES_MAX
from lapse.broker.node import Node
from lapse.lifecycle.round.cancel import is_cancelled
from lapse.lifecycle.status.pauses import PAUSES, read_pauses
from lapse.lifecycle.status.reports import (
    Queue,
    ServiceProgress,
    UnderWay,
    write_progress,
    write_queue,
)
from lapse.lifecycle.status.wishes import read_wishes
from lapse.security.acls import CLUSTER_NAME, Operation, ResourceType
from tests.support.broker.running import running_node
from tests.support.broker.secured import SECURED, WITH_ACLS, allow, set_acls
from tests.unit.broker.http.test_login import basic

HTTP = {"lapse.http.port": "0"}
FORGED = {"X-Forwarded-For": "10.9.8.7", "X-Real-IP": "10.9.8.7", "Forwarded": "for=10.9.8.7"}
JSON = {"Content-Type": "application/json"}
ADMIN, ALICE = basic("admin", "a"), basic("alice", "b")


async def ask(
    node: Node,
    path: str,
    body: object = None,
    *,
    user: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> tuple[int, Any]:
    """Status and body, decoded where it is JSON; a POST where there is something to say."""
    data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(f"http://{node._http}{path}", data)
    for name, text in (JSON if headers is None else headers).items():
        request.add_header(name, text)
    if user is not None:
        request.add_header("Authorization", user)

    def answered() -> tuple[int, str, bytes]:
        try:
            with urllib.request.urlopen(request) as answer:
                return answer.status, answer.headers.get_content_type(), answer.read()
        except urllib.error.HTTPError as e:
            return e.code, e.headers.get_content_type(), e.read()

    status, kind, text = await asyncio.to_thread(answered)
    return status, json.loads(text) if kind == "application/json" else text.decode()


def serve(data: Path, now_ms: int) -> None:
    write_progress(RealFs(), data, ServiceProgress("running", "a-0", 1, now_ms))
    for name in "ab":
        (data / f"{name}-0").mkdir()
    under_way = tuple(UnderWay(f"{n}-0", "r1", str(data / f"{n}-0")) for n in "ab")
    write_queue(RealFs(), data, Queue(now_ms, 2, ("a-0", "b-0"), (), under_way))


async def test_who_may_read_sees_what_goes_on(tmp_path: Path) -> None:
    async with running_node(tmp_path, HTTP) as node:
        status, answer = await ask(node, "/rounds")
        assert (status, answer["running"], answer["service"]) == (200, False, None)
        serve(tmp_path, node.services.clock.now_ms())
        status, answer = await ask(node, "/rounds")
        assert (answer["running"], answer["service"]["state"]) == (True, "running")
        assert [r["log"] for r in answer["queue"]["rounds"]] == ["a-0", "b-0"]


async def test_without_logins_nothing_is_changed(tmp_path: Path) -> None:
    async with running_node(tmp_path, HTTP) as node:
        for verb in ("pause", "resume", "cancel", "clean"):
            status, text = await ask(node, f"/rounds/{verb}", {})
            assert (status, "use `lapse rounds`" in text) == (403, True)
            assert (await ask(node, f"/rounds/{verb}"))[0] == 405
        assert not (tmp_path / PAUSES).exists()


async def test_pause_resume_and_cancel(tmp_path: Path) -> None:
    async with running_node(tmp_path, {**SECURED, **HTTP}) as node:
        serve(tmp_path, node.services.clock.now_ms())
        assert (await ask(node, "/rounds/pause", {}))[0] == 401
        command = {"logs": ["a-0"], "for_ms": 60_000, "reason": "a new disk"}
        status, answer = await ask(node, "/rounds/pause", command, user=ADMIN)
        [pause] = answer["pauses"]
        assert (status, pause["log"], pause["reason"]) == (200, "a-0", "a new disk")
        assert pause["until_ms"] - pause["since_ms"] == 60_000
        assert not is_cancelled(tmp_path / "a-0", "r1")
        status, answer = await ask(node, "/rounds/cancel", {"logs": ["b-0"]}, user=ADMIN)
        assert (status, [one["log"] for one in answer]) == (200, ["b-0"])
        assert is_cancelled(tmp_path / "b-0", "r1")
        await ask(node, "/rounds/pause", {"now": True}, user=ADMIN)
        assert is_cancelled(tmp_path / "a-0", "r1")
        status, answer = await ask(node, "/rounds/resume", b"", user=ADMIN)
        assert (status, answer["pauses"]) == (200, [])
        status, answer = await ask(node, "/rounds/clean", {"logs": ["a-0"]}, user=ADMIN)
        assert (status, [one["log"] for one in answer]) == (200, ["a-0"])
        assert [*read_wishes(tmp_path, node.services.clock.now_ms())] == ["a-0"]
        assert await ask(node, "/rounds/clean", {}, user=ADMIN) == (200, [])


async def test_to_change_something_takes_alter(tmp_path: Path) -> None:
    async with running_node(tmp_path, {**WITH_ACLS, **HTTP}) as node:
        await set_acls(node, [allow(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)])
        assert (await ask(node, "/rounds", user=ALICE))[0] == 200
        assert (await ask(node, "/rounds/pause", {}, user=ALICE))[0] == 403
        await set_acls(node, [allow(Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME)])
        assert (await ask(node, "/rounds/pause", {}, user=ALICE))[0] == 200


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"{", JSON, 400),
        (b"[]", JSON, 400),
        (b"\xff", JSON, 400),
        (b'{"log": "a-0"}', JSON, 400),
        (b'{"for_ms": 0}', JSON, 400),
        (b" " * (BODY_BYTES_MAX + 1), JSON, 400),
        (b"{}", {"Content-Type": "text/plain"}, 415),  # as another site's form might
    ],
)
async def test_what_is_no_request_is_refused(
    tmp_path: Path, body: bytes, headers: dict[str, str], status: int
) -> None:
    async with running_node(tmp_path, {**SECURED, **HTTP}) as node:
        found, _ = await ask(node, "/rounds/pause", body, user=ADMIN, headers=headers)
        assert found == status
        assert list(read_pauses(tmp_path, 0)) == []


async def test_a_client_is_where_its_connection_comes_from(tmp_path: Path) -> None:
    """What it says of itself in headers moves it past no ACL, and gives it no guess more."""
    few = {"lapse.login.failures.per.minute": "4", **WITH_ACLS, **HTTP}
    async with running_node(tmp_path, few) as node:
        there = replace(
            allow(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME), host="10.9.8.7"
        )
        await set_acls(node, [there])
        assert (await ask(node, "/rounds", user=ALICE, headers=FORGED))[0] == 403
        await set_acls(node, [replace(there, host="127.0.0.1")])
        assert (await ask(node, "/rounds", user=ALICE, headers=FORGED))[0] == 200
        codes = []
        for n in range(4):
            headers = {
                name: text.replace("10.9.8.7", f"10.9.8.{n}") for name, text in FORGED.items()
            }
            codes.append((await ask(node, "/rounds", user=basic("bob", "x"), headers=headers))[0])
        assert codes == [401, 401, 429, 429]
