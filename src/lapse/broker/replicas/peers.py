"""Connections to the other brokers of the cluster, by the listener that is for brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from lapse.base.clock import Clock
from lapse.base.errors import ConfigError, ErrorCode, KafkaError
from lapse.broker.logs.members import Members
from lapse.broker.logs.topics import NewTopic
from lapse.client.connection import BrokerConnection, ConnectionLost, closed_if_lost
from lapse.client.login import Login
from lapse.wire.schema.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

R = TypeVar("R")

ANSWER_SECONDS_MAX = 30.0
_DEFAULT = -1
_CLIENT_ID = "lapse-broker-"


class NotLetIn(ConnectionLost):
    """The other broker refuses this one's login, or there is none that could be tried."""


def is_broker(client_id: str) -> bool:
    """Whether a broker calls itself so; anybody may."""
    return client_id.startswith(_CLIENT_ID)


class Peers:
    """One connection to each broker, for requests that are answered at once.

    Who waits long for an answer, as a fetch does, opens its own: a broker answers in order.
    """

    def __init__(
        self, members: Members, listener: str, clock: Clock, login: Callable[[], Login]
    ) -> None:
        """`login` says how this broker gets in; it may read files."""
        self._members, self._listener, self._clock = members, listener, clock
        self._login = login
        self._open: dict[int, BrokerConnection] = {}
        self._opening: dict[int, asyncio.Lock] = {}

    async def connect(self, broker: int) -> BrokerConnection:
        """A new connection; raises ConnectionLost, BROKER_NOT_AVAILABLE where it is not there.

        What is wrong with this broker's login is NotLetIn: no client must take it for its own.
        """
        registered = self._members.brokers.get(broker)
        address = None if registered is None else registered.listeners.get(self._listener)
        if address is None:
            raise KafkaError(
                ErrorCode.BROKER_NOT_AVAILABLE,
                f"broker {broker} is not there, or has no listener {self._listener}",
            )
        host, port = address
        name = f"{_CLIENT_ID}{self._members.node_id}"
        try:
            login = await asyncio.to_thread(self._login)
            return await BrokerConnection.open(host, port, login, self._clock, client_id=name)
        except (KafkaError, ConfigError) as e:
            raise NotLetIn(f"broker {broker} at {host}:{port}: {e}", sent=False) from e

    async def request(
        self, broker: int, message: Any, answer: type[R], *, version: int | None = None
    ) -> R:
        """Send a request and wait for its answer; raises as `connect`, and UnsupportedVersion.

        In a task of its own: a handler may run outside of one, where nothing can time out.
        """
        asking = self._request(broker, message, answer, version)
        return await asyncio.get_running_loop().create_task(asking)

    async def _request(self, broker: int, message: Any, answer: type[R], version: int | None) -> R:
        async with self._opening.setdefault(broker, asyncio.Lock()):
            connection = self._open.get(broker)
            if connection is None or connection.is_lost:
                connection = self._open[broker] = await self.connect(broker)
        with closed_if_lost(connection):
            return await connection.request(
                message, answer, version=version, timeout_seconds=ANSWER_SECONDS_MAX
            )

    @property
    def own_epoch(self) -> int:
        """The epoch of this broker's registration."""
        return self._members.epoch

    async def close(self) -> None:
        """Hang up."""
        for connection in self._open.values():
            connection.close()
        self._open.clear()


async def ask_for_topic(peers: Peers, members: Members, new: NewTopic) -> None:
    """Have the controller make a topic, if there is none yet; raises KafkaError."""
    if members.controller_id is None:
        raise KafkaError(
            ErrorCode.NOT_CONTROLLER, f"topic {new.name}: there is no controller just now"
        )
    configs = tuple(CreatableTopicConfig(name=k, value=v) for k, v in new.overrides.items())
    wanted = CreatableTopic(
        name=new.name, num_partitions=new.partitions,
        replication_factor=new.replication_factor or _DEFAULT, assignments=(), configs=configs,
    )  # fmt: skip
    request = CreateTopicsRequest(topics=(wanted,), timeout_ms=int(ANSWER_SECONDS_MAX * 1000))
    try:
        answer = await peers.request(members.controller_id, request, CreateTopicsResponse)
    except ConnectionLost as e:
        raise KafkaError(ErrorCode.NOT_CONTROLLER, f"topic {new.name}: {e}") from e
    [made] = answer.topics
    if made.error_code not in {ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS}:
        message = made.error_message or f"topic {new.name} cannot be made"
        raise KafkaError(ErrorCode(made.error_code), message)
