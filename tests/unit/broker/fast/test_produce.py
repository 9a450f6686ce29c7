"""Produce on the fast path: what takes it, and what happens where something is in its way.

That its answers and its logs are those of the readable path is in property/test_fast_requests.
"""

from __future__ import annotations

import asyncio
import errno
import math
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lapse.base.config import topic_config
from lapse.base.errors import ErrorCode, StorageError
from lapse.base.fs import AppendFile, RealFs
from lapse.base.ids import TopicPartition
from lapse.broker.http.metrics import BrokerCollector
from lapse.broker.limits.quotas import CLIENT_ID, PRODUCER_BYTE_RATE
from lapse.broker.node import Node
from lapse.client.connection import BrokerConnection, ConnectionLost
from lapse.kernels.layout import LOG_APPEND_TIME, TRANSACTIONAL
from lapse.log.partition_log import PartitionLog
from lapse.log.plain_appender import PlainAppender
from lapse.records.batch import headers_of, records_of, scan_batches
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.layout import Codec
from lapse.security.acls import AclFilter, Operation, ResourceType
from lapse.testing.clock import ManualClock
from lapse.wire.schema.metadata import MetadataRequest
from tests.support.broker.running import (
    batch_of,
    connect,
    create,
    produce,
    produce_request,
    running_node,
    until,
)
from tests.support.broker.secured import WITH_ACLS, allow, logged_in, set_acls
from tests.support.broker.transaction_requests import TransactionalProducer
from tests.support.wire.frames import frame_of

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
NEW = batch_of(b"a")


@pytest.fixture
async def topic(node: Node, connection: BrokerConnection) -> PartitionLog:
    """Of two partitions that have a record each: the first append opens the file."""
    await create(node, "t", 2)
    await produce(connection, "t", (0, NEW), (1, NEW))
    assert fast(node) == 0
    return node.services.partitions.get(T0)


def fast(node: Node) -> int:
    """How many requests took the fast path."""
    return node.services.counters.fast_requests["Produce"]


@pytest.mark.parametrize("version", range(3, 14))
@pytest.mark.parametrize("acks", [-1, 1])
@pytest.mark.usefixtures("topic")
async def test_a_plain_request_takes_it(
    node: Node, connection: BrokerConnection, acks: int, version: int
) -> None:
    topic_id = node.services.topics.image.topics["t"].topic_id
    one, other = await produce(
        connection, "t", (1, NEW), (0, NEW), acks=acks, version=version, topic_id=topic_id
    )
    assert [(p.index, p.error_code, p.base_offset) for p in (one, other)] == [(1, 0, 1), (0, 0, 1)]
    assert fast(node) == 1
    counters = node.services.counters
    assert counters.requests["Produce"] == 2
    assert (counters.topics["t"].messages_in, counters.topics["t"].bytes_in) == (4, 4 * len(NEW))


@pytest.mark.parametrize(
    "batch",
    [
        pytest.param(batch_of(b"a", spec=BatchSpec(codec=Codec.ZSTD)), id="codec"),
        pytest.param(batch_of(b"a" * (65 << 10)), id="large"),
    ],
)
@pytest.mark.usefixtures("topic")
async def test_another_does_not(node: Node, connection: BrokerConnection, batch: bytes) -> None:
    (answer,) = await produce(connection, "t", (0, batch))
    assert answer.error_code == 0
    assert fast(node) == 0


async def test_it_can_be_switched_off(tmp_path: Path) -> None:
    settings = {"lapse.fast.requests": "false"}
    async with running_node(tmp_path, settings) as node, await connect(node) as connection:
        await create(node, "t")
        for offset in range(3):
            (answer,) = await produce(connection, "t", (0, NEW))
            assert (answer.error_code, answer.base_offset) == (0, offset)
        assert fast(node) == 0


@pytest.mark.usefixtures("topic")
async def test_how_many_take_it_is_a_metric(node: Node, connection: BrokerConnection) -> None:
    await produce(connection, "t", (0, NEW))
    samples = {
        (sample.name, sample.labels.get("request")): sample.value
        for family in BrokerCollector(node.services).collect()
        for sample in family.samples
    }
    assert samples["lapse_broker_requests_total", "Produce"] == 2
    assert samples["lapse_broker_fast_requests_total", "Produce"] == 1


# --- what is in the way -------------------------------------------------------------------------


def set_behind(node: Node, *, is_behind: bool) -> None:
    """Whether its disk is."""
    node.services.disk._slow_until = math.inf if is_behind else 0.0


async def in_a_thread(node: Node) -> None:
    """Until something is done by one, and so waits there."""
    await until(lambda: node.services.disk._awake)


async def test_a_disk_that_is_behind_is_waited_for_by_a_thread(
    node: Node, connection: BrokerConnection, topic: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes are kept for it: more may be read into the buffer that they came in."""
    append, threads = PlainAppender.append, []

    def seen(*args: Any) -> int:
        threads.append(threading.current_thread().name)
        return append(*args)

    monkeypatch.setattr(PlainAppender, "append", seen)
    for is_behind in (True, False):
        set_behind(node, is_behind=is_behind)
        (answer,) = await produce(connection, "t", (0, NEW))
        assert (answer.error_code, answer.base_offset) == (0, 2 - is_behind)
    assert (topic.log_end_offset, fast(node)) == (3, 2)
    assert [name.startswith("lapse-disk") for name in threads] == [True, False]


async def test_so_is_a_log_that_another_one_has(
    node: Node, connection: BrokerConnection, topic: PartitionLog
) -> None:
    set_behind(node, is_behind=True)
    with held(topic):
        topic._core.is_syncing = True
        waiting = asyncio.ensure_future(produce(connection, "t", (0, NEW)))
        await in_a_thread(node)
        assert not waiting.done()
    (answer,) = await waiting
    assert (answer.error_code, answer.base_offset, fast(node)) == (0, 1, 1)


async def test_what_comes_meanwhile_is_not_written_over_what_waits(
    node: Node, topic: PartitionLog
) -> None:
    """A connection has one buffer, whose room is free again once a frame was looked at."""
    set_behind(node, is_behind=True)
    batches = [batch_of(value) for value in (b"first", b"other")]
    reader, writer = await asyncio.open_connection("127.0.0.1", node.services.address.port)
    with held(topic):
        for batch in batches:
            held_before = node.services.request_bytes.whole
            writer.write(frame_of(produce_request("t", (0, batch)), 9, correlation_id=1))
            await until(lambda before=held_before: node.services.request_bytes.whole > before)
    await until(lambda: topic.log_end_offset == 3)
    stored = topic.read(1, 1 << 20).read()
    rows = scan_batches(stored, "t-0")
    values = [bytes(r.value or b"") for row in rows for r in records_of(stored, row, "t-0")]
    assert values == [b"first", b"other"]
    writer.close()
    assert fast(node) == 2
    assert await reader.read(4)


async def test_what_is_not_plain_any_more_after_the_wait_is_judged_again(
    node: Node, connection: BrokerConnection, topic: PartitionLog
) -> None:
    set_behind(node, is_behind=True)
    keyless = build_batch([NewRecord(None, b"v")])
    with held(topic):
        waiting = asyncio.ensure_future(produce(connection, "t", (0, keyless)))
        await in_a_thread(node)
        topic._core.config = topic_config({"cleanup.policy": "compact"})
    (refused,) = await waiting
    assert (refused.error_code, topic.log_end_offset) == (ErrorCode.INVALID_RECORD, 1)
    assert fast(node) == 0


async def test_a_log_that_is_being_synced_is_not_waited_for(
    node: Node, connection: BrokerConnection, topic: PartitionLog
) -> None:
    topic._core.is_syncing = True
    (answer,) = await produce(connection, "t", (0, NEW))
    assert (answer.error_code, answer.base_offset, fast(node)) == (0, 1, 0)


@contextmanager
def held(log: PartitionLog) -> Iterator[None]:
    """Another thread has its lock."""
    has_it, done = threading.Event(), threading.Event()

    def hold() -> None:
        assert log.try_begin(1)
        has_it.set()
        done.wait(10)
        log.end()

    holder = threading.Thread(target=hold)
    holder.start()
    assert has_it.wait(10)
    try:
        yield
    finally:
        done.set()
        holder.join()


@pytest.mark.parametrize("is_behind", [False, True])
async def test_a_lock_is_not_waited_for_and_others_are_let_go_of(
    node: Node, connection: BrokerConnection, topic: PartitionLog, is_behind: bool
) -> None:
    """The first partition said yes already; it must not stay locked, nor be written to.

    By a thread neither: a request that names them the other way round would wait for this one.
    """
    set_behind(node, is_behind=is_behind)
    with held(node.services.partitions.get(T1)):
        waiting = asyncio.ensure_future(produce(connection, "t", (0, NEW), (1, NEW)))
        await in_a_thread(node)
        assert not waiting.done()
        with held(topic):
            pass
    first, second = await waiting
    assert (first.base_offset, second.base_offset, fast(node)) == (1, 1, 0)


async def test_settings_that_change_are_minded(
    node: Node, connection: BrokerConnection, topic: PartitionLog
) -> None:
    topic.update_config(topic_config({"max.message.bytes": "70"}))
    (answer,) = await produce(connection, "t", (0, NEW))
    assert answer.error_code == ErrorCode.MESSAGE_TOO_LARGE
    topic.update_config(topic_config({}))
    (answer,) = await produce(connection, "t", (0, NEW))
    assert (answer.base_offset, fast(node)) == (1, 1)


async def test_segments_are_rolled_by_the_times_of_records(
    node: Node, connection: BrokerConnection, topic: PartitionLog
) -> None:
    """T-20, where `lapse.roll.time` says so."""
    settings = {"lapse.roll.time": "record", "segment.ms": "1000"}
    topic.update_config(topic_config(settings))
    late = build_batch([NewRecord(b"k", b"v", 1001)])
    (answer,) = await produce(connection, "t", (0, late))
    assert (answer.base_offset, len(topic.segments), fast(node)) == (1, 2, 0)


async def test_an_old_message_format_is_minded(
    node: Node, connection: BrokerConnection, topic: PartitionLog
) -> None:
    topic.update_config(topic_config({"message.format.version": "0.10.2"}))
    (answer,) = await produce(connection, "t", (0, NEW))
    assert (answer.error_code, answer.base_offset, fast(node)) == (0, 1, 0)
    stored = topic.read(0, 1 << 20).read()
    assert [header.magic for header in headers_of(scan_batches(stored, "t-0"))] == [2, 1]


@pytest.mark.usefixtures("topic")
async def test_records_without_keys_are_refused_where_they_are_compacted(
    node: Node, connection: BrokerConnection
) -> None:
    await create(node, "compacted", cleanup_policy="compact")
    await produce(connection, "compacted", (0, NEW))
    keyless = build_batch([NewRecord(None, b"v")])
    (refused,) = await produce(connection, "compacted", (0, keyless))
    (taken,) = await produce(connection, "t", (0, keyless))
    assert (refused.error_code, taken.error_code) == (ErrorCode.INVALID_RECORD, 0)
    assert fast(node) == 1


# --- one log of two that cannot write -------------------------------------------------------------


class OneFull(RealFs):
    """A disk that is full for one partition."""

    def __init__(self) -> None:
        self.full = ""

    def open_append(self, path: Path) -> AppendFile:
        file = super().open_append(path)
        write = file.write

        def checked(*buffers: Any) -> None:
            if path.parent.name == self.full:
                os.pwrite(file.fileno(), b"half a batch", file.size)
                full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                raise StorageError(f"writing {path}: {full.strerror}") from full
            write(*buffers)

        file.write = checked  # type: ignore[method-assign]
        return file


@pytest.mark.parametrize("is_behind", [False, True])
async def test_each_partition_has_its_own_answer_after_the_first_byte(
    tmp_path: Path, is_behind: bool
) -> None:
    fs = OneFull()
    async with running_node(tmp_path, fs=fs) as node, await connect(node) as connection:
        await create(node, "t", 3)
        await produce(connection, "t", (0, NEW), (1, NEW), (2, NEW))
        set_behind(node, is_behind=is_behind)
        fs.full = "t-1"
        answers = await produce(connection, "t", (0, NEW), (1, NEW), (2, NEW))
        fs.full = ""
        assert [(p.index, p.error_code, p.base_offset) for p in answers] == [
            (0, 0, 1),
            (1, ErrorCode.KAFKA_STORAGE_ERROR, -1),
            (2, 0, 1),
        ]
        assert "No space left on device" in (answers[1].error_message or "")
        assert fast(node) == 1
        topic = node.services.counters.topics["t"]
        assert (topic.messages_in, topic.failed_produce_requests) == (5, 1)
        again = await produce(connection, "t", (0, NEW), (1, NEW))
        assert [p.base_offset for p in again] == [2, 1]


@pytest.mark.parametrize("is_behind", [False, True])
async def test_without_an_answer_an_error_ends_the_connection_and_nothing_behind_it_counts(
    tmp_path: Path, is_behind: bool
) -> None:
    fs = OneFull()
    async with running_node(tmp_path, fs=fs) as node, await connect(node) as connection:
        await create(node, "t", 2)
        await produce(connection, "t", (0, NEW), (1, NEW))
        set_behind(node, is_behind=is_behind)
        fs.full = "t-1"
        fails, behind = (produce_request("t", (n, NEW), acks=0) for n in (1, 0))
        reader, writer = await asyncio.open_connection("127.0.0.1", node.services.address.port)
        for request in (fails, behind, MetadataRequest(topics=None)):
            writer.write(frame_of(request, 9, correlation_id=1))
        assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()
        assert node.services.partitions.get(T0).log_end_offset == 1
        assert fast(node) == 1
        fs.full = ""  # or the log is not closed in order


# --- who may, and how much ------------------------------------------------------------------------


@pytest.mark.usefixtures("topic")
async def test_a_transaction_takes_it_while_it_goes_on(
    node: Node, connection: BrokerConnection
) -> None:
    """Its first batch in a partition does not: the coordinator has to know of it (KIP-890)."""
    producer = TransactionalProducer(connection, "x")
    await producer.start()
    log = node.services.partitions.get(T0)
    assert await producer.send(T0, b"a") == ErrorCode.TRANSACTION_ABORTABLE
    for n in (1, 2):
        await added(producer)
        assert await producer.send(T0, b"a") == ErrorCode.NONE
        first = log.log_end_offset - 1
        assert fast(node) == 2 * n - 2
        for _ in range(2):
            assert await producer.send(T0, b"a") == ErrorCode.NONE
        assert fast(node) == 2 * n
        assert (log.last_stable_offset, log.log_end_offset) == (first, first + 3)
        assert await producer.end(commit=n == 1) == ErrorCode.NONE
        await until(lambda: log.last_stable_offset == log.log_end_offset)
    (segment,) = log.segments
    assert segment.summary.transactional == 6
    assert [t.first_offset for t in log.aborted_transactions(0, log.log_end_offset)] == [first]
    # Late, or out of turn: not before the coordinator is asked, or at all.
    assert await late(producer) == ErrorCode.TRANSACTION_ABORTABLE
    await added(producer)
    assert await producer.send(T0, b"a") == ErrorCode.NONE
    assert await producer.send(T0, b"a", transactional=False) == ErrorCode.INVALID_TXN_STATE
    refused = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert await producer.send(T0, b"a", named=False) == refused
    assert fast(node) == 4


async def test_append_times_of_a_transaction_are_written(
    node: Node, connection: BrokerConnection
) -> None:
    await create(node, "t", message_timestamp_type="LogAppendTime")
    await produce(connection, "t", (0, NEW))
    producer = TransactionalProducer(connection, "x")
    await producer.start()
    await producer.add(T0)
    for _ in range(2):
        assert await producer.send(T0, b"a") == ErrorCode.NONE
    assert fast(node) == 1
    log = node.services.partitions.get(T0)
    with log.segments[0].path().open("rb") as file:
        rows = headers_of(scan_batches(file.read(), "log"))
    assert [row.attributes for row in rows] == [LOG_APPEND_TIME] + 2 * [
        TRANSACTIONAL | LOG_APPEND_TIME
    ]


async def test_who_may_not_write_for_a_transactional_id_is_refused(tmp_path: Path) -> None:
    async with running_node(tmp_path, WITH_ACLS) as node:
        await create(node, "t")
        may_write = allow(Operation.WRITE, ResourceType.TOPIC, "t")
        await set_acls(
            node, [may_write, allow(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, "x")]
        )
        async with await logged_in(node, "alice") as alice:
            producer = TransactionalProducer(alice, "x")
            await until_started(producer)
            await producer.add(T0)
            for _ in range(2):
                assert await producer.send(T0, b"a") == ErrorCode.NONE
            assert fast(node) == 1
            await node.services.access.delete_acls([AclFilter()])
            await set_acls(node, [may_write])
            refused = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            assert await producer.send(T0, b"a") == refused
            assert fast(node) == 1


async def added(producer: TransactionalProducer) -> None:
    """The end of the transaction before may still be on its way."""
    async with asyncio.timeout(10):
        while (await producer.add(T0))[T0]:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def late(producer: TransactionalProducer) -> ErrorCode:
    """What a batch is answered once its transaction is over."""
    while (code := await producer.send(T0, b"a")) == ErrorCode.NOT_ENOUGH_REPLICAS:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    return code


async def until_started(producer: TransactionalProducer) -> None:
    """The topic of transactions is made when the first of them asks."""
    async with asyncio.timeout(10):
        while await producer.find() or await producer.init():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_who_may_not_write_is_refused_from_the_next_request_on(tmp_path: Path) -> None:
    async with running_node(tmp_path, WITH_ACLS) as node:
        await create(node, "t")
        binding = allow(Operation.WRITE, ResourceType.TOPIC, "t")
        async with await logged_in(node, "alice") as alice, await logged_in(node, "bob") as bob:
            (answer,) = await produce(alice, "t", (0, NEW))
            assert answer.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
            await set_acls(node, [binding])
            for offset in range(3):
                (answer,) = await produce(alice, "t", (0, NEW))
                assert (answer.error_code, answer.base_offset) == (0, offset)
            assert fast(node) == 2, "all but the first, which opens the file"
            (answer,) = await produce(bob, "t", (0, NEW))
            assert answer.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
            await node.services.access.delete_acls([AclFilter()])
            (answer,) = await produce(alice, "t", (0, NEW))
            assert answer.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
            assert fast(node) == 2


async def test_a_session_that_has_ended_ends_the_connection(tmp_path: Path) -> None:
    clock = ManualClock()
    settings = {**WITH_ACLS, "connections.max.reauth.ms": "60000"}
    async with running_node(tmp_path, settings, clock=clock) as node:
        await create(node, "t")
        async with await logged_in(node, "admin") as admin:
            for _ in range(2):
                await produce(admin, "t", (0, NEW))
            assert fast(node) == 1
            clock.advance(60_001)
            with pytest.raises(ConnectionLost):
                await produce(admin, "t", (0, NEW))
        assert node.services.partitions.get(T0).log_end_offset == 2


@pytest.mark.parametrize("is_behind", [False, True])
@pytest.mark.parametrize("is_readable", [True, False])
@pytest.mark.parametrize("acks", [-1, 0])
async def test_a_quota_is_charged_and_minded(
    tmp_path: Path, acks: int, is_readable: bool, is_behind: bool
) -> None:
    """KIP-219: the answer goes out at once, the next request is handled after the wait."""
    clock = ManualClock()
    async with running_node(tmp_path, clock=clock) as node, await connect(node) as connection:
        await create(node, "t")
        await produce(connection, "t", (0, NEW))
        await node.services.quotas.alter(((CLIENT_ID, None),), {PRODUCER_BYTE_RATE: 100.0})
        reader, writer = await asyncio.open_connection("127.0.0.1", node.services.address.port)
        large = batch_of(bytes(3000))
        set_behind(node, is_behind=is_behind)
        behind: Any = MetadataRequest(topics=()) if is_readable else produce_request("t", (0, NEW))
        for request in (produce_request("t", (0, large), acks=acks), behind):
            writer.write(frame_of(request, 9, correlation_id=7))
        if acks:
            answer = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
            wait_ms = int.from_bytes(answer[-5:-1], "big")
            assert wait_ms > 1000
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.2)
        assert fast(node) == 1
        assert node.services.counters.requests["Metadata"] == 0, "not before the wait is over"
        assert node.services.partitions.get(T0).log_end_offset == 2
        writer.close()
