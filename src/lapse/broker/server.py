"""The listener for Kafka clients: accepts connections, and ends them all."""

from __future__ import annotations

import asyncio
import socket

from lapse.base.errors import LapseError
from lapse.broker.connection import Connection
from lapse.broker.services import Services

BACKLOG = 512


class ListenError(LapseError):
    """An address cannot be listened at: it is taken, or not ours."""


class Server:
    """Listens at `services.address`, whose port is filled in when it was 0."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._connections: set[Connection] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Bind and accept."""
        address = self._services.address
        sock = bind(address.host, address.port, "listeners")
        address.port = sock.getsockname()[1]
        self._server = await asyncio.get_running_loop().create_server(
            lambda: Connection(self._services, self._connections), sock=sock, backlog=BACKLOG
        )

    async def stop(self) -> None:
        """Stop accepting, then end every connection."""
        if self._server is not None:
            self._server.close()
        await asyncio.gather(*(c.close() for c in tuple(self._connections)))
        if self._server is not None:
            await self._server.wait_closed()


def bind(host: str, port: int, setting: str) -> socket.socket:
    """A listening socket; raises ListenError naming the setting."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio sets TCP_NODELAY on what it accepts; without it an answer
    # sent in parts (header, file, rest) waits up to 40 ms for the client's delayed ACK.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(BACKLOG)  # from here on a client that comes early waits, it is not refused
    except OSError as e:
        sock.close()
        raise ListenError(f"{setting}: cannot listen at {host}:{port}: {e.strerror or e}") from e
    return sock
