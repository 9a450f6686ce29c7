"""Topics from the outside: create, delete, list, describe. Behind `lapse topic`.

A refusal comes out as `KafkaError` with the broker's code and words. Requests go to the broker that
was given; a single node is its own controller.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lapse.base.errors import ErrorCode, KafkaError
from lapse.client.connection import BrokerConnection
from lapse.wire.schema.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from lapse.wire.schema.delete_topics import (
    DELETE_TOPICS,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from lapse.wire.schema.list_offsets import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from lapse.wire.schema.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)

DEFAULT = -1
CONSUMER = -1
TIMEOUT_MS = 30_000
_BY_ID_OR_NAME_FROM = 6


@dataclass(frozen=True, slots=True)
class TopicListing:
    """A topic as Metadata tells it."""

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
    """A topic and its partitions."""

    name: str
    topic_id: uuid.UUID
    partitions: tuple[PartitionDescription, ...]


def refusal(code: int, message: str | None, subject: str) -> KafkaError:
    """A broker's error as an exception; a code we do not know becomes UNKNOWN_SERVER_ERROR."""
    known = ErrorCode(code) if code in set(ErrorCode) else ErrorCode.UNKNOWN_SERVER_ERROR
    name = known.name if known == code else f"error {code}"
    return KafkaError(known, f"{subject}: {name}" + (f": {message}" if message else ""))


class Admin:
    """Topic operations over one connection."""

    def __init__(self, connection: BrokerConnection) -> None:
        self._connection = connection

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int = DEFAULT,
        configs: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> TopicListing:
        """Create one topic; raises KafkaError."""
        topic = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=DEFAULT,
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
        (topic,) = (await self._connection.request(request, MetadataResponse)).topics
        if topic.error_code:
            raise refusal(topic.error_code, None, name)
        starts = await self._offsets(topic, EARLIEST_TIMESTAMP)
        ends = await self._offsets(topic, LATEST_TIMESTAMP)
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
        )

    async def _offsets(self, topic: MetadataResponseTopic, timestamp: int) -> dict[int, int]:
        asked = tuple(
            ListOffsetsPartition(partition_index=p.partition_index, timestamp=timestamp)
            for p in topic.partitions
        )
        request = ListOffsetsRequest(
            replica_id=CONSUMER, topics=(ListOffsetsTopic(name=topic.name or "", partitions=asked),)
        )
        answer = await self._connection.request(request, ListOffsetsResponse)
        return {
            p.partition_index: p.offset
            for t in answer.topics
            for p in t.partitions
            if not p.error_code
        }
