"""Clients of a simulated cluster: Lapse's own, and one that speaks of transactions.

Each lives in a process of its own, knows no virtual time, and tells `History` what it was told.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from lapse.base.errors import ErrorCode, KafkaError, LapseError
from lapse.base.ids import TopicPartition
from lapse.client.cluster import RETRIABLE, Address, Cluster, parse_bootstrap
from lapse.client.connection import BrokerConnection, ConnectionLost
from lapse.client.consumer import EARLIEST, Consumer, ConsumerConfig
from lapse.client.deletion import delete_records_before
from lapse.client.producer import Producer, ProducerConfig
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.wire.schema.add_partitions_to_txn import AddPartitionsToTxnResponse
from lapse.wire.schema.end_txn import EndTxnRequest, EndTxnResponse
from lapse.wire.schema.find_coordinator import (
    TRANSACTION_KEY,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from lapse.wire.schema.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from lapse.wire.schema.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tests.simulation.cluster.history import Broken, History, Transaction, Written
from tests.simulation.cluster.loop import passes
from tests.simulation.cluster.machine import MachineClock
from tests.support.broker.transaction_requests import JOINS_NOTHING, add_partitions

REQUEST_MS = 2500
DELIVERY_MS = 12_000
AGAIN = RETRIABLE | {ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.REQUEST_TIMED_OUT}
OUT_OF_DATE = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    }
)  # fmt: skip
SLEEP_MS_MAX = 150.0
TRANSACTION_MS = 4000
LATE_S_MAX = 3.0  # in the network, of what its client has given up


@dataclass
class Scene:
    """Where clients live."""

    bootstrap: str
    clock: MachineClock
    history: History
    draw: random.Random
    is_over: bool = False
    trouble: list[str] = field(default_factory=list)

    async def pause(self) -> None:
        await passes(self.draw.random() * SLEEP_MS_MAX / 1000)


@dataclass(frozen=True)
class Writer:
    """Who sends what where; with `deletes` some records are tombstones."""

    name: str
    partitions: list[TopicPartition]
    acks: int = -1
    deletes: bool = False


async def write(scene: Scene, writer: Writer) -> None:
    """Send until it is over; a producer that has failed is followed by another one."""
    config = ProducerConfig(
        acks=writer.acks, linger_ms=2, batch_size=2000, enable_idempotence=writer.acks == -1,
        request_timeout_ms=REQUEST_MS, delivery_timeout_ms=DELIVERY_MS,
    )  # fmt: skip
    number = 0
    while not scene.is_over:
        try:
            async with Producer(scene.bootstrap, config, clock=scene.clock) as producer:
                while not scene.is_over:
                    for _ in range(scene.draw.randint(1, 5)):
                        await _send(scene, producer, writer, number)
                        number += 1
                    await scene.pause()
        except LapseError:
            await scene.pause()


async def _send(scene: Scene, producer: Producer, writer: Writer, number: int) -> None:
    draw, history = scene.draw, scene.history
    partition = draw.choice(writer.partitions)
    # Keys that are deleted come to rest after a while: then their tombstones may go.
    key = b"k%d" % (number // 30 * 4 + draw.randrange(4) if writer.deletes else draw.randrange(6))
    value: bytes | None = f"{writer.name}-{number}".encode().ljust(draw.choice((10, 10, 200)), b".")
    if writer.deletes and draw.random() < 0.4:
        value = None
    one = Written(partition, key, value, number, writer.name)
    if value is not None:
        history.sent[partition, value] = one
    sent = await producer.send(partition.topic, key, value, partition=partition.partition)

    def done(future: asyncio.Future[Any]) -> None:
        if future.cancelled() or future.exception() is not None or writer.acks != -1:
            if value is None:
                history.unsure.add((partition, key))
            return
        try:
            history.was_acked(future.result().offset, one)
        except AssertionError as e:
            scene.trouble.append(str(e))

    sent.add_done_callback(done)


async def read(scene: Scene, partitions: list[TopicPartition], *, committed: bool) -> None:
    """Follow the partitions from their beginning, and begin again now and then."""
    config = ConsumerConfig(
        read_committed=committed, auto_offset_reset="earliest", request_timeout_ms=REQUEST_MS,
        fetch_max_wait_ms=200, default_api_timeout_ms=5000,
    )  # fmt: skip
    while not scene.is_over:
        try:
            async with Consumer(scene.bootstrap, config) as consumer:
                gone = dict(scene.history.deleted)
                await consumer.assign(dict.fromkeys(partitions, EARLIEST))
                for tp, low_watermark in gone.items():
                    if tp in partitions and consumer.position(tp) < low_watermark:
                        raise Broken(f"{tp}: begins before {low_watermark}, which was called gone")
                while not scene.is_over and scene.draw.random() > 0.01:
                    for record in await consumer.poll(300):
                        scene.history.was_read(
                            record.partition, record.offset, record.key or b"", record.value
                        )
                        if committed and record.value is not None:
                            scene.history.committed.add(record.value)
                    await scene.pause()
        except LapseError:
            await scene.pause()
        except AssertionError as e:
            scene.trouble.append(str(e))
            return


async def trim(scene: Scene, partition: TopicPartition) -> None:
    """DeleteRecords before offsets that somebody was told of; the answer is a promise."""
    while not scene.is_over:
        await passes(1 + scene.draw.random() * 3)
        acked = scene.history.acked[partition]
        if not acked:
            continue
        before = scene.draw.choice(sorted(acked))
        scene.history.asked[partition] = max(scene.history.asked[partition], before)
        async with Cluster(parse_bootstrap(scene.bootstrap)) as cluster:
            try:
                found = await delete_records_before(cluster, {partition: before}, 8000)
            except LapseError:
                continue
        result = found[partition]
        if result.error is None:
            if result.low_watermark < before:
                scene.trouble.append(f"{partition}: {result} for {before}")
            scene.history.was_deleted(partition, result.low_watermark)


# --- transactions ---------------------------------------------------------------------------------


class Fenced(Exception):
    """Another one of its name has begun, or the coordinator believes so."""


class Transactor:
    """One transactional producer: each batch a record, everything tried again until it is known."""

    def __init__(self, scene: Scene, name: str) -> None:
        self._scene, self._name = scene, name
        self._cluster = Cluster(parse_bootstrap(scene.bootstrap))
        self._coordinator: Address | None = None
        self._id, self._epoch = -1, -1
        self._sequences: dict[TopicPartition, int] = {}
        self._late: list[asyncio.Task[None]] = []

    async def run(self, partitions: list[TopicPartition]) -> None:
        number = 0
        while not self._scene.is_over:
            try:
                await self._begin()
                while not self._scene.is_over:
                    await self._transaction(partitions, number)
                    number += 1
                    await self._scene.pause()
            except (Fenced, KafkaError):
                await self._scene.pause()
        await asyncio.gather(*self._late)
        self._cluster.close()

    async def _tried(self, once: Callable[[], Awaitable[ErrorCode]]) -> None:
        """Until it is done; raises Fenced, and KafkaError for what no other attempt mends."""
        while True:
            try:
                code = await once()
            except ConnectionLost:
                code = ErrorCode.NETWORK_EXCEPTION
            except KafkaError as e:
                code = e.code
            if code is ErrorCode.NONE:
                return
            if code in OUT_OF_DATE:
                raise Fenced
            if code not in AGAIN:
                raise KafkaError(code, self._name)
            self._coordinator = None
            await passes(0.05 + self._scene.draw.random() * 0.2)

    async def _at_coordinator(self) -> BrokerConnection:
        if self._coordinator is None:
            connection = await self._cluster.any_connection()
            request = FindCoordinatorRequest(
                key_type=TRANSACTION_KEY, coordinator_keys=(self._name,)
            )
            answer = await self._asked(connection, request, FindCoordinatorResponse)
            found = answer.coordinators[0]
            if found.error_code:
                raise KafkaError(ErrorCode(found.error_code), self._name)
            self._coordinator = Address(found.host, found.port)
        return await self._cluster.at(self._coordinator)

    async def _asked(
        self, connection: BrokerConnection, request: Any, answer: Any, version: int | None = None
    ) -> Any:
        seconds = REQUEST_MS / 1000
        try:
            return await connection.request(
                request, answer, version=version, timeout_seconds=seconds
            )
        except ConnectionLost:
            connection.close()  # or an answer, or the request itself, may come later
            raise

    async def _begin(self) -> None:
        async def once() -> ErrorCode:
            request = InitProducerIdRequest(
                transactional_id=self._name, transaction_timeout_ms=TRANSACTION_MS
            )
            answer = await self._asked(
                await self._at_coordinator(), request, InitProducerIdResponse
            )
            self._id, self._epoch = answer.producer_id, answer.producer_epoch
            self._sequences.clear()
            return ErrorCode(answer.error_code)

        await self._tried(once)

    async def _transaction(self, partitions: list[TopicPartition], number: int) -> None:
        draw, history = self._scene.draw, self._scene.history
        chosen = sorted(set(draw.choices(partitions, k=draw.randint(1, 3))))
        name = f"{self._name}-{number}"
        transaction = history.transactions[name.encode()] = Transaction()

        async def add() -> ErrorCode:
            request = add_partitions(self._name, self._id, self._epoch, *chosen)
            answer = await self._asked(
                await self._at_coordinator(), request, AddPartitionsToTxnResponse
            )
            codes = [
                ErrorCode(p.partition_error_code)
                for t in answer.results_by_topic_v3_and_below
                for p in t.results_by_partition
            ]
            return next((code for code in codes if code), ErrorCode.NONE)

        await self._tried(add)
        for n in range(draw.randint(1, 4)):
            await self._send(draw.choice(chosen), f"{name}-{n}".encode(), transaction)
            await self._scene.pause()
        committed = draw.random() < 0.7
        if draw.random() < 0.1:
            await passes(draw.random() * 6)  # perhaps longer than it may last

        request = EndTxnRequest(
            transactional_id=self._name, producer_id=self._id,
            producer_epoch=self._epoch, committed=committed,
        )  # fmt: skip
        if draw.random() < 0.2:
            await self._have_it_come_late(request)

        async def end() -> ErrorCode:
            answer = await self._asked(await self._at_coordinator(), request, EndTxnResponse)
            return ErrorCode(answer.error_code)

        transaction.to_be_committed = committed
        await self._tried(end)
        transaction.ended = committed

    async def _have_it_come_late(self, request: EndTxnRequest) -> None:
        """The network has it for a while, and the client, without an answer, asks once more."""
        try:
            connection = await self._at_coordinator()
            host, port = connection.address.rsplit(":", 1)
            given_up = await BrokerConnection.open(host, int(port))
        except (ConnectionLost, KafkaError):
            return
        connection.close()  # another one is opened
        after_s = self._scene.draw.random() * LATE_S_MAX

        async def come() -> None:
            await passes(after_s)
            with suppress(ConnectionLost):
                await given_up.request(request, EndTxnResponse, timeout_seconds=REQUEST_MS / 1000)
            given_up.close()

        self._late.append(asyncio.get_running_loop().create_task(come()))

    async def _send(
        self, partition: TopicPartition, value: bytes, transaction: Transaction
    ) -> None:
        history = self._scene.history
        transaction.values[value] = partition
        history.transactional[value] = transaction
        key = b"k%d" % self._scene.draw.randrange(6)
        history.sent[partition, value] = Written(partition, key, value, 0, self._name)
        spec = BatchSpec(
            producer_id=self._id, producer_epoch=self._epoch,
            base_sequence=self._sequences.get(partition, 0), transactional=True,
        )  # fmt: skip
        record = NewRecord(key, value, timestamp=self._scene.clock.now_ms())
        data = PartitionProduceData(index=partition.partition, records=build_batch([record], spec))
        request = ProduceRequest(
            transactional_id=self._name, acks=-1, timeout_ms=REQUEST_MS,
            topic_data=(TopicProduceData(name=partition.topic, partition_data=(data,)),),
        )  # fmt: skip

        async def once() -> ErrorCode:
            try:
                connection = await self._cluster.leader_connection(partition)
                answer = await self._asked(connection, request, ProduceResponse, JOINS_NOTHING)
                code = ErrorCode(answer.responses[0].partition_responses[0].error_code)
            except (ConnectionLost, KafkaError):
                self._cluster.forget(partition.topic)
                raise
            if code:
                self._cluster.forget(partition.topic)
            if code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                raise Fenced
            return code

        await self._tried(once)
        self._sequences[partition] = self._sequences.get(partition, 0) + 1
