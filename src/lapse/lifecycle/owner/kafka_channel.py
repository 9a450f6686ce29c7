"""The channel to a broker on any machine: the API LifecycleControl at one of its listeners.

The service must see the broker's log directories under the same paths: it looks for the file that
the broker has put there for it. While it has nothing to ask it says now and then that it is there,
or the broker would take another service after some time. One event loop in a thread of its own
carries the messages of all brokers; each has a connection to itself, which a commit may keep busy.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Any, TypeVar

from lapse.base.errors import CorruptData, ErrorCode, KafkaError, LapseError
from lapse.base.threads import LoopThread
from lapse.client.cluster import Address, Cluster, parse_bootstrap
from lapse.client.connection import BrokerConnection, ConnectionLost, closed_if_lost
from lapse.client.login import Login
from lapse.lifecycle.owner import messages
from lapse.lifecycle.owner.channel import expected
from lapse.lifecycle.owner.messages import (
    Adopt,
    Commit,
    Hello,
    Leave,
    Noted,
    Renew,
    Request,
    Welcome,
)
from lapse.lifecycle.owner.protocol import OwnerGone, OwnerNotSeen
from lapse.wire.errors import UnsupportedVersion
from lapse.wire.schema.lifecycle_control import (
    LifecycleControlRequest,
    LifecycleControlResponse,
)
from lapse.wire.versions import PROTOCOL_VERSION

logger = logging.getLogger(__name__)

COMMIT_SECONDS_MAX = 300.0
ANSWER_SECONDS_MAX = 60.0
LEAVE_SECONDS_MAX = 3.0
# A renewal over a dead connection, and then over another one, come before the lease is lost.
RENEW_SECONDS, RENEWED_SECONDS_MAX = 5.0, 10.0

T = TypeVar("T")


class Brokers:
    """A cluster's brokers, and the thread that talks to them."""

    def __init__(self, bootstrap: str, login: Login) -> None:
        """Raises ConfigError where the address is none."""
        self.bootstrap, self.login = bootstrap, login
        self._cluster = Cluster(parse_bootstrap(bootstrap), login)
        self._loop = LoopThread("lapse-control")
        self._trouble = ""

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What comes of it; raises OwnerGone where a broker does not answer, or refuses."""
        try:
            return self._loop.start(work).result()
        except (ConnectionLost, KafkaError, UnsupportedVersion) as e:
            raise OwnerGone(str(e)) from e
        except CancelledError as e:
            raise OwnerGone("this service ends") from e

    def listing(self) -> Future[dict[int, Address]]:
        """Those that are there now, once it is known; `listed` says which."""
        return self._loop.start(self._cluster.brokers())

    def listed(self, listing: Future[dict[int, Address]]) -> list[int]:
        """Their ids; none where no broker answers, which is logged once."""
        try:
            found = sorted(listing.result())
        except CancelledError:
            return []  # this service ends
        except (LapseError, OSError) as e:
            if str(e) != self._trouble:
                logger.warning("brokers are not known: %s; asking again", e)
            self._trouble = str(e)
            return []
        self._trouble = ""
        return found

    async def address(self, node_id: int) -> Address:
        """Where a broker listens; raises ConnectionLost where it is not there."""
        found = (await self._cluster.brokers()).get(node_id)
        if found is None:
            raise ConnectionLost(f"broker {node_id} is not among the brokers", sent=False)
        return found

    def close(self) -> None:
        """End the thread, and all connections."""
        self._loop.close(self._cluster.close)


class KafkaChannel:
    """`Channel`: a broker of a cluster, by its id.

    The lease is not bound to a connection: where one is lost, the message goes over another one,
    once. What came twice the broker does once.
    """

    def __init__(self, brokers: Brokers, node_id: int) -> None:
        self._brokers, self._node_id = brokers, node_id
        self._connection: BrokerConnection | None = None
        self._lease = ""
        self._turn = asyncio.Lock()
        self._renewing: asyncio.Task[None] | None = None

    @property
    def where(self) -> str:
        return f"broker {self._node_id}"

    def open(self) -> Welcome:
        """Also raises OwnerGone where its log directories are not those that are seen here."""
        welcome = self._brokers.run(self._greet())
        is_name = welcome.mark.startswith(messages.MARK) and "/" not in welcome.mark
        unseen = next(
            (d for d in welcome.dirs if not (is_name and (Path(d) / welcome.mark).exists())), None
        )
        if unseen is not None:
            raise OwnerNotSeen(
                f"{self.where} keeps logs in {unseen}, and what this machine has there is not that "
                "directory: it must see the broker's own, under the same path"
            )
        return welcome

    def ask(self, request: Request, wanted: type[messages.T]) -> messages.T:
        is_long = isinstance(request, Commit | Adopt)
        seconds = COMMIT_SECONDS_MAX if is_long else ANSWER_SECONDS_MAX
        return self._brokers.run(self._exchange(request, wanted, seconds))

    def close(self) -> None:
        with contextlib.suppress(OwnerGone):
            self._brokers.run(self._leave())

    async def _greet(self) -> Welcome:
        hello = Hello(messages.VERSION, os.getpid(), socket.gethostname(), self._lease)
        welcome = await self._exchange(hello, Welcome, COMMIT_SECONDS_MAX)  # it sweeps first
        self._lease = welcome.lease
        self._renewing = asyncio.create_task(self._renew())
        return welcome

    async def _connected(self) -> BrokerConnection:
        if self._connection is None or self._connection.is_lost:
            host, port = await self._brokers.address(self._node_id)
            self._connection = await BrokerConnection.open(host, port, self._brokers.login)
            if not self._connection.offers(PROTOCOL_VERSION):
                raise UnsupportedVersion(f"{self.where}, {host}:{port}, is no Lapse, or older")
        return self._connection

    async def _exchange(
        self, request: Request, wanted: type[messages.T], seconds: float
    ) -> messages.T:
        body = messages.encode(request)[messages.LENGTH.size :]
        message = LifecycleControlRequest(lease=self._lease, message=body)
        async with self._turn:
            try:
                answer = await self._sent(message, seconds)
            except ConnectionLost:
                if isinstance(request, Hello | Leave):
                    raise
                answer = await self._sent(message, seconds)
        if answer.error_code:
            code = ErrorCode(answer.error_code)
            words = f"{self.where}: {code.name}: {answer.error_message or 'refused'}"
            raise KafkaError(code, words)
        return expected(messages.decode_answer(answer.message, self.where), wanted, self.where)

    async def _sent(
        self, message: LifecycleControlRequest, seconds: float
    ) -> LifecycleControlResponse:
        """A connection that does not answer in time is of no more use."""
        connection = await self._connected()
        with closed_if_lost(connection):
            return await connection.request(
                message, LifecycleControlResponse, version=0, timeout_seconds=seconds
            )

    async def _renew(self) -> None:
        """Until the channel is closed, or the broker says that the lease is lost."""
        with contextlib.suppress(OwnerGone, KafkaError, UnsupportedVersion, CorruptData):
            while True:
                await asyncio.sleep(RENEW_SECONDS)
                with contextlib.suppress(ConnectionLost):
                    await self._exchange(Renew(), Noted, RENEWED_SECONDS_MAX)

    async def _leave(self) -> None:
        """Say so, and hang up; a lease that cannot be given back is named by the next Hello."""
        if self._renewing is not None:
            self._renewing.cancel()
        connection, self._renewing = self._connection, None
        if connection is None:
            return
        try:
            if self._lease and not connection.is_lost:
                await self._exchange(Leave(), Noted, LEAVE_SECONDS_MAX)
                self._lease = ""
        finally:
            self._connection = None
            connection.close()
