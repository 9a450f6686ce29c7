"""Addresses of clients, in the form in which they are compared with configured ones."""

from __future__ import annotations

import asyncio
import socket

from lapse.security.authorizer import parsed_address

_LOOK_UP_SECONDS_MAX = 5
_MAPPED = "::ffff:"


def plain(host: str) -> str:
    """An address as the system writes it; an IPv4 address is the same over an IPv6 socket."""
    return host[len(_MAPPED) :] if host.startswith(_MAPPED) and "." in host else host


def parsed(name: str) -> str | None:
    """A configured address as the system would write it; None where it is no address."""
    address = parsed_address(name)
    return None if address is None else str(address)


async def resolved(name: str) -> str | None:
    """The address that is meant: of a host's name, the first that is found, of IPv4 if possible.

    None where there is none. Names are looked up by the system, in another thread.
    """
    address = parsed(name)
    if address is not None:
        return address
    # In a task, since the calling request may not have one yet (`broker.net.eager_task`).
    return await asyncio.get_running_loop().create_task(_looked_up(name))


async def _looked_up(name: str) -> str | None:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(_LOOK_UP_SECONDS_MAX):
            found = await loop.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError, TimeoutError):
        return None
    found.sort(key=lambda one: one[0] != socket.AF_INET)
    return parsed(str(found[0][4][0])) if found else None
