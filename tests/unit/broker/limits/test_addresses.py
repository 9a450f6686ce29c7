"""Addresses, as people write them and as the system says them."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from lapse.broker.limits.addresses import parsed, plain, resolved


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("::1", "::1"),
        ("::ffff:0:1", "::ffff:0:1"),
        ("unknown", "unknown"),
    ],
)
def test_plain(host: str, expected: str) -> None:
    assert plain(host) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("2001:DB8:0::1", "2001:db8::1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("host.example", None),
        ("10.0.0.1/8", None),
        ("", None),
    ],
)
def test_parsed(name: str, expected: str | None) -> None:
    assert parsed(name) == expected


V4 = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.7", 0))
V6 = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("2001:db8::7", 0, 0, 0))


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([V6, V4], "10.0.0.7"),
        ([V6], "2001:db8::7"),
        ([], None),
        (OSError("no such host"), None),
        (UnicodeError("too long"), None),
        (TimeoutError(), None),
    ],
)
async def test_hosts_are_looked_up(
    monkeypatch: pytest.MonkeyPatch, found: list[Any] | Exception, expected: str | None
) -> None:
    asked = []

    async def look_up(name: str, *_: object, **__: object) -> list[Any]:
        asked.append(name)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", look_up)
    assert await resolved("host.example") == expected
    assert await resolved("10.0.0.1") == "10.0.0.1"
    assert asked == ["host.example"]
