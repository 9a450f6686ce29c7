"""Taking connections from a listening socket: at once, late, or not at all (`connection_rates`).

asyncio's own servers accept every connection. Here the socket is not read while a connection waits
for its time: later ones wait in the system's queue, where they cost nothing, and the event loop
goes on. A refused connection is not closed at once, else its client would reconnect at once
(`HeldBack`).
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

from lapse.base.clock import monotonic_ms
from lapse.broker.request.context import Services

logger = logging.getLogger(__name__)

HELD_MAX = 1000
_AT_ONCE_MAX = 64  # then other tasks of the event loop get their turn
_RETRY_SECONDS = 1.0


class HeldBack:
    """Sockets that are closed later, unread; beyond `most` of them, sockets are closed at once."""

    def __init__(self, most: int = HELD_MAX) -> None:
        self._most = most
        self._held: dict[socket.socket, tuple[asyncio.TimerHandle, Callable[[], None]]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, sock: socket.socket, ms: int, closed: Callable[[], None] = lambda: None) -> None:
        """Close a socket after `ms`, and then call `closed`."""
        if ms <= 0 or len(self._held) >= self._most:
            sock.close()
            closed()
            return
        timer = asyncio.get_running_loop().call_later(ms / 1000, self._close, sock)
        self._held[sock] = timer, closed

    def _close(self, sock: socket.socket) -> None:
        timer, closed = self._held.pop(sock)
        timer.cancel()
        sock.close()
        closed()

    def close(self) -> None:
        """Close all now."""
        for sock in tuple(self._held):
            self._close(sock)


class Acceptor:
    """Hands every connection of a listening socket to `take`, when its time has come."""

    def __init__(
        self,
        services: Services,
        listener: str,
        sock: socket.socket,
        held: HeldBack,
        take: Callable[[socket.socket], None],
    ) -> None:
        self._services, self._listener = services, listener
        self._sock, self._held, self._take = sock, held, take
        self._late: socket.socket | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin; the socket is ours from now on."""
        self._sock.setblocking(False)
        asyncio.get_running_loop().add_reader(self._sock, self._accept)

    def stop(self) -> None:
        """Take no more, and listen no more; who waits is sent away."""
        asyncio.get_running_loop().remove_reader(self._sock)
        if self._timer is not None:
            self._timer.cancel()
        if self._late is not None:
            self._late.close()
        self._sock.close()

    def _accept(self) -> None:
        for _ in range(_AT_ONCE_MAX):
            try:
                connection, (host, *_) = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as e:  # no descriptors, for one
                logger.warning("listener %s takes none for now: %s", self._listener, e.strerror)
                self._pause(_RETRY_SECONDS)
                return
            connection.setblocking(False)
            now_ms = monotonic_ms(self._services.clock)
            ruling = self._services.connection_rates.came(self._listener, host, now_ms)
            counters = self._services.counters
            if ruling.closes_ms:
                counters.connections_throttled[self._listener] += 1
                if ruling.is_first:  # one line, however many come
                    logger.warning(
                        "connections of %s are closed: more a second than its quota", host
                    )
                self._held.hold(connection, ruling.closes_ms)
            elif ruling.waits_ms:
                counters.connections_delayed[self._listener] += 1
                self._late = connection
                self._pause(ruling.waits_ms / 1000)
                return
            else:
                self._take(connection)

    def _pause(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._sock)
        self._timer = loop.call_later(seconds, self._go_on)

    def _go_on(self) -> None:
        late, self._late = self._late, None
        if late is not None:
            self._take(late)
        asyncio.get_running_loop().add_reader(self._sock, self._accept)
