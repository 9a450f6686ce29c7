"""A listener for Kafka clients: accepts connections, and ends them all."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from typing import cast

from lapse.base.errors import LapseError
from lapse.broker.authentication import Entrance
from lapse.broker.connection import Connection, admitted
from lapse.broker.services import Services

logger = logging.getLogger(__name__)

BACKLOG = 512
HANDSHAKE_SECONDS_MAX = 30
SHUTDOWN_SECONDS_MAX = 5
_SWEEPS = 4  # in the time that a connection may be silent


class ListenError(LapseError):
    """An address cannot be listened at: it is taken, or not ours."""


class Server:
    """Listens at one entrance's address, whose port is filled in when it was 0.

    Under TLS a connection begins with its handshake, here and not in asyncio's own server, which
    tells nobody of those that fail.
    """

    def __init__(self, services: Services, entrance: Entrance) -> None:
        self._services = services
        self._entrance = entrance
        self._connections: set[Connection] = set()
        self._handshakes: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Bind and accept."""
        address = self._entrance.listener.address
        sock = bind(address.host, address.port, "listeners")
        address.port = sock.getsockname()[1]
        self._server = await asyncio.get_running_loop().create_server(
            self._accept, sock=sock, backlog=BACKLOG
        )
        if self._services.config.connections_max_idle_ms > 0:
            self._sweep()

    def _sweep(self) -> None:
        """End what was silent for too long (`connections.max.idle.ms`), and come again."""
        idle_s = self._services.config.connections_max_idle_ms / 1000
        since = self._services.clock.monotonic() - idle_s
        for connection in tuple(self._connections):
            connection.end_if_silent(since)
        self._sweeper = asyncio.get_running_loop().call_later(idle_s / _SWEEPS, self._sweep)

    def _accept(self) -> asyncio.BaseProtocol:
        connection = Connection(self._services, self._connections, self._entrance)
        tls = self._entrance.tls
        if tls is None:
            return connection

        def begin(transport: asyncio.Transport) -> None:
            host, port, *_ = transport.get_extra_info("peername") or ("unknown", 0)
            if not admitted(self._services, f"{host}:{port}", host):
                transport.abort()
                return
            work = self._shake_hands(transport, connection, tls)
            task = asyncio.get_running_loop().create_task(work)
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)

        return _Accepted(begin)

    async def _shake_hands(
        self, transport: asyncio.Transport, connection: Connection, tls: ssl.SSLContext
    ) -> None:
        peer = transport.get_extra_info("peername")
        try:
            encrypted = await asyncio.get_running_loop().start_tls(
                transport,
                connection,
                tls,
                server_side=True,
                ssl_handshake_timeout=HANDSHAKE_SECONDS_MAX,
                ssl_shutdown_timeout=SHUTDOWN_SECONDS_MAX,
            )
        except (OSError, TimeoutError) as e:  # what OpenSSL refuses is an OSError too
            name = self._entrance.listener.name
            reason = getattr(e, "reason", None) or e.strerror or str(e) or type(e).__name__
            logger.warning("TLS handshake with %s failed at %s: %s", peer, name, reason)
            self._services.counters.logins_refused[name] += 1
            transport.abort()
            return
        finally:  # its place is the connection's now, or anybody's
            self._services.by_address.leave((peer or ("unknown",))[0])
        if encrypted is not None:
            connection.connection_made(encrypted)

    async def stop(self) -> None:
        """Stop accepting, then end every connection."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._server is not None:
            self._server.close()
        for task in tuple(self._handshakes):
            task.cancel()
        await asyncio.gather(*self._handshakes, return_exceptions=True)
        await asyncio.gather(*(c.close() for c in tuple(self._connections)))
        if self._server is not None:
            await self._server.wait_closed()


class _Accepted(asyncio.Protocol):
    """A connection before its TLS handshake; reads nothing."""

    def __init__(self, begin: Callable[[asyncio.Transport], None]) -> None:
        self._begin = begin

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        accepted = cast("asyncio.Transport", transport)
        accepted.pause_reading()  # what comes now is the handshake's
        self._begin(accepted)


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
