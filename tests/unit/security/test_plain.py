"""PLAIN: which messages log in, and what a refusal gives away."""

from __future__ import annotations

import pytest

from lapse.base.secret import Secret
from lapse.security.mechanism import AuthenticationFailed
from lapse.security.plain import PlainClient, PlainServer

USERS = {"alice": Secret("alice-secret"), "ünï": Secret("pässword"), "empty": Secret("")}


@pytest.mark.parametrize(
    ("message", "user"),
    [
        (b"\0alice\0alice-secret", "alice"),
        (b"alice\0alice\0alice-secret", "alice"),
        ("\0ünï\0pässword".encode(), "ünï"),
    ],
)
def test_logs_in(message: bytes, user: str) -> None:
    server = PlainServer(USERS)
    assert server.user is None
    assert server.respond(message) == b""
    assert server.user == user
    with pytest.raises(AuthenticationFailed):
        server.respond(message)


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (b"\0alice\0wrong", "Invalid username or password"),
        (b"\0alice\0alice-secreT", "Invalid username or password"),
        (b"\0nobody\0alice-secret", "Invalid username or password"),
        (b"\0nobody\0\x01", "Invalid username or password"),
        (b"\0Alice\0alice-secret", "Invalid username or password"),
        (b"\0\0alice-secret", "username not specified"),
        (b"\0alice\0", "password not specified"),
        (b"\0empty\0", "password not specified"),
        (b"bob\0alice\0alice-secret", "authorization id that is different"),
        (b"bob\0alice\0wrong", "Invalid username or password"),
        (b"", "expected 3 tokens, got 1"),
        (b"alice\0alice-secret", "expected 3 tokens, got 2"),
        (b"\0alice\0alice-secret\0", "expected 3 tokens, got 4"),
        (b"\0" * 99, "expected 3 tokens, got 4"),
        (b"\0alice\0\xff", "not UTF-8"),
    ],
)
def test_is_refused(message: bytes, told: str) -> None:
    server = PlainServer(USERS)
    with pytest.raises(AuthenticationFailed, match=told) as refused:
        server.respond(message)
    assert server.user is None
    assert refused.value.client_message
    for text in (refused.value.client_message, refused.value.reason):
        assert "secret" not in text
        assert "alice" not in text


def test_the_client_sends_what_the_server_takes() -> None:
    client, server = PlainClient("ünï", USERS["ünï"]), PlainServer(USERS)
    message = client.respond(b"")
    assert message == "\0ünï\0pässword".encode()
    assert client.respond(server.respond(message)) is None
    assert (client.complete, server.user) == (True, "ünï")


def test_a_client_is_not_challenged() -> None:
    client = PlainClient("a", Secret("b"))
    client.respond(b"")
    with pytest.raises(AuthenticationFailed, match="challenges"):
        client.respond(b"r=1")
