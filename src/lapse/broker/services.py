"""What handlers work with: the parts of a running broker, and the connection a request came by.

`node` makes one `Services`; `connection` makes one `Session` each. Handlers are plain functions
`(services, session, version, message) -> response`; None means that nothing is sent back.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from lapse.base.clock import Clock
from lapse.base.config import BrokerConfig
from lapse.base.errors import LapseError
from lapse.broker.counters import Counters
from lapse.broker.disk import DiskThreads
from lapse.broker.group_coordinator import GroupCoordinator
from lapse.broker.partitions import Partitions
from lapse.broker.producer_ids import ProducerIds
from lapse.broker.purgatory import Purgatory, Watch
from lapse.broker.topics import Topics

ANY_ADDRESS = frozenset({"0.0.0.0", "::"})  # noqa: S104  (compared with, not bound)


class CloseConnection(LapseError):
    """The connection cannot go on; the message is its one line in the log."""


@dataclass(slots=True)
class Session:
    """One connection, as handlers see it.

    Attributes:
        peer: the client's address, for the log.
        local_host: the address of ours that it reached.
        lost: nobody reads answers any more.
        watch: what the connection's current request waits for, if it does.
        client_id: what the client calls itself in the current request.
    """

    peer: str
    local_host: str
    lost: bool = False
    watch: Watch | None = None
    client_id: str = ""

    @property
    def client_host(self) -> str:
        """The client's host, as Kafka spells it in groups."""
        return f"/{self.peer.rsplit(':', 1)[0]}"

    def lose(self) -> None:
        """The client is gone: stop waiting on its behalf."""
        self.lost = True
        if self.watch is not None:
            self.watch.wake()


@dataclass(slots=True)
class Address:
    """Where a listener listens; the port is known once it does."""

    host: str
    port: int = 0

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Services:
    """The parts of a running broker."""

    config: BrokerConfig
    clock: Clock
    disk: DiskThreads
    topics: Topics
    partitions: Partitions
    purgatory: Purgatory
    producer_ids: ProducerIds
    counters: Counters
    groups: GroupCoordinator
    address: Address = field(default_factory=lambda: Address("127.0.0.1"))

    def host_for(self, session: Session) -> str:
        """The host to tell a client; where we listen at all addresses, the one it reached."""
        return session.local_host if self.address.host in ANY_ADDRESS else self.address.host


Handler = Callable[[Services, Session, int, Any], Awaitable[Any]]
