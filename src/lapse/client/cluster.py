"""A cluster as a client sees it: the partitions' leaders, and one connection to each broker.

`Cluster` requests metadata from any broker it can reach, keeps it until a caller finds it outdated
(`forget`), and opens a connection to a leader on first use. It does not retry: the caller knows how
long a call may take, and retries itself (`RETRIABLE`, `base.backoff`).

Used by `producer`, `consumer` and `deletion`.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lapse.base.errors import ConfigError, ErrorCode, KafkaError, LapseError
from lapse.base.ids import TopicPartition
from lapse.base.typed import whole
from lapse.client.connection import BrokerConnection, ConnectionLost, closed_if_lost
from lapse.client.login import PLAINTEXT, Login
from lapse.client.settings import refusal
from lapse.wire.schema.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)

NO_LEADER = -1

# Errors after which the same request may succeed, at this leader or at another.
RETRIABLE = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,  # on the way, Kafka's clients believe
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)
# The same where a person waits: a missing topic is reported at once.
AGAIN = RETRIABLE - {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def as_kafka(error: KafkaError | ConnectionLost) -> KafkaError:
    """In the place of an answer."""
    if isinstance(error, KafkaError):
        return error
    return KafkaError(ErrorCode.NETWORK_EXCEPTION, str(error))


def may_try_again(error: LapseError) -> bool:
    """Whether another attempt may succeed, where a person waits for it."""
    if isinstance(error, KafkaError):
        return error.code in AGAIN
    return isinstance(error, ConnectionLost)


class Address(NamedTuple):
    """Where a broker listens."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic's id; by partition its leader (`NO_LEADER` while there is none), and its epoch."""

    name: str
    topic_id: uuid.UUID
    leaders: Mapping[int, int]
    leader_epochs: Mapping[int, int] = field(default_factory=dict)


def parse_bootstrap(text: str) -> tuple[Address, ...]:
    """`HOST:PORT,HOST:PORT…` as in `bootstrap.servers`; raises ConfigError."""
    addresses = []
    for one in text.split(","):
        host, colon, port = one.strip().rpartition(":")
        number = whole(port)
        if not (colon and host and number and number < 1 << 16):
            raise ConfigError(f"bootstrap.servers {text}: allowed is HOST:PORT,HOST:PORT…")
        addresses.append(Address(host.strip("[]"), number))
    return tuple(addresses)


class Cluster(AbstractAsyncContextManager["Cluster"]):
    """Leaders, and connections to them; an async context manager."""

    def __init__(self, bootstrap: Sequence[Address], login: Login = PLAINTEXT) -> None:
        self._bootstrap = tuple(bootstrap)
        self._login = login
        # Of the last Metadata responses.
        self._brokers: dict[int, Address] = {}
        self._topics: dict[str, Topic] = {}
        self._connections: dict[Address, asyncio.Task[BrokerConnection]] = {}

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections; requests under way fail."""
        for opening in self._connections.values():
            if opening.done() and not opening.cancelled() and opening.exception() is None:
                opening.result().close()
            opening.cancel()
        self._connections.clear()

    async def finish(self, timeout_seconds: float) -> None:
        """Close all connections, each once what was sent has left this process, or time is up."""
        there = [one.result() for one in self._connections.values() if _is_open(one)]
        await asyncio.gather(*(connection.finish(timeout_seconds) for connection in there))
        self.close()

    async def topic(self, name: str, *, create: bool = False) -> Topic:
        """A topic's leaders; with `create` the broker may make it (`auto.create.topics.enable`).

        Raises:
            KafkaError: UNKNOWN_TOPIC_OR_PARTITION, LEADER_NOT_AVAILABLE, or the broker's error.
            ConnectionLost: no broker can be reached.
        """
        known = self._topics.get(name)
        if known is None:
            await self.refresh([name], create=create)
            known = self._topics[name]
        return known

    async def refresh(self, names: Iterable[str], *, create: bool = False) -> None:
        """Request the topics' metadata again; raises as `topic`, for the first topic refused."""
        requested = tuple(MetadataRequestTopic(name=name) for name in names)
        request = MetadataRequest(topics=requested, allow_auto_topic_creation=create)
        answer = await _metadata(await self.any_connection(), request)
        self._brokers = {b.node_id: Address(b.host, b.port) for b in answer.brokers}
        refused = None
        for metadata in answer.topics:
            name = metadata.name or ""
            if metadata.error_code:
                self._topics.pop(name, None)
                refused = refused or refusal(metadata.error_code, None, name)
            else:
                self._topics[name] = _topic(name, metadata)
        if refused is not None:
            raise refused

    async def topics(
        self, names: Iterable[str] | None = None, *, at: BrokerConnection | None = None
    ) -> dict[str, Topic]:
        """Return the current metadata of the named topics, or of all topics the client may see.

        It comes from any broker, or from the broker `at`. A topic that does not exist or has
        another error is left out. Nothing of the response is kept.
        """
        requested = None if names is None else tuple(MetadataRequestTopic(name=n) for n in names)
        request = MetadataRequest(topics=requested, allow_auto_topic_creation=False)
        answer = await _metadata(await self.any_connection() if at is None else at, request)
        return {
            metadata.name or "": _topic(metadata.name or "", metadata)
            for metadata in answer.topics
            if not metadata.error_code
        }

    def forget(self, name: str) -> None:
        """Drop a topic's metadata, which has turned out wrong."""
        self._topics.pop(name, None)

    def forget_all(self) -> None:
        """Drop all metadata, and keep the connections: for who comes after another."""
        self._topics.clear()

    def failed(self, connection: BrokerConnection, topic: str) -> None:
        """Close the connection of a broker that did not answer, and drop the topic's metadata."""
        connection.close()
        self.forget(topic)

    async def leader(self, partition: TopicPartition) -> int:
        """Return the id of the partition's leader; raises as `topic`."""
        topic = await self.topic(partition.topic)
        leader = topic.leaders.get(partition.partition)
        if leader is None:
            self.forget(partition.topic)  # it may have grown
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{partition}: there is no such partition"
            )
        if leader == NO_LEADER or leader not in self._brokers:
            self.forget(partition.topic)
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{partition}: it has no leader")
        return leader

    async def leader_connection(self, partition: TopicPartition) -> BrokerConnection:
        """An open connection to the leader; raises as `topic`."""
        return await self.connection(await self.leader(partition))

    async def connection(self, node_id: int) -> BrokerConnection:
        """An open connection to a node that metadata named; ConnectionLost if it does no longer."""
        address = self._brokers.get(node_id)
        if address is None:
            raise ConnectionLost(f"broker {node_id} is not among the brokers any more", sent=False)
        try:
            return await self._open(address)
        except ConnectionLost:
            led = [name for name, one in self._topics.items() if node_id in one.leaders.values()]
            for name in led:  # another one leads by now, or will soon
                self.forget(name)
            raise

    async def brokers(self) -> dict[int, Address]:
        """Return the addresses of all brokers by id, from a new Metadata response of any broker."""
        request = MetadataRequest(topics=(), allow_auto_topic_creation=False)
        answer = await _metadata(await self.any_connection(), request)
        return {b.node_id: Address(b.host, b.port) for b in answer.brokers}

    async def at(self, address: Address) -> BrokerConnection:
        """An open connection to a broker that another broker named (a group's coordinator)."""
        return await self._open(address)

    async def any_connection(self) -> BrokerConnection:
        """An open connection, or a new one to the first broker that can be reached."""
        for opening in self._connections.values():
            if _is_open(opening):
                return opening.result()
        lost: ConnectionLost | None = None
        for address in (*self._bootstrap, *self._brokers.values()):
            try:
                return await self._open(address)
            except ConnectionLost as e:
                lost = e
        raise lost or ConfigError("bootstrap.servers: no address is given")

    async def _open(self, address: Address) -> BrokerConnection:
        """Return the one connection per address, also to several callers at once."""
        opening = self._connections.get(address)
        if opening is None or (opening.done() and not _is_open(opening)):
            opening = asyncio.create_task(
                BrokerConnection.open(address.host, address.port, self._login)
            )
            opening.add_done_callback(take_note)
            self._connections[address] = opening
        return await asyncio.shield(opening)


async def _metadata(connection: BrokerConnection, request: MetadataRequest) -> MetadataResponse:
    with closed_if_lost(connection):
        return await connection.request(request, MetadataResponse)


def take_note(done: asyncio.Future[Any]) -> None:
    """Retrieve a future's error: its caller may be gone."""
    if not done.cancelled():
        done.exception()


def _is_open(opening: asyncio.Task[BrokerConnection]) -> bool:
    return (
        opening.done()
        and not opening.cancelled()
        and opening.exception() is None
        and not opening.result().is_lost
    )


def _topic(name: str, metadata: MetadataResponseTopic) -> Topic:
    leaders = {p.partition_index: p.leader_id for p in metadata.partitions}
    epochs = {p.partition_index: p.leader_epoch for p in metadata.partitions}
    return Topic(name, metadata.topic_id, leaders, epochs)
