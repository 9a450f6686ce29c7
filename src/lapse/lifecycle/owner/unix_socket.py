"""The channel to a broker on this machine: the control socket in its first log directory."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from lapse.base.errors import ConfigError, CorruptData
from lapse.lifecycle.owner import messages
from lapse.lifecycle.owner.channel import expected
from lapse.lifecycle.owner.messages import (
    Answer,
    AskConditions,
    Conditions,
    Hello,
    Request,
    Welcome,
)
from lapse.lifecycle.owner.protocol import OwnerGone
from lapse.lifecycle.status.conditions import Condition

ANSWER_SECONDS_MAX = 300.0
LOOK_SECONDS_MAX = 5.0


class UnixSocketChannel:
    """`Channel`: the broker of a data directory."""

    def __init__(self, data_dir: Path) -> None:
        self.path = data_dir / messages.SOCKET
        self._socket: socket.socket | None = None

    @property
    def where(self) -> str:
        return str(self.path)

    def open(self) -> Welcome:
        self._socket = _connected(self.path, ANSWER_SECONDS_MAX)
        return self.ask(Hello(messages.VERSION, os.getpid()), Welcome)

    def ask(self, request: Request, wanted: type[messages.T]) -> messages.T:
        assert self._socket is not None, "open comes first"
        return _exchanged(self.path, self._socket, request, wanted)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def ask_conditions(data_dir: Path) -> tuple[Condition, ...] | None:
    """What the broker of a directory reports as out of order; None if no broker answers.

    Also None if this user may not connect to it, or it is of another version. It takes
    `LOOK_SECONDS_MAX` at most.
    """
    path = data_dir / messages.SOCKET
    try:
        with _connected(path, LOOK_SECONDS_MAX) as connection:
            return _exchanged(path, connection, AskConditions(), Conditions).found
    except (OSError, CorruptData, ConfigError, OwnerGone):
        return None


def _connected(path: Path, seconds_max: float) -> socket.socket:
    directory = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(seconds_max)
            connection.connect(messages.short_path(path, directory))
        except BaseException:
            connection.close()
            raise
    finally:
        os.close(directory)
    return connection


def _exchanged(
    path: Path, connection: socket.socket, request: Request, wanted: type[messages.T]
) -> messages.T:
    connection.sendall(messages.encode(request))
    where = str(path)
    size = messages.body_size(_receive(connection, messages.LENGTH.size), where)
    answer: Answer = messages.decode_answer(_receive(connection, size), where)
    return expected(answer, wanted, f"the broker at {path}")


def _receive(connection: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        chunk = connection.recv(min(size - len(received), 1 << 20))
        if not chunk:
            raise ConnectionError("the connection ended")
        received += chunk
    return bytes(received)
