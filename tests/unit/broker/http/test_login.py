"""Who may read the pages of the HTTP port."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path

import pytest

from lapse.base.errors import ConfigError
from lapse.base.secret import Secret
from lapse.broker.http.login import Admission, HttpLogin, is_loopback
from lapse.broker.node import Node
from lapse.client.admin import Admin
from lapse.client.visitor import Visitor
from lapse.security.acls import CLUSTER_NAME, Operation, ResourceType
from lapse.security.scram import ScramMechanism, credential_of, salted_password
from tests.support.broker.running import create, running_node
from tests.support.broker.secured import JAAS, SECURED, WITH_ACLS, allow, set_acls
from tests.support.security.certificates import CHECKED_IN


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


# --- who looks at pages ---------------------------------------------------------------------------


async def visit(
    node: Node, header: str | None = None, address: str = "127.0.0.1"
) -> Visitor | Admission:
    return await HttpLogin(node.services).visit(header, address)


async def topics_of(visitor: Visitor | Admission) -> list[str]:
    """That the brokers show who visits."""
    assert isinstance(visitor, Visitor)
    async with visitor.cluster() as cluster:
        found = await Admin(await cluster.any_connection()).list_topics()
    return [topic.name for topic in found]


async def test_without_logins_pages_are_for_this_machine(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        await create(node, "t")
        for address in ("127.0.0.1", "::1", "::ffff:127.0.0.1"):
            visitor = await visit(node, address=address)
            assert await topics_of(visitor) == ["t"]
            assert isinstance(visitor, Visitor)
            assert (visitor.user, visitor.may_change) == ("", False)
        for address in ("10.0.0.1", "", "nobody", "::ffff:10.0.0.1", "127.0.0.1.evil"):
            assert await visit(node, address=address) is Admission.ELSEWHERE
            assert not is_loopback(address)


@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SSL"])
async def test_without_logins_nobody_is_who_the_broker_is(tmp_path: Path, protocol: str) -> None:
    """By TLS the broker would show its own certificate: whoever asks were the broker then."""
    listeners = f"{protocol}://127.0.0.1:0"
    settings = {
        **SECURED, "listeners": listeners, "lapse.http.login": "none",
        "ssl.keystore.type": "PEM", "ssl.keystore.location": str(CHECKED_IN / "server.pem"),
        "ssl.truststore.type": "PEM", "ssl.truststore.location": str(CHECKED_IN / "ca.crt"),
    }  # fmt: skip
    async with running_node(tmp_path, settings) as node:
        assert await visit(node) is Admission.ELSEWHERE


@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
async def test_who_logs_in_asks_brokers_as_himself(tmp_path: Path, protocol: str) -> None:
    """By PLAIN or SCRAM, whichever knows him; from wherever."""
    settings = {
        **WITH_ACLS, "listeners": f"PLAINTEXT://127.0.0.1:0,{protocol}://127.0.0.1:0",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": SECURED[JAAS],
        "ssl.keystore.type": "PEM", "ssl.keystore.location": str(CHECKED_IN / "server.pem"),
        "ssl.truststore.type": "PEM", "ssl.truststore.location": str(CHECKED_IN / "ca.crt"),
    }  # fmt: skip
    async with running_node(tmp_path, settings) as node:
        await create(node, "mine")
        await create(node, "others")
        sha = ScramMechanism.SHA_256
        kept = credential_of(sha, salted_password(sha, Secret("p"), b"s", 4096), b"s", 4096)
        await node.services.access.change_credentials({("carol", sha): kept})
        of_topic = (Operation.DESCRIBE, ResourceType.TOPIC, "mine")
        await set_acls(node, [allow(*of_topic), allow(*of_topic, "carol")])
        for user, password, seen in (
            ("admin", "a", ["mine", "others"]),
            ("alice", "b", ["mine"]),
            ("carol", "p", ["mine"]),
            ("bob", "c", []),
        ):
            visitor = await visit(node, basic(user, password), "10.0.0.1")
            assert await topics_of(visitor) == seen
            assert isinstance(visitor, Visitor)
            assert (visitor.user, visitor.may_change) == (user, True)
        assert await visit(node, basic("carol", "x")) is Admission.LOGIN
        assert await visit(node, None) is Admission.LOGIN


async def test_a_listener_whose_certificates_cannot_be_read_any_more(tmp_path: Path) -> None:
    store = tmp_path / "own.pem"
    store.write_bytes((CHECKED_IN / "server.pem").read_bytes())
    settings = {
        **SECURED, "listeners": "SASL_SSL://127.0.0.1:0",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": SECURED[JAAS],
        "ssl.keystore.type": "PEM", "ssl.keystore.location": str(store),
    }  # fmt: skip
    async with running_node(tmp_path / "data", settings) as node:
        store.unlink()
        with pytest.raises(ConfigError, match=r"listener SASL_SSL, by which pages ask brokers"):
            await visit(node, basic("alice", "b"))
