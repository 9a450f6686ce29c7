"""Addresses, as people write them and as the system says them."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

import pytest

from lapse.broker.limits import addresses
from lapse.broker.limits.addresses import HostNames, parsed, plain
from tests.support.broker.running import until


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

    def look_up(name: str, *_: object, **__: object) -> list[Any]:
        asked.append(name)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    names = HostNames()
    assert await names.address_of("host.example") == expected
    assert await names.address_of("10.0.0.1") == "10.0.0.1"
    assert asked == ["host.example"]


async def test_a_silent_name_server_holds_up_no_other_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor who asks, for long; nor others that ask, once there are too many threads that wait."""
    silent, waiting = threading.Event(), []

    def look_up(name: str, *_: object, **__: object) -> list[Any]:
        waiting.append(name)
        silent.wait()
        return [V4]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(addresses, "_LOOK_UP_SECONDS_MAX", 0.05)
    monkeypatch.setattr(addresses, "_THREADS_MAX", 3)
    names = HostNames()
    try:
        asked = [names.address_of(f"host{n}.example") for n in range(5)]
        assert await asyncio.gather(*asked) == [None] * 5
        assert len(waiting) == 3
        assert await asyncio.to_thread(lambda: 1)
    finally:
        silent.set()
    await until(lambda: names._places._value == 3)
    assert await names.address_of("host.example") == "10.0.0.7"


async def test_a_system_without_threads_finds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    assert await HostNames().address_of("host.example") is None
