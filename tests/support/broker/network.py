"""The network between brokers, whose ways can be held up, each direction for itself.

A broker listens for the others at one port and says that it is at another one, where this network
takes what comes, and passes it on. Who calls is known by the client id of the first request, as
brokers call themselves. Clients come by another listener, which nothing holds up.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterable
from itertools import permutations
from typing import Self

from lapse.testing.ports import own_port

_CALLS_ITSELF = b"lapse-broker-"
_HEAD = struct.Struct(">IHHIH")  # size, API, version, correlation id, length of the client id

Way = tuple[int, int]


class Network:
    """What is held up comes late, or, where its connection is broken meanwhile, never."""

    def __init__(self, brokers: Iterable[int] = (1, 2, 3)) -> None:
        self.brokers = tuple(brokers)
        self._for_clients = {n: own_port() for n in self.brokers}
        self._for_brokers = {n: own_port() for n in self.brokers}
        self._free = {way: threading.Event() for way in permutations(self.brokers, 2)}
        self._open: list[tuple[int, int, socket.socket, socket.socket]] = []
        self._threads: list[threading.Thread] = []
        self._listeners: dict[int, socket.socket] = {}

    def __enter__(self) -> Self:
        for free in self._free.values():
            free.set()
        for n in self.brokers:
            self._listeners[n] = socket.create_server(("127.0.0.1", own_port()))
            self._begin(self._accept, n)
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._listeners.values():
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self._break_off(self._free)
        self.let_go()
        for thread in self._threads:
            thread.join(30)

    def settings(self, n: int) -> dict[str, str]:
        """Of broker `n`, so that others reach it by this network alone. The network must run."""
        clients = f"PLAINTEXT://127.0.0.1:{self._for_clients[n]}"
        host, port = self._listeners[n].getsockname()
        return {
            "listeners": f"{clients},BROKERS://127.0.0.1:{self._for_brokers[n]}",
            "advertised.listeners": f"{clients},BROKERS://{host}:{port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,BROKERS:PLAINTEXT",
            "inter.broker.listener.name": "BROKERS",
        }

    def hold(self, *ways: Way) -> None:
        """Nothing passes from the first one of each to the second, whoever calls whom."""
        for way in ways:
            self._free[way].clear()

    def isolate(self, n: int) -> None:
        """Nothing passes from or to this one."""
        self.hold(*(way for way in self._free if n in way))

    def let_go(self, *, is_lost: bool = False) -> None:
        """All passes again; what was held up comes now, unless `is_lost`."""
        if is_lost:
            self._break_off([way for way, free in self._free.items() if not free.is_set()])
        for free in self._free.values():
            free.set()

    def _break_off(self, ways: Iterable[Way]) -> None:
        broken = {frozenset(way) for way in ways}
        kept = []
        for source, target, near, far in self._open:
            if {source, target} in broken:
                for end in (near, far):
                    with contextlib.suppress(OSError):
                        end.shutdown(socket.SHUT_RDWR)
            else:
                kept.append((source, target, near, far))
        self._open = kept

    def _begin(self, work: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, target: int) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listeners[target].accept()
                self._begin(self._connect, near, target)

    def _connect(self, near: socket.socket, target: int) -> None:
        with near, contextlib.suppress(OSError):
            first = near.recv(1 << 16)
            source = _who_calls(first)
            if source is None:
                return
            with socket.create_connection(("127.0.0.1", self._for_brokers[target])) as far:
                self._open.append((source, target, near, far))
                self._begin(self._pump, far, near, (target, source))
                self._pass_on(first, far, (source, target))
                self._pump(near, far, (source, target))

    def _pump(self, origin: socket.socket, destination: socket.socket, way: Way) -> None:
        with contextlib.suppress(OSError):
            while data := origin.recv(1 << 16):
                self._pass_on(data, destination, way)
        for end in (origin, destination):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _pass_on(self, data: bytes, destination: socket.socket, way: Way) -> None:
        self._free[way].wait()
        destination.sendall(data)


def _who_calls(first: bytes) -> int | None:
    """None where a broker that was started has hung up again, or where it is no broker."""
    if len(first) < _HEAD.size:
        return None
    length = _HEAD.unpack_from(first)[-1]
    name = first[_HEAD.size : _HEAD.size + length]
    if not name.startswith(_CALLS_ITSELF):
        return None
    return int(name.removeprefix(_CALLS_ITSELF))
