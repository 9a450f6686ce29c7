"""What handlers work with: the parts of a running broker, and the connection a request came by.

`node` makes one `Services`; `connection` makes one `Session` each. Handlers are plain functions
`(services, session, version, message) -> response`; None means that nothing is sent back.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lapse.base.clock import Clock
from lapse.base.config import BrokerConfig
from lapse.base.errors import LapseError
from lapse.base.readable import shortened
from lapse.broker.access.acl_store import Access
from lapse.broker.access.authentication import Entrance
from lapse.broker.access.listeners import ANY_ADDRESS, Address
from lapse.broker.control.remote import RemoteServices
from lapse.broker.coordinators.groups import GroupCoordinator
from lapse.broker.coordinators.late_requests import Arrivals
from lapse.broker.coordinators.transactions import Transactions
from lapse.broker.limits.client_quotas import ClientQuotas
from lapse.broker.limits.connection_rates import ConnectionRates
from lapse.broker.limits.connections import ConnectionsByAddress
from lapse.broker.limits.log_lines import LogLines
from lapse.broker.limits.memory import AnswerBytes, RequestBytes
from lapse.broker.logs.counters import Counters
from lapse.broker.logs.disk import DiskThreads
from lapse.broker.logs.fetch_sessions import FetchSessions
from lapse.broker.logs.partitions import Partitions
from lapse.broker.logs.purgatory import Purgatory, Watch
from lapse.broker.logs.topics import Topics
from lapse.broker.replicas.moves import Moves
from lapse.broker.replicas.replicas import Replicas
from lapse.lifecycle.outlook.erasures import Erasures
from lapse.lifecycle.outlook.overview import Overview
from lapse.lifecycle.status.conditions import Condition
from lapse.security.acls import Operation, ResourceType
from lapse.security.attempts import LoginAttempts
from lapse.security.authorizer import ANONYMOUS, Authorizer, RequestContext, host_of
from lapse.security.sasl import SaslServer
from lapse.wire.schema.api_versions import ApiVersion


class CloseConnection(LapseError):
    """The connection cannot go on; the message is its one line in the log."""


def _do_nothing() -> None:
    """For a session without a connection."""


@dataclass(slots=True)
class Session:
    """One connection, as handlers see it.

    Attributes:
        peer: the client's address, for the log.
        local_host: the address of ours that it reached.
        entrance: the listener that it came by.
        sasl: its login, where that listener wants one.
        certified: whom its certificate names, where it came by TLS alone.
        muted_ms: how long its client is to wait before the next request is handled (KIP-219).
        throttled_until_ms: until when its client's changes of topics are over their quota, by the
            monotonic clock.
        has_paid: whether its client was charged for the topics that the current request changes.
        ends: why its connection ends after the answer; empty while it goes on. `end` sets it.
        when_ending: called as that is decided: the answer itself may be held back for long.
        lost: whether the client is gone and reads no more responses.
        watch: what the connection's current request waits for, if it does.
        client_id: what the client calls itself in the current request.
        number: how many connections this broker had accepted before.
        allowed: what it may do, as far as the fast path has asked, and who said so.
    """

    peer: str
    local_host: str
    entrance: Entrance
    sasl: SaslServer | None = None
    certified: str = ANONYMOUS
    ends: str = ""
    muted_ms: int = 0
    throttled_until_ms: int = 0
    has_paid: bool = False
    lost: bool = False
    watch: Watch | None = None
    client_id: str = ""
    number: int = 0
    when_ending: Callable[[], None] = _do_nothing
    allowed: tuple[Authorizer, dict[tuple[Operation, ResourceType, str], bool]] | None = None
    _host: str | None = None

    @property
    def client_host(self) -> str:
        """The client's host, as Kafka spells it in groups."""
        return f"/{self.peer.rsplit(':', 1)[0]}"

    @property
    def address(self) -> str:
        """The client's address alone."""
        return self.peer.rsplit(":", 1)[0]

    @property
    def principal(self) -> str:
        """The name of the client's principal."""
        return self.certified if self.sasl is None else self.sasl.principal or ANONYMOUS

    @property
    def is_known(self) -> bool:
        """Whether it has logged in, where its listener wants a login, and is not about to again."""
        return self.sasl is None or self.sasl.principal is not None

    @property
    def actor(self) -> RequestContext:
        """The client, for the authorizer."""
        if self._host is None:
            self._host = host_of(self.address)
        return RequestContext(self.principal, self._host)

    def waits_with(self, watch: Watch | None) -> None:
        """What the current request waits for; None once it does not any more."""
        self.watch = watch

    def end(self, reason: str) -> None:
        """Have the connection end after the current answer; nothing more of it is handled."""
        self.ends = shortened(reason)
        self.when_ending()

    def lose(self) -> None:
        """The client is gone: stop waiting on its behalf, and know nothing of its connection.

        Else each would know the other, and the connection's memory would wait for the collector.
        """
        self.lost = True
        self.when_ending = _do_nothing
        if self.watch is not None:
            self.watch.give_up()


@dataclass(frozen=True, slots=True)
class Services:
    """The parts of a running broker.

    `advertised`: the APIs that it answers, for clients. `conditions`: whoever knows what is out of
    order, once they are there; called in threads. `overviews`: likewise, who counts the logs.
    `erasures`: orders in `lapse.erase.orders.dir`; for threads. `remote_services`: for lifecycle
    services on other machines.
    """

    config: BrokerConfig
    clock: Clock
    disk: DiskThreads
    topics: Topics
    partitions: Partitions
    moves: Moves
    purgatory: Purgatory
    replicas: Replicas
    transactions: Transactions
    counters: Counters
    groups: GroupCoordinator
    quotas: ClientQuotas
    access: Access
    by_address: ConnectionsByAddress
    log_lines: LogLines
    connection_rates: ConnectionRates
    fetch_sessions: FetchSessions
    request_bytes: RequestBytes
    answer_bytes: AnswerBytes
    entrances: tuple[Entrance, ...]
    attempts: LoginAttempts
    advertised: tuple[ApiVersion, ...]
    arrivals: Arrivals
    erasures: Erasures
    remote_services: RemoteServices
    conditions: list[Callable[[], Sequence[Condition]]] = field(default_factory=list)
    overviews: list[Callable[[], Overview]] = field(default_factory=list)

    @property
    def address(self) -> Address:
        """Where the first listener listens."""
        return self.entrances[0].listener.address

    def addresses_for(self, session: Session) -> Mapping[int, Address]:
        """The addresses of all brokers that a client gets: those of its listener's name.

        None where that listener is not advertised here.
        """
        own = self.address_for(session)
        if own is None:
            return {}
        name = session.entrance.listener.name
        others = self.topics.members.brokers
        found = {
            broker: Address(*registered.listeners[name])
            for broker, registered in others.items()
            if name in registered.listeners
        }
        return {**found, self.config.node_id: own}

    def address_for(self, session: Session) -> Address | None:
        """The address that a client gets: its listener's; None where that is not advertised.

        Where the setting names no host, the host is the one that the client reached.
        """
        listener = session.entrance.listener
        if not listener.is_advertised:
            return None
        address = listener.advertised or listener.address
        host = session.local_host if address.host in ANY_ADDRESS else address.host
        return Address(host, address.port or listener.address.port)


Handler = Callable[[Services, Session, int, Any], Coroutine[Any, Any, Any]]
