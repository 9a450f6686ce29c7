"""Getting one batch into its partition's log: sequences, attempts, and what an answer means.

A `Lane` is one partition's way to its leader. It sends one batch at a time, so batches stay in
order, and it numbers them (KIP-98): a repeated attempt has the same bytes, and the broker
recognizes it. Whether a batch that fails for good is in the log is not always known; the lane then
goes on in the id's next epoch (KIP-360), whose sequences begin anew: a request that the network
still has is refused from then on. Each partition's log has epochs of its own, so the other lanes
stay in theirs.

A batch with valued tombstones is sent to no broker that would make live values of them (KIP-87).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple

from lapse.base.backoff import backoff_ms
from lapse.base.errors import ErrorCode, KafkaError, LapseError
from lapse.client.batches import Batch, BatchMetadata
from lapse.client.cluster import RETRIABLE, Cluster, Topic
from lapse.client.connection import BrokerConnection, ConnectionLost
from lapse.client.settings import refusal
from lapse.records.batch_writer import write_batch
from lapse.records.builder import BatchSpec
from lapse.records.layout import Codec
from lapse.wire.schema.produce import (
    PRODUCE,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from lapse.wire.versions import TOMBSTONE_VALUES

# Above this a batch is encoded in a thread: compressing it would hold up the loop.
_ENCODED_AT_ONCE_BYTES = 64 << 10
_SEQUENCE_MASK = 0x7FFFFFFF
EPOCH_MAX = (1 << 15) - 2  # Kafka's producers leave the last one to fencing
_TRANSACTIONAL_MAX = 11  # later versions name no partitions before (KIP-890)
_ANSWER_SECONDS_MORE = 5.0  # the broker's own timeout comes first

# The broker knows our id or sequence otherwise than we do; it has not appended the batch.
_STRANGE_IDENTITY = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    }
)
# Another producer is in a later epoch of the id, or has it.
_LOST_IDENTITY = frozenset(
    {ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_ID_MAPPING}
)
# What is said before anything is appended. After any other error the batch may be in the log: a
# leader that is replaced while it waits for followers says NOT_LEADER_OR_FOLLOWER, say.
_NOT_APPENDED = _STRANGE_IDENTITY | frozenset(
    {
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_REQUIRED_ACKS,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.POLICY_VIOLATION,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    }
)


class Identity(NamedTuple):
    """Of an idempotent producer (InitProducerId)."""

    producer_id: int
    epoch: int


NO_IDENTITY = Identity(-1, -1)


@dataclass(frozen=True, slots=True)
class DeliverySettings:
    """How batches are delivered; names are Kafka's.

    Attributes:
        acks: -1 all in-sync replicas, 1 the leader, 0 none, and the broker sends no response.
        request_timeout_ms: of one attempt.
        transactional_id: whose transaction all batches are of; None: of none.
    """

    acks: int
    codec: Codec
    request_timeout_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    transactional_id: str | None = None


class UnsupportedFeature(LapseError):
    """The broker lacks what a record needs; nothing was sent."""


def require_tombstone_values(connection: BrokerConnection, subject: object) -> None:
    """Raise UnsupportedFeature unless the broker keeps a tombstone with a value a tombstone."""
    if not connection.offers(TOMBSTONE_VALUES):
        raise UnsupportedFeature(
            f"{subject}: the broker at {connection.address} does not offer {TOMBSTONE_VALUES}; "
            "a tombstone with a value would become a live value there"
        )


class Lane:
    """One partition's way to its leader; `deliver` is called for one batch after the other."""

    def __init__(
        self,
        cluster: Cluster,
        settings: DeliverySettings,
        identify: Callable[[Identity | None], Awaitable[Identity]],
    ) -> None:
        """`identify` gives an identity, and another one than the one it is given."""
        self._cluster = cluster
        self._settings = settings
        self._identify = identify
        self._identity: Identity | None = None
        self._begins_anew = self._lost_identity = False
        self._sequence = 0

    async def deliver(self, batch: Batch) -> BatchMetadata:
        """Try until the batch is in the log, refused, or too old.

        Raises:
            KafkaError: the broker's refusal; REQUEST_TIMED_OUT once the batch's time is up, and
                then it may be in the log.
            UnsupportedFeature: its tombstones' values would come to life.
        """
        attempts = _Attempts(fixed_identity=self._settings.transactional_id is not None)
        while True:
            try:
                return await self._attempt(batch, attempts)
            except LapseError as e:
                attempts.failed(e)
                self._begins_anew |= attempts.strange_identity
                self._lost_identity |= isinstance(e, KafkaError) and e.code in _LOST_IDENTITY
                if not attempts.may_go_on():
                    self._begins_anew |= attempts.maybe_appended
                    raise
            wait_ms = backoff_ms(
                attempts.failures,
                self._settings.retry_backoff_ms,
                self._settings.retry_backoff_max_ms,
            )
            left = batch.deadline - asyncio.get_running_loop().time()
            if left <= wait_ms / 1000:
                self._begins_anew |= attempts.maybe_appended
                raise KafkaError(
                    ErrorCode.REQUEST_TIMED_OUT,
                    f"{batch.partition}: not delivered within delivery.timeout.ms, after "
                    f"{attempts.failures} attempts; the last: {attempts.error}",
                ) from attempts.error
            await asyncio.sleep(wait_ms / 1000)

    async def _attempt(self, batch: Batch, attempts: _Attempts) -> BatchMetadata:
        connection = await self._cluster.leader_connection(batch.partition)
        topic = await self._cluster.topic(batch.partition.topic)
        if batch.valued:
            require_tombstone_values(connection, batch.partition)
        if self._identity is None or self._begins_anew:
            self._identity, self._sequence = await self._next_identity(), 0
            self._begins_anew = self._lost_identity = False
            attempts.encoded = None
        if attempts.encoded is None:
            attempts.encoded = await self._encode(batch)
        answer = await self._send(connection, topic, batch, attempts.encoded)
        if answer is None:
            return BatchMetadata(batch.partition, -1, batch.count, None)
        if answer.error_code and answer.error_code != ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            self._cluster.forget(batch.partition.topic)
            raise refusal(answer.error_code, answer.error_message, str(batch.partition))
        self._sequence = (self._sequence + batch.count) & _SEQUENCE_MASK
        append_time = answer.log_append_time_ms
        return BatchMetadata(
            batch.partition, answer.base_offset, batch.count,
            None if append_time < 0 else append_time,
        )  # fmt: skip

    async def _next_identity(self) -> Identity:
        last, is_fixed = self._identity, self._settings.transactional_id is not None
        if last in {None, NO_IDENTITY} or is_fixed or self._lost_identity:
            return await self._identify(last)
        assert last is not None
        if last.epoch >= EPOCH_MAX:
            return await self._identify(last)
        return last._replace(epoch=last.epoch + 1)

    async def _encode(self, batch: Batch) -> bytearray:
        fields, first, until = batch.fields()
        identity = self._identity or NO_IDENTITY
        spec = BatchSpec(
            codec=self._settings.codec,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            base_sequence=-1 if identity == NO_IDENTITY else self._sequence,
            transactional=self._settings.transactional_id is not None,
        )
        if batch.columns is not None or batch.size > _ENCODED_AT_ONCE_BYTES:
            return await asyncio.to_thread(write_batch, fields, spec, first, until)
        return write_batch(fields, spec, first, until)

    async def _send(
        self, connection: BrokerConnection, topic: Topic, batch: Batch, encoded: bytearray
    ) -> PartitionProduceResponse | None:
        settings = self._settings
        where = batch.partition
        version = connection.version_naming(PRODUCE, [topic.topic_id])
        if settings.transactional_id is not None:
            version = min(version, _TRANSACTIONAL_MAX)
        data = PartitionProduceData(index=where.partition, records=memoryview(encoded))
        named = TopicProduceData(name=topic.name, topic_id=topic.topic_id, partition_data=(data,))
        request = ProduceRequest(
            acks=settings.acks,
            timeout_ms=settings.request_timeout_ms,
            topic_data=(named,),
            transactional_id=settings.transactional_id,
        )
        seconds = settings.request_timeout_ms / 1000 + _ANSWER_SECONDS_MORE
        left = max(batch.deadline - asyncio.get_running_loop().time(), 0.0)
        try:
            if settings.acks == 0:
                await connection.send(request, version=version)
                # Else what a slow broker does not take would be told as sent, without an end.
                await connection.drain(min(seconds, left))
                return None
            answer = await connection.request(
                request, ProduceResponse, version=version, timeout_seconds=min(seconds, left)
            )
        except ConnectionLost:
            self._cluster.failed(connection, where.topic)
            raise
        (answered,) = answer.responses
        (partition,) = answered.partition_responses
        return partition


@dataclass(slots=True)
class _Attempts:
    """The state of the attempts at one batch so far."""

    fixed_identity: bool
    failures: int = 0
    error: LapseError | None = None
    encoded: bytearray | None = None
    maybe_appended: bool = False
    strange_identity: bool = False

    def failed(self, error: LapseError) -> None:
        self.failures += 1
        self.error = error
        self.strange_identity = False
        if isinstance(error, ConnectionLost):
            self.maybe_appended |= error.sent and self.encoded is not None
        elif isinstance(error, KafkaError):
            self.maybe_appended |= self.encoded is not None and error.code not in _NOT_APPENDED
            self.strange_identity = error.code in _STRANGE_IDENTITY
        elif not isinstance(error, UnsupportedFeature):  # an answer that does not parse
            self.maybe_appended |= self.encoded is not None

    def may_go_on(self) -> bool:
        """Whether another attempt can do no harm and may do good."""
        if self.strange_identity:
            # Under another id the broker would not recognize the batch if it is in the log already.
            return not (self.maybe_appended or self.fixed_identity)
        if isinstance(self.error, KafkaError):
            return self.error.code in RETRIABLE
        return isinstance(self.error, ConnectionLost)
