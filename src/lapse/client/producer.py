"""A producer: thin, asyncio, for what stock clients cannot say.

    async with Producer("127.0.0.1:9092") as producer:
        sent = await producer.send("orders", b"42", b"gone, by order 17", tombstone=True)
        print((await sent).offset)

`send` returns a future of the record's partition and offset. Records wait up to `linger_ms` for
others of their batch. Batches of a partition are sent one after the other, each until it is in the
log, refused, or `delivery_timeout_ms` old. With acks -1 the producer is idempotent (KIP-98):
repeated attempts leave one copy, in order.

KIP-87: `tombstone=None` means that a null value is a tombstone and another is none; True with a
value makes a tombstone that has one, and raises where the broker would take it for a live value;
False with a null value is refused. KIP-32: `create_time` is the record's, in ms.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from lapse.base.clock import Clock, SystemClock
from lapse.base.errors import ConfigError, ErrorCode, KafkaError, LapseError
from lapse.base.ids import TopicPartition
from lapse.client.attempts import tried
from lapse.client.batches import (
    Batch,
    BatchMetadata,
    Queue,
    RecordMetadata,
    Room,
    new_record,
    size_of,
)
from lapse.client.cluster import Cluster, Topic, may_try_again, parse_bootstrap, take_note
from lapse.client.connection import ConnectionLost
from lapse.client.delivery import (
    NO_IDENTITY,
    DeliverySettings,
    Identity,
    Lane,
    require_tombstone_values,
)
from lapse.client.login import PLAINTEXT, Login
from lapse.client.partitioner import partition_of
from lapse.client.settings import refusal
from lapse.records.batch_writer import RecordFields, split
from lapse.records.layout import Codec
from lapse.wire.schema.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

if TYPE_CHECKING:  # who sends no columns needs no Arrow, who has no transactions not these
    import pyarrow as pa

    from lapse.client.transactions import Transactions

ALL, LEADER, NO_ACKS = -1, 1, 0
_NO_TRANSACTION_MS = 0x7FFFFFFF
P = ParamSpec("P")
R = TypeVar("R")


def _part_of_its_transaction(
    send: Callable[Concatenate[Producer, P], Awaitable[R]],
) -> Callable[Concatenate[Producer, P], Awaitable[R]]:
    """What is refused before it is sent keeps the transaction from being committed, too."""

    @functools.wraps(send)
    async def sent(producer: Producer, /, *args: P.args, **kwargs: P.kwargs) -> R:
        transactions = producer._transactions
        with nullcontext() if transactions is None else transactions.required():
            return await send(producer, *args, **kwargs)

    return sent


@dataclass(frozen=True, slots=True)
class ProducerConfig:
    """Settings, by Kafka's names where it has one; `buffer_memory` and sizes are bytes.

    Attributes:
        acks: -1 all in-sync replicas, 1 the leader, 0 none (and the outcome is unknown).
        enable_idempotence: only with acks -1.
        buffer_memory: what records that are not yet in the log may hold together.
        max_request_size: the largest record.
        max_block_ms: how long `send` waits for a broker, metadata and memory.
        allow_auto_create_topics: a broker whose `auto.create.topics.enable` is set makes a topic
            that is not there.
    """

    acks: int = ALL
    enable_idempotence: bool = True
    compression: Codec = Codec.NONE
    linger_ms: int = 5
    batch_size: int = 16 << 10
    buffer_memory: int = 32 << 20
    max_request_size: int = 1 << 20
    max_block_ms: int = 60_000
    request_timeout_ms: int = 30_000
    delivery_timeout_ms: int = 120_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1000
    allow_auto_create_topics: bool = True

    def __post_init__(self) -> None:
        if self.acks not in (ALL, LEADER, NO_ACKS):
            raise ConfigError(f"acks={self.acks}: allowed is -1, 0 or 1")
        if self.enable_idempotence and self.acks != ALL:
            raise ConfigError(
                f"enable_idempotence with acks={self.acks}: allowed is acks=-1, or False"
            )
        if self.buffer_memory < self.max_request_size:
            raise ConfigError(
                f"buffer_memory={self.buffer_memory}: allowed is max_request_size "
                f"({self.max_request_size}) or more"
            )

    def delivery(self, transactional_id: str | None = None) -> DeliverySettings:
        return DeliverySettings(
            self.acks, self.compression, self.request_timeout_ms, self.retry_backoff_ms,
            self.retry_backoff_max_ms, transactional_id,
        )  # fmt: skip


DEFAULTS = ProducerConfig()


class Producer(AbstractAsyncContextManager["Producer"]):
    """Sends records; an async context manager, which flushes at its end."""

    def __init__(
        self,
        bootstrap: str,
        config: ProducerConfig = DEFAULTS,
        *,
        login: Login = PLAINTEXT,
        clock: Clock | None = None,
        transactions: Transactions | None = None,
    ) -> None:
        """`bootstrap` is HOST:PORT, or several with commas; raises ConfigError.

        With `transactions` all records are of the transaction that has begun there.
        """
        self._config = config
        self._transactions = transactions
        self._clock = clock or SystemClock()
        self._cluster = Cluster(parse_bootstrap(bootstrap), login)
        self._room = Room(config.buffer_memory)
        self._queues: dict[TopicPartition, Queue] = {}
        self._lanes: dict[TopicPartition, Lane] = {}
        self._running: dict[TopicPartition, asyncio.Task[None]] = {}
        self._keyless: dict[str, TopicPartition] = {}
        self._identity: asyncio.Task[Identity] | None = None
        self._closed = False

    async def __aexit__(self, _kind: object, error: BaseException | None, _: object) -> None:
        await self.close(timeout_ms=None if error is None else 0)

    @_part_of_its_transaction
    async def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        tombstone: bool | None = None,
        create_time: int | None = None,
        *,
        partition: int | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
    ) -> asyncio.Future[RecordMetadata]:
        """Take a record; the future has its partition and offset, or the error.

        Raises:
            KafkaError: INVALID_RECORD (see above), MESSAGE_TOO_LARGE, an unknown topic or
                partition, REQUEST_TIMED_OUT where there was no memory for `max_block_ms`.
            UnsupportedFeature: the broker does not know tombstones with values.
            ConnectionLost: no broker can be reached, or answers, for `max_block_ms`.
        """
        self._check_open()
        moment = self._clock.now_ms() if create_time is None else create_time
        record = new_record(key, value, moment, tombstone, headers)
        size = size_of(record)
        if size > self._config.max_request_size:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"{topic}: the record may take {size} bytes, max_request_size is "
                f"{self._config.max_request_size}",
            )
        is_placed, failures = False, list[LapseError]()
        try:
            async with asyncio.timeout(self._config.max_block_ms / 1000):
                known = await self._topic(topic, failures=failures)
                where = await self._place(known, key, partition, size)
                await self._join(where)
                if record.tombstone:
                    await self._require_tombstone_values(where)
                is_placed = True
                await self._room.take(size)
        except TimeoutError as e:
            if not is_placed:
                error = f"{topic}: no broker answers within max_block_ms"
                raise failures[-1] if failures else ConnectionLost(error, sent=False) from e
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"{topic}: no place for the record within max_block_ms; waiting records hold "
                f"{self._room.used} of {self._room.bytes_max} bytes (buffer_memory)",
            ) from e
        if self._closed:
            self._room.give(size)
            self._check_open()
        queue = self._queue(where)
        batch = queue.last_with_room(size)
        if batch is None:
            batch = self._begin(where)
            queue.put(batch)
        place = queue.add(batch, record, size)
        self._go_on(where)
        return _of_record(batch.done, place)

    @_part_of_its_transaction
    async def send_arrow(
        self, topic: str, records: pa.RecordBatch | pa.Table, partition: int
    ) -> list[BatchMetadata]:
        """Send columns, encoded by kernel, and wait until all are in the log.

        Columns: `key`, `value`, `create_time` (null or none: now), `is_tombstone` (null or none: a
        null value is one). Others that `Consumer.fetch_arrow` gives are left out, but headers are
        refused, for they would be lost.

        Raises:
            ConfigError: there is neither key nor value, or a column of another type.
            Others: as `send` and its future, for the first batch that fails; others of the same
                call may be in the log.
        """
        from lapse.records.arrow_fields import fields_of_arrow  # noqa: PLC0415  (needs Arrow)

        self._check_open()
        fields = fields_of_arrow(records, self._clock.now_ms())
        where = await self._place(await self._topic(topic), None, partition, 0)
        if fields.tombstones.any():
            await self._require_tombstone_values(where)
        return await self.send_fields(where, fields)

    @_part_of_its_transaction
    async def send_fields(self, where: TopicPartition, fields: RecordFields) -> list[BatchMetadata]:
        """Send columns of one partition and wait until all are in the log; raises as `send_arrow`.

        The caller knows that the partition exists.
        """
        self._check_open()
        await self._join(where)
        queue = self._queue(where)
        waiting = []
        for first, until in split(fields.sizes(), self._config.max_request_size // 2):
            batch = self._begin(where)
            batch.columns = fields, first, until
            batch.valued = bool(fields.tombstones[first:until].any())
            batch.ready.set()
            queue.put(batch)
            waiting.append(batch.done)
        self._go_on(where)
        if waiting:
            await asyncio.wait(waiting)
        return [done.result() for done in waiting]

    async def _join(self, where: TopicPartition) -> None:
        if self._transactions is not None:
            await self._transactions.add(where)

    async def partition_count(self, topic: str, *, waits: bool = True) -> int:
        """How many partitions a topic has; it is made where the broker makes topics.

        Raises KafkaError; ConnectionLost where no broker can be reached for `max_block_ms`, or at
        once for a person who does not wait (`waits`).
        """
        return len((await self._topic(topic, waits=waits)).leaders)

    async def flush(self) -> None:
        """Send the waiting records and wait for the outcome; errors are in the futures only."""
        for queue in self._queues.values():
            queue.hurry()
        waiting = [b.done for queue in self._queues.values() for b in queue.batches]
        if waiting:
            await asyncio.wait(waiting)

    async def close(self, timeout_ms: int | None = None) -> None:
        """Flush, for so long; what is not sent then fails."""
        self._closed = True
        is_flushed, left = False, self._config.request_timeout_ms / 1000
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000) as limit:
                await self.flush()
            is_flushed = True
            if (until := limit.when()) is not None:
                left = min(left, until - asyncio.get_running_loop().time())
        except TimeoutError:
            pass
        finally:
            running = list(self._running.values())
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            self._fail_what_waits()
            if is_flushed and self._config.acks == NO_ACKS:  # nobody has said what has arrived
                await self._cluster.finish(left)
            self._cluster.close()
            await asyncio.sleep(0)  # the records' futures follow their batches'

    # --- where a record goes ----------------------------------------------------------------------

    async def _place(
        self, known: Topic, key: bytes | None, partition: int | None, size: int
    ) -> TopicPartition:
        topic, count = known.name, len(known.leaders)
        if partition is None and key is None:
            return self._keyless_place(topic, count, size)
        if partition is None:
            return TopicPartition(topic, partition_of(key or b"", count))
        where = TopicPartition(topic, partition)
        if partition not in known.leaders:
            await self._cluster.leader(where)  # says so
        return where

    def _keyless_place(self, topic: str, count: int, size: int) -> TopicPartition:
        """A batch here, the next one there: records of one batch cost less than of many."""
        last = self._keyless.get(topic)
        if last is not None and self._queue(last).last_with_room(size) is not None:
            return last
        place = TopicPartition(topic, 0 if last is None else (last.partition + 1) % count)
        self._keyless[topic] = place
        return place

    async def _topic(
        self, name: str, *, waits: bool = True, failures: list[LapseError] | None = None
    ) -> Topic:
        """Waits for a broker, and for the leader of a topic that one has just made.

        `failures` gets those of the tries so far: who gives up during one has the last to tell.
        """

        def helps(error: LapseError) -> bool:
            if failures is not None:
                failures.append(error)
            return may_try_again(error) and (waits or isinstance(error, KafkaError))

        create = self._config.allow_auto_create_topics
        ask = functools.partial(self._cluster.topic, name, create=create)
        return await tried(ask, self._config, helps)

    async def _require_tombstone_values(self, where: TopicPartition) -> None:
        leader = functools.partial(self._cluster.leader_connection, where)
        require_tombstone_values(await tried(leader, self._config), where)

    def _queue(self, where: TopicPartition) -> Queue:
        if where not in self._queues:
            self._queues[where] = Queue(self._config.batch_size)
        return self._queues[where]

    def _begin(self, where: TopicPartition) -> Batch:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[BatchMetadata] = loop.create_future()
        done.add_done_callback(take_note)
        now = loop.time()
        return Batch(
            where,
            deadline=now + self._config.delivery_timeout_ms / 1000,
            linger_until=now + self._config.linger_ms / 1000,
            done=done,
        )

    # --- sending ----------------------------------------------------------------------------------

    def _go_on(self, where: TopicPartition) -> None:
        """A task empties a partition's queue, as long as there is something in it."""
        if where not in self._running:
            self._running[where] = asyncio.create_task(self._run(where))

    async def _run(self, where: TopicPartition) -> None:
        queue = self._queues[where]
        lane = self._lanes.get(where)
        if lane is None:
            mine = self._transactions
            transactional_id = None if mine is None else mine.transactional_id
            settings = self._config.delivery(transactional_id)
            lane = Lane(self._cluster, settings, self._identify)
            self._lanes[where] = lane
        try:
            while queue.batches:
                batch = queue.batches[0]
                await self._linger(batch)
                try:
                    batch.done.set_result(await lane.deliver(batch))
                except Exception as e:  # noqa: BLE001  (the future carries the error)
                    self._fail(batch, e)
                queue.batches.popleft()
                self._room.give(batch.size)
        finally:
            del self._running[where]

    async def _linger(self, batch: Batch) -> None:
        try:
            async with asyncio.timeout_at(batch.linger_until):
                await batch.ready.wait()
        except TimeoutError:
            batch.ready.set()

    async def _identify(self, other_than: Identity | None) -> Identity:
        """The producer's id: one for all partitions until one of them needs another."""
        if self._transactions is not None:
            if other_than is not None:
                what = f"transaction {self._transactions.transactional_id}"
                raise KafkaError(ErrorCode.INVALID_TXN_STATE, f"{what}: a batch of it has failed")
            return self._transactions.identity
        if not self._config.enable_idempotence:
            return NO_IDENTITY
        task = self._identity
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._identity = asyncio.create_task(self._new_identity())
            task.add_done_callback(take_note)
        elif other_than is not None:
            return await self._new_identity()
        return await asyncio.shield(task)

    async def _new_identity(self) -> Identity:
        connection = await self._cluster.any_connection()
        answer = await connection.request(
            InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=_NO_TRANSACTION_MS),
            InitProducerIdResponse,
        )
        if answer.error_code:
            raise refusal(answer.error_code, None, "InitProducerId")
        return Identity(answer.producer_id, answer.producer_epoch)

    # --- the end ----------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise ConnectionLost("the producer is closed", sent=False)

    def _fail_what_waits(self) -> None:
        if self._identity is not None:
            self._identity.cancel()
        for queue in self._queues.values():
            for batch in queue.batches:
                if not batch.done.done():
                    error = f"{batch.partition}: the producer was closed before it was sent"
                    self._fail(batch, ConnectionLost(error))
                self._room.give(batch.size)
            queue.batches.clear()

    def _fail(self, batch: Batch, error: Exception) -> None:
        batch.done.set_exception(error)
        if self._transactions is not None:
            self._transactions.note_failure(error)


def _of_record(batch: asyncio.Future[BatchMetadata], place: int) -> asyncio.Future[RecordMetadata]:
    """The part of a batch's outcome that is one record's."""
    of_record: asyncio.Future[RecordMetadata] = asyncio.get_running_loop().create_future()
    batch.add_done_callback(functools.partial(_pass_on, of_record, place))
    return of_record


def _pass_on(
    of_record: asyncio.Future[RecordMetadata], place: int, batch: asyncio.Future[BatchMetadata]
) -> None:
    if of_record.done():  # the caller has cancelled it
        return
    error = batch.exception()
    if error is None:
        of_record.set_result(batch.result().record(place))
    else:
        of_record.set_exception(error)
        of_record.exception()  # retrieved: the caller need not look at it
