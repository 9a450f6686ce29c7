"""Addresses of clients, in the form in which they are compared with configured ones."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from typing import Any

from lapse.security.authorizer import parsed_address

_LOOK_UP_SECONDS_MAX = 5
_THREADS_MAX = 16
_MAPPED = "::ffff:"


def plain(host: str) -> str:
    """An address as the system writes it; an IPv4 address is the same over an IPv6 socket."""
    return host[len(_MAPPED) :] if host.startswith(_MAPPED) and "." in host else host


def parsed(name: str) -> str | None:
    """A configured address as the system would write it; None where it is no address."""
    address = parsed_address(name)
    return None if address is None else str(address)


class HostNames:
    """Looks up hosts by name, in threads of its own: a name server that is silent holds up nobody.

    The system cannot be stopped waiting for one, some thirty seconds. A thread that does ends by
    itself after that, and knows nothing of who has asked; no exit waits for it.
    """

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(_THREADS_MAX)

    async def address_of(self, name: str) -> str | None:
        """The address that is meant: of a host's name, the first that is found, of IPv4 if there.

        None where there is none, or none is found in time.
        """
        address = parsed(name)
        if address is not None:
            return address
        # In a task, since the calling request may not have one yet (`broker.net.eager_task`).
        return await asyncio.get_running_loop().create_task(self._looked_up(name))

    async def _looked_up(self, name: str) -> str | None:
        try:
            async with asyncio.timeout(_LOOK_UP_SECONDS_MAX):
                await self._places.acquire()  # until its thread ends, and not until nobody waits
                found = await self._begin(name)
        except TimeoutError:
            return None
        found.sort(key=lambda one: one[0] != socket.AF_INET)
        return parsed(str(found[0][4][0])) if found else None

    def _begin(self, name: str) -> asyncio.Future[list[Any]]:
        loop = asyncio.get_running_loop()
        told: asyncio.Future[list[Any]] = loop.create_future()

        def end(found: list[Any]) -> None:
            self._places.release()
            if not told.done():
                told.set_result(found)

        def look_up() -> None:
            try:
                found: list[Any] = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
            except (OSError, UnicodeError):
                found = []
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(end, found)

        try:
            threading.Thread(target=look_up, name="lapse-host-names", daemon=True).start()
        except RuntimeError:  # the system has no more threads
            end([])
        return told
