"""Requests that their client has long given up, and which end what it has begun since.

A client whose EndTxn is not answered in time opens another connection and sends it again. The
network may still bring the first one, when the next transaction of the same producer id and epoch
is open: Kafka takes it for that one's end, and commits half a transaction (KIP-890 mends it for
clients that take a new epoch with each transaction). Which connection a request came by tells them
apart, whoever the client is: it speaks over the one it opened last.

So what would do harm if it came late is heeded over the newest connection by which its producer
has been heard, or a newer one. After a transaction coordinator has moved nobody knows who was heard
before: then it must come by a connection that is newer than the move, or that has been heard since.
(Offsets of a transaction, of which the same is true, are heeded then: their shard is loaded when it
is first asked, perhaps long after it has moved.) Who is late is answered by the end of that
connection, and asks again over another one, if it still lives.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from lapse.base.errors import LapseError

PRODUCERS_MAX = 10_000  # that are remembered, of those heard last; of others nothing is late


class LateRequestError(LapseError):
    """It came by a connection that its client has given up; the message is a line in the log."""


class Arrivals:
    """Numbers a broker's connections in the order in which they were accepted, from 0."""

    def __init__(self) -> None:
        self._next = 0

    @property
    def next_number(self) -> int:
        """Of the connection that comes next: all that are there have a lower one."""
        return self._next

    def number(self) -> int:
        """Of one that has come."""
        number, self._next = self._next, self._next + 1
        return number


class NewestConnections:
    """By which connection each producer was heard last, since this coordinator looks after it."""

    def __init__(self, since: int = 0) -> None:
        """Of who is not known yet, connections that are older than `since` are late."""
        self._since = since
        self._newest: OrderedDict[Hashable, int] = OrderedDict()

    def heard(self, producer: Hashable, connection: int) -> None:
        """A request of the producer was carried out, so it is not one that was fenced."""
        newest = max(connection, self._newest.get(producer, 0))
        self._newest[producer] = newest
        self._newest.move_to_end(producer)
        if len(self._newest) > PRODUCERS_MAX:
            self._newest.popitem(last=False)
            self._since = 0  # those who were forgotten have not moved

    def require_newest(
        self, producer: Hashable, connection: int, what: str, *, moved_too: bool = True
    ) -> None:
        """Raise LateRequestError where a connection is older than the one heard last.

        `moved_too`: of a producer that has not been heard, than this coordinator.
        """
        if connection < self._newest.get(producer, self._since if moved_too else 0):
            raise LateRequestError(
                f"{what} came by a connection that is older than the one by which its producer "
                "speaks, or than this coordinator: it may be of an earlier transaction. Whoever "
                "waits for an answer asks again over another connection"
            )
