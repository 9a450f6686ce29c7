"""Logins by SASL over a bare connection: what comes before, what ends it, what is held back."""

from __future__ import annotations

import asyncio
import gc
import logging
import ssl
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from prometheus_client.exposition import generate_latest

from lapse.base.readable import SHORT_MAX
from lapse.base.secret import Secret
from lapse.broker.http.metrics import registry
from lapse.broker.net.connection import Connection
from lapse.broker.node import Node
from lapse.client.connection import BrokerConnection, ConnectionLost
from lapse.security.sasl import RECEIVE_BYTES_MAX
from lapse.security.scram import ScramClient, ScramMechanism, credential_of, salted_password
from lapse.wire.envelope import encode_request
from lapse.wire.schema.api_versions import ApiVersionsRequest, ApiVersionsResponse
from lapse.wire.schema.metadata import MetadataRequest, MetadataResponse
from lapse.wire.schema.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from lapse.wire.schema.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from tests.support.broker.running import batch_of, create, produce, running_node, until
from tests.support.broker.secured import (
    SECURED,
    USERS,
    address_of,
    anonymous,
    log_in,
    logged_in,
)
from tests.support.security.certificates import CHECKED_IN

FAILED, ILLEGAL_STATE, UNSUPPORTED = 58, 34, 33


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with running_node(tmp_path / "data", SECURED) as running:
        yield running


async def test_before_a_login_only_versions_may_be_asked(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    async with await anonymous(node) as connection:
        asked = ApiVersionsRequest(client_software_name="a", client_software_version="1")
        assert (await connection.request(asked, ApiVersionsResponse)).error_code == 0
        with pytest.raises(ConnectionLost):
            await connection.request(MetadataRequest(topics=None), MetadataResponse)
    assert "Unexpected Kafka request of type 3" in caplog.text


async def test_after_it_everything_may(node: Node) -> None:
    async with await logged_in(node, "alice") as connection:
        answer = await connection.request(MetadataRequest(topics=None), MetadataResponse)
        port = address_of(node).port
        assert [b.port for b in answer.brokers] == [port]  # of the listener it came by
        assert node.services.counters.logins == {"SASL_PLAINTEXT": 1}


@pytest.mark.parametrize(("user", "password"), [("alice", "wrong"), ("nobody", "b"), ("", "")])
async def test_a_failed_login_ends_the_connection(
    node: Node, caplog: pytest.LogCaptureFixture, user: str, password: str
) -> None:
    async with await anonymous(node) as connection:
        answer = await log_in(connection, user, password)
        assert answer.error_code == FAILED
        with pytest.raises(ConnectionLost):
            await connection.request(MetadataRequest(topics=None), MetadataResponse)
    assert "login failed at listener SASL_PLAINTEXT" in caplog.text
    assert "wrong" not in caplog.text
    (entrance,) = [e for e in node.services.entrances if e.sasl is not None]
    assert entrance.failures.counts.failures == 1


async def test_failed_logins_are_held_back_one_after_the_other(tmp_path: Path) -> None:
    delay = {"connection.failed.authentication.delay.ms": "150"}
    async with running_node(tmp_path, {**SECURED, **delay}) as node:
        connections = [await anonymous(node) for _ in range(3)]
        begun = asyncio.get_running_loop().time()
        answers = await asyncio.gather(*(log_in(c, "alice", "wrong") for c in connections))
        took = asyncio.get_running_loop().time() - begun
        assert [a.error_code for a in answers] == [FAILED] * 3
        assert took >= 3 * 0.15
        async with await logged_in(node, "alice"):
            assert asyncio.get_running_loop().time() - begun - took < 0.15 * 3


HELD_BACK = {"connection.failed.authentication.delay.ms": "4567"}  # no other sleep is as long


def held_back(monkeypatch: pytest.MonkeyPatch) -> tuple[asyncio.Event, asyncio.Event]:
    """Failed logins wait for the second event, and set the first."""
    waits, go_on = asyncio.Event(), asyncio.Event()
    real = asyncio.sleep

    async def sleep(seconds: float) -> None:
        if seconds != 4.567:
            await real(seconds)
            return
        waits.set()
        await go_on.wait()

    monkeypatch.setattr("lapse.broker.request.sasl_login.asyncio.sleep", sleep)
    return waits, go_on


TLS = {
    "listeners": "PLAINTEXT://127.0.0.1:0,SASL_SSL://127.0.0.1:0",
    "listener.name.sasl_ssl.plain.sasl.jaas.config": USERS,
    "ssl.keystore.type": "PEM",
    "ssl.keystore.location": str(CHECKED_IN / "server.pem"),
}


@pytest.mark.parametrize("has_begun", [False, True])
async def test_what_may_not_be_asked_during_a_login_is_a_failed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_begun: bool
) -> None:
    """It is counted, and held back; else it would be the way to try again at once."""
    waits, go_on = held_back(monkeypatch)
    async with running_node(tmp_path, {**SECURED, **HELD_BACK}) as node:
        reader, writer = await raw(node)
        if has_begun:
            writer.write(encoded(SaslHandshakeRequest(mechanism="PLAIN"), 1))
            await read_frame(reader)
        writer.write(encoded(MetadataRequest(topics=None), 9))
        async with asyncio.timeout(10):
            await waits.wait()
        (entrance,) = [e for e in node.services.entrances if e.sasl is not None]
        assert entrance.failures.counts.failures == 1
        assert not reader.at_eof()
        go_on.set()
        assert await reader.read() == b""
        writer.close()


async def test_a_handshake_in_the_middle_of_a_login_is_answered(node: Node) -> None:
    async with await anonymous(node) as connection:
        request = SaslHandshakeRequest(mechanism="PLAIN")
        codes = []
        for _ in range(2):
            answer = await connection.request(request, SaslHandshakeResponse)
            codes.append(answer.error_code)
        assert codes == [0, ILLEGAL_STATE]
        with pytest.raises(ConnectionLost):
            await connection.request(request, SaslHandshakeResponse)
    (entrance,) = [e for e in node.services.entrances if e.sasl is not None]
    assert entrance.failures.counts.failures == 1


@pytest.mark.parametrize("listener", ["SASL_PLAINTEXT", "SASL_SSL"])
async def test_who_is_held_back_fills_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listener: str
) -> None:
    """What came with the wrong password is let go of, and what follows it is not read."""
    by_tls = listener == "SASL_SSL"
    settings = {**SECURED, **HELD_BACK, **(TLS if by_tls else {})}
    context = ssl.create_default_context(cafile=str(CHECKED_IN / "ca.crt")) if by_tls else None
    waits, go_on = held_back(monkeypatch)
    async with running_node(tmp_path, settings) as node:
        address = address_of(node, listener)
        reader, writer = await asyncio.open_connection(
            address.host, address.port, ssl=context, server_hostname="localhost" if by_tls else None
        )
        writer.write(encoded(SaslHandshakeRequest(mechanism="PLAIN"), 1))
        await read_frame(reader)
        more = struct.pack(">i", 100_000) + bytes(100_000)
        token = encoded(SaslAuthenticateRequest(auth_bytes=b"\0alice\0wrong"), 1)
        writer.write(token + 3 * more + more[:-1])
        await waits.wait()
        made = [c for c in gc.get_objects() if isinstance(c, Connection) and c._is_made]
        [served] = [c for c in made if c._services is node.services]
        assert not served._transport.is_reading()
        for _ in range(100):  # as asyncio hands on what it had read before
            size = min(len(served.get_buffer(-1)), len(more))
            served.get_buffer(-1)[:size] = more[:size]
            served.buffer_updated(size)
        held = node.services.request_bytes
        assert (held.whole, held.partial) == (len(token) - 4, 0)
        go_on.set()
        assert FAILED.to_bytes(2) in await read_frame(reader)
        await until(lambda: not node.services.counters.connections)
        writer.transport.abort()


FEW = {
    "connection.failed.authentication.delay.ms": "0",
    "lapse.login.failures.per.minute": "4",  # two at once; then one in fifteen seconds
}


async def test_guesses_themselves_are_limited(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Over as many connections as one likes; and a right one is not told that it is wrong."""
    async with running_node(tmp_path, {**SECURED, **FEW}) as node:
        for _ in range(2):
            async with await anonymous(node) as connection:
                assert (await log_in(connection, "alice", "wrong")).error_code == FAILED
        for password in ("wrong", "b"):
            async with await anonymous(node) as connection:
                with pytest.raises(ConnectionLost):
                    await log_in(connection, "alice", password)
        assert "lapse.login.failures.per.minute" in caplog.text
        told = generate_latest(registry(node.services)).decode()
        assert "lapse_broker_logins_untried_total 2.0" in told
        assert "lapse_broker_logins_waited_ms_total 0.0" in told
        async with await logged_in(node, "bob"):
            pass  # another user, from the same address


async def test_by_scram_the_proof_is_the_guess(tmp_path: Path) -> None:
    async with running_node(tmp_path, {**SECURED, **FEW}) as node:
        sha = ScramMechanism.SHA_256
        kept = credential_of(sha, salted_password(sha, Secret("p"), b"salt", 4096), b"salt", 4096)
        await node.services.access.change_credentials({("carol", sha): kept})

        async def guess(password: str) -> int:
            client = ScramClient(sha, "carol", Secret(password), "nonce")
            async with await anonymous(node) as connection:
                shaken = SaslHandshakeRequest(mechanism="SCRAM-SHA-256")
                await connection.request(shaken, SaslHandshakeResponse)
                challenge = b""
                while (message := client.respond(challenge)) is not None:
                    answer = await connection.request(
                        SaslAuthenticateRequest(auth_bytes=message), SaslAuthenticateResponse
                    )
                    challenge = bytes(answer.auth_bytes)
                    if answer.error_code:
                        return int(answer.error_code)
                return 0

        assert [await guess("p") for _ in range(5)] == [0] * 5  # what succeeds is not counted
        assert [await guess("wrong") for _ in range(2)] == [FAILED] * 2
        with pytest.raises(ConnectionLost):
            await guess("p")


async def test_what_is_over_its_budget_for_a_while_only_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    real = asyncio.sleep

    async def noted(seconds: float) -> None:
        slept.append(seconds)
        await real(0)

    async with running_node(
        tmp_path, {**SECURED, **FEW, "lapse.login.failures.per.minute": "20"}
    ) as node:
        for _ in range(10):
            async with await anonymous(node) as connection:
                await log_in(connection, "alice", "wrong")
        monkeypatch.setattr("lapse.broker.request.sasl_login.asyncio.sleep", noted)
        async with await logged_in(node, "alice"):
            monkeypatch.setattr("lapse.broker.request.sasl_login.asyncio.sleep", real)
        assert any(0 < seconds <= 3 for seconds in slept)
        assert node.services.attempts.counts.waited_ms > 0


@pytest.mark.parametrize("way", ["SCRAM", "mechanism"])
async def test_who_has_no_login_writes_no_long_lines(
    node: Node, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    """A name of half a megabyte, as it is written, was one of two."""
    async with await anonymous(node) as connection:
        mechanism = "\x01" * 30_000 if way == "mechanism" else "SCRAM-SHA-256"
        shaken = SaslHandshakeRequest(mechanism=mechanism)
        await connection.request(shaken, SaslHandshakeResponse)
        if way == "SCRAM":
            first = SaslAuthenticateRequest(auth_bytes=b"n,,n=" + b"\x01" * 500_000 + b",r=nonce")
            answer = await connection.request(first, SaslAuthenticateResponse)
            nonce = bytes(answer.auth_bytes).split(b",")[0]
            proof = b"c=biws," + nonce + b",p=" + b"A" * 43 + b"="
            await connection.request(
                SaslAuthenticateRequest(auth_bytes=proof), SaslAuthenticateResponse
            )
        why = "UNSUPPORTED_SASL_MECHANISM" if way == "mechanism" else "no such user"
        await until(lambda: why in caplog.text)
    longest = max(len(record.getMessage()) for record in caplog.records)
    assert longest < SHORT_MAX + 100


async def test_an_unknown_mechanism_is_told_which_there_are(node: Node) -> None:
    async with await anonymous(node) as connection:
        request = SaslHandshakeRequest(mechanism="GSSAPI")
        answer = await connection.request(request, SaslHandshakeResponse)
        assert (answer.error_code, answer.mechanisms) == (UNSUPPORTED, ("PLAIN", "SCRAM-SHA-256"))
        with pytest.raises(ConnectionLost):
            await connection.request(request, SaslHandshakeResponse)


async def test_a_listener_without_sasl_says_so(node: Node) -> None:
    address = node.services.address
    async with await BrokerConnection.open(address.host, address.port) as connection:
        shaken = await connection.request(
            SaslHandshakeRequest(mechanism="PLAIN"), SaslHandshakeResponse
        )
        assert (shaken.error_code, shaken.mechanisms) == (ILLEGAL_STATE, ())
        answer = await connection.request(
            SaslAuthenticateRequest(auth_bytes=b"\0alice\0b"), SaslAuthenticateResponse
        )
        assert answer.error_code == ILLEGAL_STATE


async def raw(node: Node) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    address = address_of(node)
    return await asyncio.open_connection(address.host, address.port)


def encoded(message: object, version: int) -> bytes:
    parts = encode_request(message, version=version, correlation_id=1, client_id="c")
    return b"".join(bytes(part) for part in parts)  # type: ignore[arg-type]


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(size)


@pytest.mark.parametrize(("token", "succeeds"), [(b"\0alice\0b", True), (b"\0alice\0x", False)])
async def test_bare_tokens_follow_handshake_0(node: Node, token: bytes, succeeds: bool) -> None:
    reader, writer = await raw(node)
    writer.write(encoded(SaslHandshakeRequest(mechanism="PLAIN"), 0))
    await read_frame(reader)
    writer.write(struct.pack(">i", len(token)) + token)
    if succeeds:
        assert await read_frame(reader) == b""
        writer.write(encoded(MetadataRequest(topics=None), 9))
        assert await read_frame(reader)
    else:
        assert await reader.read() == b""  # Kafka has no answer for it either
    writer.close()


async def test_a_large_frame_needs_a_login(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    reader, writer = await raw(node)
    writer.write(struct.pack(">i", RECEIVE_BYTES_MAX + 1))
    assert await reader.read() == b""
    writer.close()
    assert "frame announces" in caplog.text
    await create(node, "t")
    async with await logged_in(node, "alice") as connection:
        (answer,) = await produce(connection, "t", (0, batch_of(bytes(RECEIVE_BYTES_MAX + 1))))
        assert answer.error_code == 0


async def scram_exchange(node: Node, messages: list[bytes]) -> list[SaslAuthenticateResponse]:
    """Logs alice in where there are no messages, and keeps hers; else plays them."""
    recorded = bool(messages)
    client = ScramClient(ScramMechanism.SHA_256, "alice", Secret("s"), "nonce")
    answers = []
    async with await anonymous(node) as connection:
        await connection.request(
            SaslHandshakeRequest(mechanism="SCRAM-SHA-256"), SaslHandshakeResponse
        )
        challenge = b""
        for step in range(2):
            if not recorded:
                following = client.respond(challenge)
                assert following is not None
                messages.append(following)
            answer = await connection.request(
                SaslAuthenticateRequest(auth_bytes=messages[step]), SaslAuthenticateResponse
            )
            answers.append(answer)
            challenge = bytes(answer.auth_bytes)
    return answers


async def test_a_recorded_scram_exchange_fails_when_it_is_played_again(node: Node) -> None:
    salted = salted_password(ScramMechanism.SHA_256, Secret("s"), b"salt", 4096)
    kept = credential_of(ScramMechanism.SHA_256, salted, b"salt", 4096)
    await node.services.access.change_credentials({("alice", ScramMechanism.SHA_256): kept})
    messages: list[bytes] = []
    assert [a.error_code for a in await scram_exchange(node, messages)] == [0, 0]
    assert [a.error_code for a in await scram_exchange(node, messages)] == [0, FAILED]


async def ask_for_ever(connection: BrokerConnection) -> None:
    while True:
        await connection.request(MetadataRequest(topics=None), MetadataResponse)
        await asyncio.sleep(0.02)


async def test_a_session_ends_unless_the_client_logs_in_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    name = "listener.name.sasl_plaintext.plain.connections.max.reauth.ms"
    async with (
        running_node(tmp_path, {**SECURED, name: "300"}) as node,
        await anonymous(node) as connection,
    ):
        answer = await log_in(connection, "alice", "b")
        assert answer.session_lifetime_ms == 300
        again = await log_in(connection, "alice", "b")
        assert again.error_code == 0
        await connection.request(MetadataRequest(topics=None), MetadataResponse)
        with pytest.raises(ConnectionLost):
            await ask_for_ever(connection)
    assert "has expired" in caplog.text


async def test_another_user_may_not_take_a_session_over(tmp_path: Path) -> None:
    async with (
        running_node(tmp_path, {**SECURED, "connections.max.reauth.ms": "60000"}) as node,
        await logged_in(node, "alice") as connection,
    ):
        answer = await log_in(connection, "bob", "c")
        assert answer.error_code == FAILED
        assert "Cannot change principals" in (answer.error_message or "")
