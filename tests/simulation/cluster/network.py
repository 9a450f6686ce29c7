"""The network between processes: each way may be slow, held up, or broken off.

A connection is a pair of sockets of this process, since what the kernel does with one over loopback
is done at a moment of its own: no story would be told twice. What a connection carries takes a time
that is drawn, each direction for itself. What is held up comes once the way is free again, in its
order, as TCP does it, unless the connection breaks before.
"""

from __future__ import annotations

import asyncio
import errno
import random
import socket
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import copy_context
from typing import Any, cast

from lapse.broker.net.acceptor import Acceptor
from tests.simulation.cluster.loop import VirtualLoop, passes, running

HOP_MS = 0.3
OUTSIDE = ""

Way = tuple[str, str]


class Network:
    """Who is where, and which ways are held up."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.names: dict[int, str] = {}  # by port
        self.held: set[Way] = set()
        self.slow_ms: dict[Way, float] = {}
        self._links: list[_Link] = []
        self._waiting: list[tuple[Way, asyncio.Future[None]]] = []

    def hold(self, ways: Iterable[Way]) -> None:
        self.held.update(ways)

    def free(self) -> None:
        """All ways, and what was held up comes."""
        self.held.clear()
        self.slow_ms.clear()
        for _, waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
        self._waiting.clear()
        for link in tuple(self._links):
            link.go_on()

    def break_off(self, ways: set[Way]) -> None:
        """Connections that use one of these ways, either direction."""
        for link in tuple(self._links):
            if link.there in ways or link.back in ways:
                link.abort()

    def hop_s(self, way: Way) -> float:
        return (self.draw.random() * HOP_MS + self.slow_ms.get(way, 0.0)) / 1000

    async def passable(self, way: Way) -> None:
        while way in self.held:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((way, future))
            await future

    async def connect(
        self, loop: VirtualLoop, factory: Callable[[], Any], host: str, port: int
    ) -> tuple[Any, Any]:
        process = running()
        source = OUTSIDE if process is None else process.name
        there = source, self.names.get(port, OUTSIDE)
        await passes(self.hop_s(there))
        await self.passable(there)
        await self.passable(there[::-1])
        accepts = loop.accepting.get(port)
        if accepts is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"Connect call failed {host}:{port}")
        near, far = (_Socket(one) for one in socket.socketpair())
        inner = factory()
        _, link = await asyncio.SelectorEventLoop.create_connection(
            loop, lambda: _Link(self, loop, there, inner), sock=near
        )
        link = cast("_Link", link)
        accepts(far)
        return link.transport, inner


class _Socket(socket.socket):
    """One end of a pair, with addresses as on loopback."""

    def __init__(self, one: socket.socket) -> None:
        super().__init__(one.family, one.type, one.proto, one.detach())
        self.setblocking(False)

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", 0

    def getpeername(self) -> tuple[str, int]:
        return "127.0.0.1", 0


class NetworkedLoop(VirtualLoop):
    """A loop whose connections are those of a `Network`.

    Attributes:
        accepting: by port, who takes a connection.
    """

    network: Network

    def __init__(self, draw: random.Random) -> None:
        super().__init__(draw)
        self.accepting: dict[int, Callable[[socket.socket], None]] = {}
        self._listening: dict[int, socket.socket] = {}

    def add_reader(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:
        """Who reads a socket that listens is told of connections here."""
        acceptor = getattr(callback, "__self__", None)
        if not isinstance(acceptor, Acceptor):
            super().add_reader(fd, callback, *args)
            return
        context, process = copy_context(), running()

        def accepts(sock: socket.socket) -> None:
            if process is not None and process.is_killed:
                sock.close()
            else:
                context.run(acceptor._take, sock)

        port = fd.getsockname()[1]
        self.accepting[port], self._listening[port] = accepts, fd

    def stop_listening(self, port: int) -> None:
        """As the system does it for who is killed."""
        if self.accepting.pop(port, None) is not None:
            self._listening.pop(port).close()

    def remove_reader(self, fd: Any) -> bool:
        if isinstance(fd, socket.socket) and fd.fileno() >= 0 and fd.family == socket.AF_INET:
            return self.accepting.pop(fd.getsockname()[1], None) is not None
        return super().remove_reader(fd)

    async def create_connection(  # type: ignore[override]
        self, factory: Any, host: Any = None, port: Any = None, **_: Any
    ) -> Any:
        return await self.network.connect(self, factory, host, port)


class _Link(asyncio.Protocol):
    """The caller's end of a connection; `inner` is its protocol."""

    def __init__(self, network: Network, loop: VirtualLoop, there: Way, inner: Any) -> None:
        self._network, self._loop = network, loop
        self.there, self.back = there, there[::-1]
        self._inner = inner
        self.transport = _Transport(self)
        self._real: asyncio.Transport
        self._going: deque[tuple[float, bytes | None]] = deque()
        self._coming: deque[tuple[float, bytes | None]] = deque()
        self._error: Exception | None = None
        self.is_over = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._real = cast("asyncio.Transport", transport)
        self._network._links.append(self)
        self._inner.connection_made(self.transport)

    # --- what goes --------------------------------------------------------------------------------

    def send(self, data: bytes | None) -> None:
        """None ends it after what was sent."""
        self._queue(self._going, self.there, data, self._pass_on)

    def _queue(
        self,
        line: deque[tuple[float, bytes | None]],
        way: Way,
        data: bytes | None,
        then: Callable[[], None],
    ) -> None:
        at = self._loop.time() + self._network.hop_s(way)
        line.append((max(at, line[-1][0] if line else 0.0), data))
        self._loop.call_at(line[-1][0], then)

    def _pass_on(self) -> None:
        while self._going and self._loop.is_past(self._going[0][0]) and not self.is_over:
            if self.there in self._network.held:
                return
            _, data = self._going.popleft()
            if data is None:
                self._real.close()
            else:
                self._real.write(data)

    # --- what comes -------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._queue(self._coming, self.back, data, self._take)

    def connection_lost(self, error: Exception | None) -> None:
        """Nobody learns of it over a way that is held up."""
        self._error = error
        if not self.is_over:
            self._queue(self._coming, self.back, None, self._take)

    def _take(self) -> None:
        while self._coming and self._loop.is_past(self._coming[0][0]) and not self.is_over:
            if self.back in self._network.held:
                return
            _, data = self._coming.popleft()
            if data is None:
                self._end(self._error)
            else:
                self._hand_in(data)

    def _hand_in(self, data: bytes) -> None:
        if not isinstance(self._inner, asyncio.BufferedProtocol):
            self._inner.data_received(data)
            return
        rest = memoryview(data)
        while rest and not self.is_over:
            buffer = self._inner.get_buffer(len(rest))
            size = min(len(buffer), len(rest))
            buffer[:size] = rest[:size]
            self._inner.buffer_updated(size)
            rest = rest[size:]

    # --- the end ----------------------------------------------------------------------------------

    def go_on(self) -> None:
        self._pass_on()
        self._take()

    def abort(self) -> None:
        self._real.abort()
        if not self.is_over:
            self._loop.call_soon(self._end, None)

    def _end(self, error: Exception | None) -> None:
        if self.is_over:
            return
        self.is_over = True
        self._network._links.remove(self)
        self._real.abort()
        self._inner.connection_lost(error)


class _Transport(asyncio.Transport):
    """What the caller's protocol writes to."""

    def __init__(self, link: _Link) -> None:
        super().__init__()
        self._link = link
        self._is_closing = False

    def write(self, data: Any) -> None:
        if not self._is_closing:
            self._link.send(bytes(data))

    def writelines(self, parts: Any) -> None:
        self.write(b"".join(bytes(part) for part in parts))

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._link.send(None)

    def abort(self) -> None:
        self._is_closing = True
        self._link.abort()

    def is_closing(self) -> bool:
        return self._is_closing or self._link.is_over

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._link._real.get_extra_info(name, default)

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass
