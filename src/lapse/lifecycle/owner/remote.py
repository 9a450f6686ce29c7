"""A running broker as owner, over its control socket (`owner.messages`).

It connects at the first call, and again after the broker was away. Blocking, for one thread.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from lapse.base.errors import ConfigError, CorruptData
from lapse.lifecycle.decide.select import LogInfo
from lapse.lifecycle.owner import messages
from lapse.lifecycle.owner.messages import (
    Adopt,
    Adopted,
    Answer,
    AskConditions,
    Commit,
    Committed,
    Conditions,
    Hello,
    ListLogs,
    Logs,
    Refused,
    Request,
    Welcome,
)
from lapse.lifecycle.owner.protocol import OwnerGone
from lapse.lifecycle.round.commit import CommitResult
from lapse.lifecycle.round.receipt import Receipt
from lapse.lifecycle.round.summarise import SummaryReceipt
from lapse.lifecycle.status.conditions import Condition

ANSWER_SECONDS_MAX = 300.0
LOOK_SECONDS_MAX = 5.0

_R = TypeVar("_R", Receipt, SummaryReceipt)


class RemoteOwner:
    """`Owner`: the broker of a data directory.

    Every call raises OwnerGone while there is no broker, or while it serves another service.

    Attributes:
        broker_pid: the process that answered last, None before one did.
    """

    def __init__(self, data_dir: Path) -> None:
        self.path = data_dir / messages.SOCKET
        self.broker_pid: int | None = None
        self._socket: socket.socket | None = None

    def logs(self) -> list[LogInfo]:
        return list(self._ask(ListLogs(), Logs).logs)

    def commit(self, receipts: Sequence[Receipt]) -> list[CommitResult]:
        """In several messages where they are many; what was committed stays if a later one fails.

        Raises OwnerGone, and then the state of the receipts under way is unknown: the broker
        settles it when it opens its logs.
        """
        return [
            result
            for some in _parts(receipts, messages.RECEIPTS_MAX)
            for result in self._ask(Commit(some), Committed).results
        ]

    def adopt_summaries(self, receipts: Sequence[SummaryReceipt]) -> list[str | None]:
        """In several messages where they are many; raises OwnerGone, and then some may be in."""
        return [
            refusal
            for some in _parts(receipts, messages.SUMMARIES_MAX)
            for refusal in self._ask(Adopt(some), Adopted).refusals
        ]

    def close(self) -> None:
        """Disconnect; the broker then accepts another service."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _ask(self, request: Request, wanted: type[messages.T]) -> messages.T:
        """A connection over which something goes wrong is of no more use."""
        try:
            if self._socket is None:
                self._socket = _connected(self.path, ANSWER_SECONDS_MAX)
                hello = Hello(messages.VERSION, os.getpid())
                self.broker_pid = _exchanged(self.path, self._socket, hello, Welcome).pid
            return _exchanged(self.path, self._socket, request, wanted)
        except (OSError, CorruptData) as e:
            self.close()
            raise OwnerGone(f"no broker answers at {self.path}: {e}") from e
        except BaseException:
            self.close()
            raise


def _parts(receipts: Sequence[_R], most: int) -> Iterator[tuple[_R, ...]]:
    for first in range(0, len(receipts), most):
        yield tuple(receipts[first : first + most])


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
    if isinstance(answer, Refused):
        raise OwnerGone(f"the broker at {path} refused: {answer.reason}")
    if not isinstance(answer, wanted):
        raise CorruptData(where, 0, f"{type(answer).__name__} instead of {wanted.__name__}")
    return answer


def _receive(connection: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        chunk = connection.recv(min(size - len(received), 1 << 20))
        if not chunk:
            raise ConnectionError("the connection ended")
        received += chunk
    return bytes(received)
