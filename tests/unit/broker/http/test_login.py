"""Who may read the pages of the HTTP port."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path

import pytest

from lapse.base.errors import ConfigError
from lapse.base.secret import Secret
from lapse.broker.http.login import Admission, HttpLogin
from lapse.broker.node import Node
from lapse.security.acls import CLUSTER_NAME, Operation, ResourceType
from lapse.security.scram import ScramMechanism, credential_of, salted_password
from tests.support.broker.running import running_node
from tests.support.broker.secured import SECURED, WITH_ACLS, allow, set_acls


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


async def admission(node: Node, header: str | None) -> Admission:
    return await HttpLogin(node.services).admit(header, "127.0.0.1")


async def test_nobody_logs_in_where_there_are_no_users(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        assert await admission(node, None) is Admission.GRANTED


async def test_a_login_that_nobody_could_pass_is_refused(tmp_path: Path) -> None:
    settings = {"lapse.http.login": "required", "lapse.http.port": "0"}
    with pytest.raises(ConfigError, match=r"lapse\.http\.login=required"):
        async with running_node(tmp_path, settings):
            pass


async def test_it_may_be_switched_off(tmp_path: Path) -> None:
    async with running_node(tmp_path, {**SECURED, "lapse.http.login": "none"}) as node:
        assert await admission(node, None) is Admission.GRANTED


@pytest.mark.parametrize(
    ("header", "found"),
    [
        (None, Admission.LOGIN),
        (basic("alice", "b"), Admission.GRANTED),
        (basic("carol", "p:q"), Admission.GRANTED),  # by SCRAM
        (basic("carol", "p"), Admission.LOGIN),
        (basic("alice", "c"), Admission.LOGIN),
        (basic("nobody", "b"), Admission.LOGIN),
        (basic("", ""), Admission.LOGIN),
        ("Basic !!", Admission.LOGIN),
        ("Basic /w==", Admission.LOGIN),
        ("Bearer " + basic("alice", "b").split()[1], Admission.LOGIN),
        ("", Admission.LOGIN),
    ],
)
async def test_users_of_the_listeners_come_in(
    tmp_path: Path, header: str | None, found: Admission
) -> None:
    async with running_node(tmp_path, SECURED) as node:
        sha = ScramMechanism.SHA_256
        salted = salted_password(sha, Secret("p:q"), b"salt", 4096)
        kept = credential_of(sha, salted, b"salt", 4096)
        await node.services.access.change_credentials({("carol", sha): kept})
        assert await admission(node, header) is found
        refused = header is not None and found is Admission.LOGIN
        assert node.services.counters.logins_refused == ({"HTTP": 1} if refused else {})


async def test_failed_logins_are_held_back_one_after_the_other(tmp_path: Path) -> None:
    delay = {"connection.failed.authentication.delay.ms": "150"}
    async with running_node(tmp_path, {**SECURED, **delay}) as node:
        login, now = HttpLogin(node.services), asyncio.get_running_loop().time
        begun = now()
        tries = (login.admit(basic("alice", "wrong"), "127.0.0.1") for _ in range(3))
        assert await asyncio.gather(*tries) == [Admission.LOGIN] * 3
        took = now() - begun
        assert took >= 3 * 0.15
        assert await login.admit(basic("alice", "b"), "127.0.0.1") is Admission.GRANTED
        assert now() - begun - took < 3 * 0.15


async def test_guesses_themselves_are_limited(tmp_path: Path) -> None:
    """Together with those at the listeners; what is no login at all counts for its address."""
    few = {
        "connection.failed.authentication.delay.ms": "0",
        "lapse.login.failures.per.minute": "4",
    }
    async with running_node(tmp_path, {**SECURED, **few}) as node:
        login = HttpLogin(node.services)
        tries = [await login.admit(basic("alice", "wrong"), "10.0.0.1") for _ in range(3)]
        assert tries == [Admission.LOGIN, Admission.LOGIN, Admission.LATER]
        assert await login.admit(basic("alice", "b"), "10.0.0.1") is Admission.LATER
        for _ in range(5):  # what succeeds is not counted
            assert await login.admit(basic("bob", "c"), "10.0.0.1") is Admission.GRANTED
        assert await login.admit(basic("alice", "b"), "10.0.0.2") is Admission.GRANTED
        assert node.services.attempts.counts.refused == 2
        odd = [await login.admit("Basic !!", "10.0.0.3") for _ in range(3)]
        assert odd == [Admission.LOGIN, Admission.LOGIN, Admission.LATER]


async def test_a_mechanism_that_no_listener_has_lets_nobody_in(tmp_path: Path) -> None:
    async with running_node(tmp_path, SECURED) as node:
        sha = ScramMechanism.SHA_512
        kept = credential_of(sha, salted_password(sha, Secret("p"), b"s", 4096), b"s", 4096)
        await node.services.access.change_credentials({("carol", sha): kept})
        assert await admission(node, basic("carol", "p")) is Admission.LOGIN


async def test_with_acls_the_cluster_must_be_theirs_to_describe(tmp_path: Path) -> None:
    async with running_node(tmp_path, WITH_ACLS) as node:
        assert await admission(node, basic("admin", "a")) is Admission.GRANTED
        assert await admission(node, basic("alice", "b")) is Admission.FORBIDDEN
        await set_acls(node, [allow(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)])
        assert await admission(node, basic("alice", "b")) is Admission.GRANTED
