"""A broker that comes back, after a clean end or a kill, is as closed as it was.

Under each configuration everybody is tried at each listener and at the pages, before and after. Who
is let in is written beside it, so that the start is judged as well.
"""

from __future__ import annotations

import asyncio
import base64
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lapse.base.errors import LapseError
from lapse.base.secret import Secret
from lapse.client.admin import Admin
from lapse.client.connection import BrokerConnection
from lapse.client.login import login
from lapse.security.scram import SCRAM as SCRAM_MECHANISMS
from lapse.security.scram import salted_password
from lapse.testing.broker_process import BrokerProcess
from lapse.wire.schema.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialUpsertion,
)
from tests.support.security.certificates import certificates

SECONDS = 30
_LOGIN = "org.apache.kafka.common.security.{0}LoginModule required "
USERS = _LOGIN.format("plain.Plain") + 'user_admin="a" user_alice="b";'
ACLS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin",
}
SASL = {
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": USERS,
    "listener.name.sasl_ssl.plain.sasl.jaas.config": USERS,
    "connection.failed.authentication.delay.ms": "0",
}
SALT = b"some salt of 26 characters"
ITERATIONS = 4096


def _by_name(kind: str, mechanism: str, user: str, password: str) -> dict[str, str]:
    named = f'username="{user}" password="{password}";'
    return {"sasl.mechanism": mechanism, "sasl.jaas.config": _LOGIN.format(kind) + named}


PLAIN, SCRAM = "plain.Plain", "scram.Scram"
# Who tries, beside TLS and certificates.
NAMES: Mapping[str, dict[str, str]] = {
    "admin": _by_name(PLAIN, "PLAIN", "admin", "a"),
    "alice": _by_name(PLAIN, "PLAIN", "alice", "b"),
    "alice, wrong": _by_name(PLAIN, "PLAIN", "alice", "a"),
    "stranger": _by_name(PLAIN, "PLAIN", "mallory", ""),
    "bob by SCRAM": _by_name(SCRAM, "SCRAM-SHA-256", "bob", "c"),
    "bob, wrong": _by_name(SCRAM, "SCRAM-SHA-256", "bob", "b"),
    "bob by PLAIN": _by_name(PLAIN, "PLAIN", "bob", "c"),
}


@dataclass(frozen=True)
class Case:
    """A configuration, and who is told of the topic there.

    Attributes:
        told: peers that are let in and may describe it.
        not_told: peers that are let in and may not.
        pages: what `/metrics` answers to nobody, to the admin, and to a wrong password.
    """

    settings: Mapping[str, str]
    told: frozenset[str]
    not_told: frozenset[str] = frozenset()
    pages: tuple[int, int, int] = (200, 200, 200)


def _at(listener: str, *peers: str) -> frozenset[str]:
    return frozenset(f"{listener}: {peer}" for peer in peers)


WITH_LOGIN = (401, 200, 401)
CASES: Mapping[str, Case] = {
    "open": Case({"listeners": "PLAINTEXT://127.0.0.1:0"}, _at("PLAINTEXT", "nobody")),
    "logins": Case(
        {"listeners": "SASL_PLAINTEXT://127.0.0.1:0", **SASL},
        _at("SASL_PLAINTEXT", "admin", "alice", "bob by SCRAM"),
        pages=WITH_LOGIN,
    ),
    "logins and ACLs": Case(
        {"listeners": "SASL_PLAINTEXT://127.0.0.1:0", **SASL, **ACLS},
        _at("SASL_PLAINTEXT", "admin"),
        _at("SASL_PLAINTEXT", "alice", "bob by SCRAM"),
        pages=WITH_LOGIN,
    ),
    "TLS": Case(
        {"listeners": "SSL://127.0.0.1:0"},
        _at("SSL", "nobody", "a certificate", "a stranger's certificate"),
    ),
    "certificates": Case(
        {"listeners": "SSL://127.0.0.1:0", "ssl.client.auth": "required"},
        _at("SSL", "a certificate"),
    ),
    "logins by TLS, ACLs, and a plain listener": Case(
        {"listeners": "PLAINTEXT://127.0.0.1:0,SASL_SSL://127.0.0.1:0", **SASL, **ACLS},
        _at("SASL_SSL", "admin"),
        _at("SASL_SSL", "alice", "bob by SCRAM") | _at("PLAINTEXT", "nobody"),
        pages=WITH_LOGIN,
    ),
}


@dataclass
class House:
    """A broker under one configuration, and everybody who tries."""

    broker: BrokerProcess
    pem: Path
    listeners: dict[str, str] = field(default_factory=dict)

    def look(self) -> dict[str, str]:
        """Listener's name -> address."""
        names = [one.split("://")[0] for one in self.broker.settings["listeners"].split(",")]
        return self.broker.listeners or {names[0]: self.broker.bootstrap}

    def peers(self, listener: str) -> dict[str, dict[str, str]]:
        """Client settings of everybody, as that listener would have them, or as it would not."""
        over_tls = listener.endswith("SSL")
        tls = {
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.pem / "ca.crt"),
        } if over_tls else {}  # fmt: skip
        bare = {"security.protocol": "SSL" if over_tls else "PLAINTEXT", **tls}
        found = {"nobody": bare}
        if over_tls:
            for name, who in (
                ("client", "a certificate"),
                ("stranger", "a stranger's certificate"),
            ):
                shown = {"ssl.keystore.type": "PEM",
                         "ssl.keystore.location": str(self.pem / f"{name}.pem")}  # fmt: skip
                found[who] = {**bare, **shown}
            found["without TLS"] = {"security.protocol": "PLAINTEXT"}
        protocol = "SASL_SSL" if over_tls else "SASL_PLAINTEXT"
        return found | {n: {"security.protocol": protocol, **tls, **p} for n, p in NAMES.items()}

    def outcomes(self) -> dict[str, str]:
        """What becomes of everybody, everywhere."""
        found = {}
        for listener, address in self.look().items():
            for who, properties in self.peers(listener).items():
                found[f"{listener}: {who}"] = asyncio.run(outcome(address, properties))
        for who, token in (("nobody", ""), ("admin", "admin:a"), ("wrong", "admin:b")):
            found[f"pages: {who}"] = str(page(self.broker.http, token))
        return found


async def outcome(address: str, properties: Mapping[str, str]) -> str:
    """`out`, or the topics that are told."""
    try:
        async with await Admin.open(address, login=login(properties)) as admin:
            return f"in: {[topic.name for topic in await admin.list_topics()]}"
    except (LapseError, OSError):
        return "out"


def page(http: str, token: str) -> int:
    request = urllib.request.Request(f"http://{http}/metrics")
    if token:
        encoded = base64.b64encode(token.encode()).decode()
        request.add_header("Authorization", f"Basic {encoded}")
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as e:
        with e:
            return e.code


async def prepare(address: str, properties: Mapping[str, str]) -> None:
    """A topic t, and bob."""
    host, port = address.rsplit(":", 1)
    async with await BrokerConnection.open(host, int(port), login(properties)) as connection:
        await Admin(connection).create_topic("t", partitions=1)
        kind = SCRAM_MECHANISMS["SCRAM-SHA-256"]
        bob = ScramCredentialUpsertion(
            name="bob",
            mechanism=kind,
            iterations=ITERATIONS,
            salt=SALT,
            salted_password=salted_password(kind, Secret("c"), SALT, ITERATIONS),
        )
        request = AlterUserScramCredentialsRequest(deletions=(), upsertions=(bob,))
        answer = await connection.request(request, AlterUserScramCredentialsResponse)
        assert [r.error_code for r in answer.results] == [0]


@pytest.mark.parametrize("name", CASES)
def test_the_same_are_let_in_and_kept_out(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    pem = certificates(tmp_path)
    tls = {
        "ssl.keystore.type": "PEM", "ssl.keystore.location": str(pem / "server.pem"),
        "ssl.truststore.type": "PEM", "ssl.truststore.location": str(pem / "ca.crt"),
    }  # fmt: skip
    settings = {**(tls if "SSL://" in case.settings["listeners"] else {}), **case.settings}
    with BrokerProcess(tmp_path / "data", settings) as broker:
        house = House(broker, pem)
        listeners = house.look()
        # From now on these very ports.
        broker.settings["listeners"] = ",".join(f"{n}://{a}" for n, a in listeners.items())
        listener, who = min(case.told).split(": ")
        asyncio.run(prepare(listeners[listener], house.peers(listener)[who]))
        before = house.outcomes()
        assert {peer for peer, found in before.items() if found == "in: ['t']"} == case.told
        assert {peer for peer, found in before.items() if found == "in: []"} == case.not_told
        assert tuple(before[f"pages: {w}"] for w in ("nobody", "admin", "wrong")) == tuple(
            map(str, case.pages)
        )
        http = broker.http
        for end in (broker.stop, broker.kill):
            end()
            broker.start()
            assert (house.look(), broker.http) == (listeners, http)
            assert house.outcomes() == before
