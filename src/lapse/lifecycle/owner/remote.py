"""A running broker as owner, over a channel: its socket on this machine, or its listener.

It connects at the first call, and again after the broker was away. Blocking, for one thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from lapse.base.errors import CorruptData
from lapse.lifecycle.decide.select import LogInfo
from lapse.lifecycle.owner import messages
from lapse.lifecycle.owner.channel import Channel
from lapse.lifecycle.owner.messages import (
    Adopt,
    Adopted,
    Commit,
    Committed,
    ListLogs,
    Logs,
    Request,
)
from lapse.lifecycle.owner.protocol import OwnerGone, OwnerTaken
from lapse.lifecycle.owner.unix_socket import UnixSocketChannel
from lapse.lifecycle.round.commit import CommitResult
from lapse.lifecycle.round.receipt import Receipt
from lapse.lifecycle.round.summarise import SummaryReceipt

_R = TypeVar("_R", Receipt, SummaryReceipt)


class RemoteOwner:
    """`Owner`: a broker.

    Every call raises OwnerGone while there is no broker, OwnerTaken while it serves another
    service.

    Attributes:
        broker_pid: the process that answered last, None before one did.
        dirs: its log directories, if it has said them: to a service on another machine.
        is_taken: whether it served another service when it was asked last.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._is_open = False
        self.broker_pid: int | None = None
        self.dirs: tuple[Path, ...] = ()
        self.is_taken = False

    @classmethod
    def beside(cls, data_dir: Path) -> RemoteOwner:
        """The broker of a data directory on this machine."""
        return cls(UnixSocketChannel(data_dir))

    def greet(self) -> None:
        """Connect, where that is not done."""
        with self._in_order():
            self._open()

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
        self._is_open = False
        self._channel.close()

    def _ask(self, request: Request, wanted: type[messages.T]) -> messages.T:
        with self._in_order():
            self._open()
            return self._channel.ask(request, wanted)

    def _open(self) -> None:
        if self._is_open:
            return
        self.is_taken = False
        welcome = self._channel.open()
        self.broker_pid, self._is_open = welcome.pid, True
        self.dirs = tuple(map(Path, welcome.dirs))

    @contextmanager
    def _in_order(self) -> Iterator[None]:
        """A channel over which something goes wrong is of no more use, until it is opened again."""
        try:
            yield
        except (OSError, CorruptData) as e:
            self.close()
            raise OwnerGone(f"no broker answers at {self._channel.where}: {e}") from e
        except BaseException as e:
            self.is_taken = isinstance(e, OwnerTaken)
            self.close()
            raise


def _parts(receipts: Sequence[_R], most: int) -> Iterator[tuple[_R, ...]]:
    for first in range(0, len(receipts), most):
        yield tuple(receipts[first : first + most])
