"""Many connections, each with one request under way: sent, answered, sent again."""

from __future__ import annotations

import selectors
import socket
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks.common import MIB

Request = Callable[[int], Sequence[bytes]]  # how many went before → the parts of a frame

_SIZE = struct.Struct(">i")
_READ = selectors.EVENT_READ
_WRITE = selectors.EVENT_WRITE
_SILENT_SECONDS_MAX = 10


@dataclass(frozen=True, slots=True)
class Bounds:
    """When to end.

    Attributes:
        bytes_max: of requests, or of answers that are expected to be `answer_bytes` at least.
    """

    seconds_max: float
    bytes_max: int
    answer_bytes: int = 0


@dataclass(slots=True)
class _Connection:
    socket: socket.socket
    out: list[memoryview] = field(default_factory=list)
    sent_at: float = 0.0
    head: bytes = b""
    left: int = 0  # bytes of the answer that have not come yet


class Load:
    """The requests of one run and what they took."""

    def __init__(self, request: Request, bounds: Bounds) -> None:
        self._request = request
        self._bounds = bounds
        self._selector = selectors.EpollSelector()
        self._buffer = bytearray(MIB)
        self._took: list[float] = []
        self._sent = self._bytes = 0

    def run(self, bootstrap: str, connections: int) -> list[float]:
        """Send and wait until time or bytes are used up; seconds that each answer took."""
        host, port = bootstrap.rsplit(":", 1)
        opened = [
            _Connection(socket.create_connection((host, int(port)))) for _ in range(connections)
        ]
        until = time.perf_counter() + self._bounds.seconds_max
        for c in opened:
            c.socket.setblocking(False)
            c.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(c.socket, _READ, c)
            self._send(c)
        while len(self._took) < self._sent:
            ready = self._selector.select(_SILENT_SECONDS_MAX)
            if not ready:
                raise RuntimeError(f"no answer within {_SILENT_SECONDS_MAX} s")
            for key, events in ready:
                self._serve(key.data, events, until)
        for c in opened:
            c.socket.close()
        self._selector.close()
        return self._took

    def _serve(self, c: _Connection, events: int, until: float) -> None:
        if events & _WRITE:
            self._push(c)
        if events & _READ and self._pull(c):
            now = time.perf_counter()
            self._took.append(now - c.sent_at)
            if now < until and self._bytes < self._bounds.bytes_max:
                self._send(c)

    def _send(self, c: _Connection) -> None:
        parts = self._request(self._sent)
        c.out = [memoryview(part) for part in parts]
        self._sent += 1
        self._bytes += sum(map(len, parts)) + self._bounds.answer_bytes
        c.sent_at = time.perf_counter()
        self._push(c)

    def _push(self, c: _Connection) -> None:
        """As much as the socket takes; the rest when it says so."""
        while c.out:
            try:
                n = c.socket.sendmsg(c.out)
            except BlockingIOError:
                self._selector.modify(c.socket, _READ | _WRITE, c)
                return
            while c.out and n >= len(c.out[0]):
                n -= len(c.out.pop(0))
            if n:
                c.out[0] = c.out[0][n:]
        self._selector.modify(c.socket, _READ, c)

    def _pull(self, c: _Connection) -> bool:
        """Read what came; whether the answer is complete."""
        try:
            if not c.left:
                came = c.socket.recv(_SIZE.size - len(c.head))
                c.head += came
                if came and len(c.head) < _SIZE.size:
                    return False
                c.left = _SIZE.unpack(c.head)[0] if came else 0
                if c.left < max(1, self._bounds.answer_bytes):
                    raise RuntimeError(f"an answer of {c.left} bytes, or none any more")
                c.head = b""
            n = c.socket.recv_into(self._buffer, min(c.left, len(self._buffer)))
        except BlockingIOError:
            return False
        if not n:
            raise RuntimeError("the broker closed a connection")
        c.left -= n
        return not c.left
