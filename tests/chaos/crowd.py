"""Five hundred connections at once, of which few are good clients; then all are closed."""

from __future__ import annotations

import contextlib
import random
import socket
import struct

CONNECTIONS = 500
_API_VERSIONS = struct.pack(">hhih", 18, 0, 1, -1)  # key, version, correlation id, no client id


class Crowd:
    """Connections that ask for versions, say half a frame, say nonsense, or say nothing."""

    def __init__(self, address: str, seed: int) -> None:
        host, _, port = address.rpartition(":")
        chance = random.Random(seed)
        self._sockets: list[socket.socket] = []
        for _ in range(CONNECTIONS):
            with contextlib.suppress(OSError):  # it may be down, or refuse
                one = socket.create_connection((host, int(port)), timeout=2)
                self._sockets.append(one)
                one.setblocking(False)
                one.send(_said(chance))

    def __len__(self) -> int:
        return len(self._sockets)

    def leave(self) -> None:
        """All at once, without reading what they were told."""
        for one in self._sockets:
            one.close()
        self._sockets.clear()


def _said(chance: random.Random) -> bytes:
    asked = struct.pack(">i", len(_API_VERSIONS)) + _API_VERSIONS
    return chance.choice(
        (b"", asked, asked * 20, asked[: chance.randrange(len(asked))], struct.pack(">i", 1 << 20),
         chance.randbytes(chance.randint(1, 200)), b"GET / HTTP/1.1\r\n\r\n")
    )  # fmt: skip
