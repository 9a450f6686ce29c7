"""Topics and settings from the outside: create, grow, delete, list, describe, alter.

Behind `lapse topic` and `delete-records`, and `lapse plan` and `explain` with a broker. A refusal
comes out as `KafkaError` with the broker's code and words. Requests go to the broker that was given
(a single node is its own controller), but records are deleted at each partition's leader.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Self

from lapse.base.errors import KafkaError
from lapse.base.ids import TopicPartition
from lapse.client import settings
from lapse.client.cluster import Cluster, parse_bootstrap
from lapse.client.connection import BrokerConnection, ConnectionLost
from lapse.client.groups import GroupOffsets, group_offsets
from lapse.client.login import PLAINTEXT, Login
from lapse.client.offsets import EARLIEST, LATEST, By, OffsetSpec, list_offsets, to_ms
from lapse.client.settings import (
    ConfigChange,
    DeleteRecordsResult,
    Resource,
    ResourceConfig,
    refusal,
)
from lapse.wire.schema.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from lapse.wire.schema.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from lapse.wire.schema.delete_records import DeleteRecordsResponse
from lapse.wire.schema.delete_topics import (
    DELETE_TOPICS,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from lapse.wire.schema.describe_configs import DescribeConfigsResponse
from lapse.wire.schema.incremental_alter_configs import IncrementalAlterConfigsResponse
from lapse.wire.schema.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)

DEFAULT = -1
if TYPE_CHECKING:
    from lapse.client.deletion import Before

TIMEOUT_MS = 30_000
DELETE_TIMEOUT_MS = 20_000  # below what a connection waits for an answer
_BY_ID_OR_NAME_FROM = 6


@dataclass(frozen=True, slots=True)
class TopicListing:
    """A topic as in a Metadata response."""

    name: str
    topic_id: uuid.UUID
    partitions: int


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """One partition: who has it, and its first and next offset (-1 where unknown)."""

    partition: int
    leader: int
    replicas: tuple[int, ...]
    log_start_offset: int
    log_end_offset: int


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic and its partitions; an internal one is written by its coordinator alone."""

    name: str
    topic_id: uuid.UUID
    partitions: tuple[PartitionDescription, ...]
    is_internal: bool = False


class Admin(AbstractAsyncContextManager["Admin"]):
    """Topic operations over one connection; an async context manager where `open` made it."""

    def __init__(
        self,
        connection: BrokerConnection,
        request_timeout_ms: int = TIMEOUT_MS,
        *,
        login: Login = PLAINTEXT,
    ) -> None:
        """`request_timeout_ms` bounds calls to several brokers; `login` is for the other ones."""
        self._connection = connection
        self._request_timeout_ms = request_timeout_ms
        self._login = login

    @classmethod
    async def open(
        cls, bootstrap: str, request_timeout_ms: int = TIMEOUT_MS, *, login: Login = PLAINTEXT
    ) -> Self:
        """Connect to the first of HOST:PORT,HOST:PORT… that can be reached.

        Raises:
            ConfigError: the addresses are none.
            ConnectionLost: no broker can be reached.
        """
        cluster = Cluster(parse_bootstrap(bootstrap), login)
        return cls(await cluster.any_connection(), request_timeout_ms, login=login)

    async def __aexit__(self, *_: object) -> None:
        self._connection.close()

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int = DEFAULT,
        replication_factor: int = DEFAULT,
        configs: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> TopicListing:
        """Create one topic; raises KafkaError."""
        topic = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=replication_factor,
            assignments=(),
            configs=tuple(
                CreatableTopicConfig(name=key, value=value)
                for key, value in (configs or {}).items()
            ),
        )
        request = CreateTopicsRequest(
            topics=(topic,), timeout_ms=TIMEOUT_MS, validate_only=validate_only
        )
        (done,) = (await self._connection.request(request, CreateTopicsResponse)).topics
        if done.error_code:
            raise refusal(done.error_code, done.error_message, name)
        return TopicListing(done.name, done.topic_id, done.num_partitions)

    async def create_partitions(
        self, name: str, count: int, *, validate_only: bool = False
    ) -> None:
        """Give a topic `count` partitions in all; raises KafkaError."""
        topic = CreatePartitionsTopic(name=name, count=count, assignments=None)
        request = CreatePartitionsRequest(
            topics=(topic,), timeout_ms=TIMEOUT_MS, validate_only=validate_only
        )
        (done,) = (await self._connection.request(request, CreatePartitionsResponse)).results
        if done.error_code:
            raise refusal(done.error_code, done.error_message, name)

    async def delete_topic(self, name: str) -> None:
        """Delete one topic; raises KafkaError."""
        version = self._connection.version_of(DELETE_TOPICS)
        by_state = version >= _BY_ID_OR_NAME_FROM
        request = DeleteTopicsRequest(
            topics=(DeleteTopicState(name=name),) if by_state else (),
            topic_names=() if by_state else (name,),
            timeout_ms=TIMEOUT_MS,
        )
        answer = await self._connection.request(request, DeleteTopicsResponse, version=version)
        (done,) = answer.responses
        if done.error_code:
            raise refusal(done.error_code, done.error_message, name)

    async def list_topics(self) -> Sequence[TopicListing]:
        """All topics, by name."""
        answer = await self._connection.request(
            MetadataRequest(topics=None, allow_auto_topic_creation=False), MetadataResponse
        )
        listings = [
            TopicListing(topic.name or "", topic.topic_id, len(topic.partitions))
            for topic in answer.topics
        ]
        return sorted(listings, key=lambda listing: listing.name)

    async def describe_topic(self, name: str) -> TopicDescription:
        """One topic with the offsets of its partitions; raises KafkaError."""
        request = MetadataRequest(
            topics=(MetadataRequestTopic(name=name),), allow_auto_topic_creation=False
        )
        answer = await self._connection.request(request, MetadataResponse)
        (topic,) = answer.topics
        if topic.error_code:
            raise refusal(topic.error_code, None, name)
        is_alone = len(answer.brokers) == 1
        starts = await self._offsets(topic, EARLIEST, is_alone=is_alone)
        ends = await self._offsets(topic, LATEST, is_alone=is_alone)
        return TopicDescription(
            name,
            topic.topic_id,
            tuple(
                PartitionDescription(
                    p.partition_index,
                    p.leader_id,
                    p.replica_nodes,
                    starts.get(p.partition_index, -1),
                    ends.get(p.partition_index, -1),
                )
                for p in sorted(topic.partitions, key=lambda p: p.partition_index)
            ),
            topic.is_internal,
        )

    async def describe_configs(
        self,
        resources: Iterable[Resource],
        names: Sequence[str] | None = None,
        *,
        synonyms: bool = False,
        documentation: bool = False,
    ) -> dict[Resource, ResourceConfig]:
        """Settings of topics and brokers; with `names`, only those."""
        request = settings.describe_request(
            resources, names, synonyms=synonyms, documentation=documentation
        )
        return settings.described(await self._connection.request(request, DescribeConfigsResponse))

    async def incremental_alter_configs(
        self, changes: Mapping[Resource, Iterable[ConfigChange]], *, validate_only: bool = False
    ) -> dict[Resource, KafkaError | None]:
        """Change settings, each resource as a whole or not at all; None where it was done."""
        request = settings.alter_request(changes, validate_only=validate_only)
        answer = await self._connection.request(request, IncrementalAlterConfigsResponse)
        return settings.altered(answer)

    async def delete_records(
        self, offsets: Mapping[TopicPartition, int], *, timeout_ms: int = DELETE_TIMEOUT_MS
    ) -> dict[TopicPartition, DeleteRecordsResult]:
        """Have nothing below these offsets served any more; -1 is the high watermark (KIP-107)."""
        request = settings.delete_request(offsets, timeout_ms)
        return settings.deleted(await self._connection.request(request, DeleteRecordsResponse))

    def delete_records_before(
        self, before: Mapping[TopicPartition, Before], *, by: By = By.AGE
    ) -> asyncio.Future[dict[TopicPartition, DeleteRecordsResult]]:
        """Delete what is before an offset (-1: the high watermark) or a time, at every leader.

        A time is held against records' own times, and against the append times of those without;
        `By.APPEND`: against the append times of all, which only a Lapse broker has.

        The result is there within the request timeout. A leader that does not answer by then gives
        its own partitions low watermark -1 and REQUEST_TIMED_OUT, and no others (KIP-107); it may
        carry out the request all the same. A naive `datetime`, and an offset beyond 64
        bits, raise ConfigError.
        """
        for partition, one in before.items():
            if isinstance(one, datetime):
                to_ms(one)
            else:
                settings.check_offset(partition, one)
        return asyncio.ensure_future(self._delete_records_before(dict(before), by))

    async def list_consumer_group_offsets(
        self, group_ids: Iterable[str]
    ) -> dict[str, GroupOffsets]:
        """What groups have committed, and their states, at each group's coordinator.

        A refusal is its group's, or its partition's, and stands in its place. An offset that an
        open transaction is about to move is UNSTABLE_OFFSET_COMMIT (KIP-447).
        """
        async with Cluster(parse_bootstrap(self._connection.address), self._login) as cluster:
            return await group_offsets(cluster, group_ids, self._request_timeout_ms)

    async def _delete_records_before(
        self, before: Mapping[TopicPartition, Before], by: By
    ) -> dict[TopicPartition, DeleteRecordsResult]:
        # It reads records, by kernels: half a second that only who deletes by a time waits for.
        from lapse.client.deletion import delete_records_before  # noqa: PLC0415

        async with Cluster(parse_bootstrap(self._connection.address), self._login) as cluster:
            return await delete_records_before(cluster, before, self._request_timeout_ms, by=by)

    async def _offsets(
        self, topic: MetadataResponseTopic, where: OffsetSpec, *, is_alone: bool
    ) -> dict[int, int]:
        """At each leader; a partition without an answer is left out."""
        by_leader: dict[int, list[TopicPartition]] = {}
        for p in topic.partitions:
            partition = TopicPartition(topic.name or "", p.partition_index)
            by_leader.setdefault(p.leader_id, []).append(partition)
        if is_alone:
            every = [partition for wanted in by_leader.values() for partition in wanted]
            found = await list_offsets(self._connection, dict.fromkeys(every, where))
            return {p.partition: at for p, at in found.items() if isinstance(at, int)}
        offsets: dict[int, int] = {}
        async with Cluster(parse_bootstrap(self._connection.address), self._login) as cluster:
            for wanted in by_leader.values():
                with suppress(ConnectionLost, KafkaError):
                    leader = await cluster.leader_connection(wanted[0])
                    found = await list_offsets(leader, dict.fromkeys(wanted, where))
                    offsets |= {p.partition: at for p, at in found.items() if isinstance(at, int)}
        return offsets
