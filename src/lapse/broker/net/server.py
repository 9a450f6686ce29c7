"""A listener for Kafka clients: accepts connections, and ends them all.

What Kafka calls SocketServer.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import cast

from lapse.base.clock import monotonic_ms
from lapse.base.errors import LapseError
from lapse.broker.access.authentication import Entrance
from lapse.broker.fast.requests import FastRequests
from lapse.broker.net.acceptor import Acceptor, HeldBack
from lapse.broker.net.connection import Connection, admitted
from lapse.broker.request.context import Services

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
    does not report failed ones. One that fails is held back like a failed login: asyncio ends
    it at once, so a second descriptor keeps it open, and its address's place is taken until then.
    """

    def __init__(self, services: Services, entrance: Entrance) -> None:
        self._services, self._entrance = services, entrance
        self._fast = FastRequests(services)
        self._connections: dict[Connection, None] = {}  # in the order of coming
        self._handshakes: set[asyncio.Task[None]] = set()
        self._beginning: set[asyncio.Task[object]] = set()
        self._held = HeldBack()
        self._acceptor: Acceptor | None = None
        self._sweeper: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Bind and accept."""
        address = self._entrance.listener.address
        sock = bind(address.host, address.port, "listeners")
        address.port = sock.getsockname()[1]
        name = self._entrance.listener.name
        self._acceptor = Acceptor(self._services, name, sock, self._held, self._begin)
        self._acceptor.start()
        if self._services.config.connections_max_idle_ms > 0:
            self._sweep()

    def _sweep(self) -> None:
        """End what was silent for too long (`connections.max.idle.ms`), and come again."""
        idle_s = self._services.config.connections_max_idle_ms / 1000
        since = self._services.clock.monotonic() - idle_s
        for connection in tuple(self._connections):
            connection.end_if_silent(since)
        self._sweeper = asyncio.get_running_loop().call_later(idle_s / _SWEEPS, self._sweep)

    def _begin(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        task = loop.create_task(loop.connect_accepted_socket(self._protocol, sock))
        self._beginning.add(task)
        task.add_done_callback(self._begun)

    def _begun(self, task: asyncio.Task[object]) -> None:
        self._beginning.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.warning("a connection could not begin: %s", error)

    def _protocol(self) -> asyncio.BaseProtocol:
        connection = Connection(self._services, self._connections, self._entrance, self._fast)
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
        leave = partial(self._services.by_address.leave, (peer or ("unknown",))[0])
        second = _second(transport)
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
            transport.abort()
            held_back_ms = self._failed(e, peer)
            if second is None:
                leave()
            else:
                self._held.hold(second, held_back_ms, leave)
            return
        except BaseException:
            _let_go(second)
            leave()
            raise
        _let_go(second)
        leave()  # its place is the connection's now
        if encrypted is not None:
            connection.connection_made(encrypted)

    def _failed(self, error: OSError | TimeoutError, peer: tuple[str, int] | None) -> int:
        """Note a handshake that came to nothing; the milliseconds that its end is held back."""
        name = self._entrance.listener.name
        reason = getattr(error, "reason", None) or error.strerror or str(error)
        host, now_ms = (peer or ("unknown",))[0], monotonic_ms(self._services.clock)
        words = reason or type(error).__name__
        ending = self._services.log_lines.ending(host, f"TLS {name} {words}", now_ms)
        if ending is not None:
            logger.warning("TLS handshake with %s failed at %s: %s%s", peer, name, words, ending)
        if not isinstance(error, ssl.SSLError):  # the client went, or said nothing
            self._services.counters.logins_refused[name] += 1
            return 0
        return self._entrance.failures.failed(host, now_ms)

    async def stop(self) -> None:
        """Stop accepting, then end every connection."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._acceptor is not None:
            self._acceptor.stop()
        for task in (*self._beginning, *self._handshakes):
            task.cancel()
        await asyncio.gather(*self._beginning, *self._handshakes, return_exceptions=True)
        self._held.close()
        await asyncio.gather(*(c.close() for c in tuple(self._connections)))


class _Accepted(asyncio.Protocol):
    """A connection before its TLS handshake; reads nothing."""

    def __init__(self, begin: Callable[[asyncio.Transport], None]) -> None:
        self._begin = begin

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        accepted = cast("asyncio.Transport", transport)
        accepted.pause_reading()  # what comes now is the handshake's
        self._begin(accepted)


def _second(transport: asyncio.Transport) -> socket.socket | None:
    """Another descriptor of a connection, which is open until all of them are closed."""
    try:
        return cast("socket.socket", transport.get_extra_info("socket").dup())
    except OSError:  # there is none left: then nothing is held back
        return None


def _let_go(sock: socket.socket | None) -> None:
    if sock is not None:
        sock.close()


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
