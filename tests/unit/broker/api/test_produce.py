"""Produce: which batches are appended, the error code of each refusal, and no other effect."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from lapse.base.errors import ErrorCode, StorageError
from lapse.base.fs import AppendFile, Buffer, RealFs
from lapse.base.ids import TopicPartition
from lapse.broker.http.metrics import BrokerCollector
from lapse.broker.logs.topics import NewTopic
from lapse.broker.node import Node
from lapse.client.connection import BrokerConnection
from lapse.metadata.image import INTERNAL_TOPICS, METADATA_LOG
from lapse.records.batch import headers_of, scan_batches
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.layout import Codec, TimestampType
from lapse.testing.clock import ManualClock
from lapse.wire.envelope import encode_request
from lapse.wire.schema.metadata import MetadataRequest
from tests.property.strategies import OLD_CODECS
from tests.support.broker.old_requests import T, magics, messages, old_produce, seen
from tests.support.broker.running import (
    BY_NAME,
    batch_of,
    connect,
    create,
    fetch,
    produce,
    produce_request,
    running_node,
    until,
)
from tests.support.broker.secured import PASSWORDS, WITH_ACLS, address_of, log_in

T0 = TopicPartition("t", 0)


def idempotent(sequence: int, epoch: int = 0, producer_id: int = 5) -> BatchSpec:
    return BatchSpec(producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)


@pytest.mark.parametrize("acks", [1, -1])
async def test_offsets_count_on(node: Node, connection: BrokerConnection, acks: int) -> None:
    await create(node, "t", 2)
    (first,) = await produce(connection, "t", (0, batch_of(b"a", b"b")), acks=acks)
    second, other = await produce(
        connection, "t", (0, batch_of(b"c")), (1, batch_of(b"d")), acks=acks
    )
    assert [p.error_code for p in (first, second, other)] == [0, 0, 0]
    assert [p.base_offset for p in (first, second, other)] == [0, 2, 0]
    assert first.log_append_time_ms == -1
    assert first.log_start_offset == 0


@pytest.mark.parametrize("codec", Codec)
async def test_every_codec_comes_back_as_sent(
    node: Node, connection: BrokerConnection, codec: Codec
) -> None:
    await create(node, "t")
    sent = batch_of(b"a" * 500, b"b" * 500, spec=BatchSpec(codec=codec))
    await produce(connection, "t", (0, sent))
    (got,) = await fetch(connection, "t", (0, 0))
    assert bytes(got.records) == sent  # type: ignore[arg-type]  # base offset 0, epoch 0: the same bytes


async def test_append_time_is_told(node: Node, connection: BrokerConnection) -> None:
    await create(node, "t", message_timestamp_type="LogAppendTime")
    before = node.services.clock.now_ms()
    (answer,) = await produce(connection, "t", (0, batch_of(b"a")))
    assert before <= answer.log_append_time_ms <= node.services.clock.now_ms()  # T-4


async def test_wrong_crc_writes_nothing(node: Node, connection: BrokerConnection) -> None:
    await create(node, "t")
    bad = bytearray(batch_of(b"a"))
    bad[-1] ^= 1
    (answer,) = await produce(connection, "t", (0, bytes(bad)))
    assert answer.error_code == ErrorCode.CORRUPT_MESSAGE
    assert answer.base_offset == -1
    log = node.services.partitions.get(T0)
    assert (log.log_end_offset, log.size_bytes) == (0, 0)
    assert (log.dir / "00000000000000000000.log").stat().st_size == 0


@pytest.mark.parametrize(
    ("topic", "partition"), [("nowhere", 0), ("t", 1), ("t", -1), ("../t", 0), ("", 0)]
)
async def test_unknown_partition(
    node: Node, connection: BrokerConnection, topic: str, partition: int
) -> None:
    await create(node, "t")
    (answer,) = await produce(connection, topic, (partition, batch_of(b"a")))
    assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_errors_are_per_partition(node: Node, connection: BrokerConnection) -> None:
    await create(node, "t", 2)
    answers = await produce(
        connection, "t", (0, batch_of(b"a")), (7, batch_of(b"b")), (1, batch_of(b"c"))
    )
    assert [a.error_code for a in answers] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0]
    assert [a.index for a in answers] == [0, 7, 1]


async def test_keyless_records_are_named(node: Node, connection: BrokerConnection) -> None:
    """T-7: the batch is refused whole."""
    await create(node, "t", cleanup_policy="compact")
    records = [
        NewRecord(b"a", b"1"),
        NewRecord(None, b"2"),
        NewRecord(b"c", b"3"),
        NewRecord(None, b""),
    ]
    (answer,) = await produce(connection, "t", (0, build_batch(records)))
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert [e.batch_index for e in answer.record_errors] == [1, 3]
    assert "t-0" in (answer.error_message or "")
    assert node.services.partitions.get(T0).log_end_offset == 0


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda: b"", ErrorCode.INVALID_RECORD),
        (lambda: batch_of(b"a") + batch_of(b"b"), ErrorCode.INVALID_RECORD),
        (lambda: batch_of(b"a")[:30], ErrorCode.CORRUPT_MESSAGE),
        (lambda: batch_of(b"x" * 2_000_000), ErrorCode.MESSAGE_TOO_LARGE),
        (lambda: batch_of(b"a", spec=BatchSpec(control=True)), ErrorCode.INVALID_RECORD),
        (lambda: batch_of(b"a", spec=BatchSpec(horizon_ms=5)), ErrorCode.INVALID_RECORD),
    ],
)
async def test_batches_nobody_may_send(
    node: Node, connection: BrokerConnection, make: Callable[[], bytes], code: ErrorCode
) -> None:
    await create(node, "t")
    (answer,) = await produce(connection, "t", (0, make()))
    assert answer.error_code == code
    assert node.services.partitions.get(T0).log_end_offset == 0


async def test_a_duplicate_is_acknowledged_with_its_old_offset(
    node: Node, connection: BrokerConnection
) -> None:
    await create(node, "t")
    first = batch_of(b"a", b"b", spec=idempotent(0))
    second = batch_of(b"c", spec=idempotent(2))
    assert [(await produce(connection, "t", (0, b)))[0].base_offset for b in (first, second)] == [
        0,
        2,
    ]
    again = (await produce(connection, "t", (0, first)))[0]
    assert (again.error_code, again.base_offset) == (0, 0)
    assert node.services.partitions.get(T0).log_end_offset == 3
    assert node.services.counters.topics["t"].messages_in == 3


async def test_wrong_sequence_and_old_epoch(node: Node, connection: BrokerConnection) -> None:
    await create(node, "t")
    await produce(connection, "t", (0, batch_of(b"a", spec=idempotent(0, epoch=1))))
    (gap,) = await produce(connection, "t", (0, batch_of(b"b", spec=idempotent(5, epoch=1))))
    assert gap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    (old,) = await produce(connection, "t", (0, batch_of(b"b", spec=idempotent(1, epoch=0))))
    assert old.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert node.services.partitions.get(T0).log_end_offset == 1


# --- old versions ---------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", OLD_CODECS)
@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("version", [0, 1, 2])
async def test_old_messages_become_a_batch(
    node: Node, connection: BrokerConnection, version: int, magic: int, codec: Codec
) -> None:
    """The broker assigns the offsets; a message of v0 has no timestamp, so it is -1."""
    await create(node, "t", retention_ms="-1")
    sent = messages(b"a", None, b"c", magic=magic, codec=codec)
    answers = [await old_produce(connection, version, sent) for _ in range(2)]
    assert [(a.error_code, a.base_offset) for a in answers] == [(0, 0), (0, 3)]
    (got,) = await fetch(connection, "t", (0, 0))
    assert magics(got) == {2}
    assert [(r.offset, r.create_time, r.key, r.value) for r in seen(got)] == [
        (n, T + n % 3 if magic else -1, b"k%d" % (n % 3), (b"a", None, b"c")[n % 3])
        for n in range(6)
    ]
    assert {int(row["attributes"]) for row in scan_batches(got.records, "t")} == {codec}  # type: ignore[arg-type]


@pytest.mark.parametrize("magic", [0, 1])
async def test_old_messages_get_an_append_time(
    node: Node, connection: BrokerConnection, magic: int
) -> None:
    """KIP-32: it replaces the messages' own timestamps; the response has it from v2 on."""
    await create(node, "t", message_timestamp_type="LogAppendTime")
    answer = await old_produce(connection, 2, messages(b"a", magic=magic))
    assert answer.log_append_time_ms > T
    assert (await old_produce(connection, 1, messages(b"a", magic=magic))).log_append_time_ms == -1
    (got,) = await fetch(connection, "t", (0, 0))
    assert seen(got)[0].timestamp == answer.log_append_time_ms


async def test_append_time_is_for_the_broker_to_say(
    node: Node, connection: BrokerConnection
) -> None:
    await create(node, "t", message_timestamp_type="LogAppendTime")
    sent = messages(b"a", magic=1, kind=TimestampType.LOG_APPEND_TIME)
    assert (await old_produce(connection, 2, sent)).error_code == ErrorCode.INVALID_TIMESTAMP


async def test_old_messages_are_judged_like_others(
    node: Node, connection: BrokerConnection
) -> None:
    await create(node, "t", message_timestamp_before_max_ms="1000")
    too_old = await old_produce(connection, 2, messages(b"a", magic=1))
    assert too_old.error_code == ErrorCode.INVALID_TIMESTAMP
    bad = bytearray(messages(b"a", b"b", magic=0))
    bad[-1] ^= 1
    assert (await old_produce(connection, 0, bytes(bad))).error_code == ErrorCode.CORRUPT_MESSAGE
    nested = bytearray(messages(b"a", magic=0, codec=Codec.GZIP))[:-9]
    assert (await old_produce(connection, 0, bytes(nested))).error_code == ErrorCode.CORRUPT_MESSAGE
    assert node.services.partitions.get(T0).log_end_offset == 0
    assert (await old_produce(connection, 0, messages(b"a", magic=0))).error_code == 0


@pytest.mark.parametrize(
    ("version", "magic", "codec", "code"),
    [
        (3, 0, Codec.NONE, ErrorCode.INVALID_RECORD),
        (11, 1, Codec.GZIP, ErrorCode.INVALID_RECORD),
        (2, 2, Codec.NONE, ErrorCode.NONE),  # Kafka does not check either
        (2, 2, Codec.ZSTD, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (6, 2, Codec.ZSTD, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (7, 2, Codec.ZSTD, ErrorCode.NONE),
    ],
)
async def test_a_version_has_its_format(
    node: Node, connection: BrokerConnection, version: int, magic: int, codec: Codec, code: int
) -> None:
    await create(node, "t", retention_ms="-1")
    sent = (
        messages(b"a", magic=magic, codec=codec)
        if magic < 2
        else batch_of(b"a", spec=BatchSpec(codec=codec))
    )
    assert (await old_produce(connection, version, sent)).error_code == code


@pytest.mark.parametrize("data", [b"", b"\0" * 12, b"\0" * 16 + b"\2", b"\0" * 16 + b"\1"])
@pytest.mark.parametrize("version", [0, 2, 3, 11])
async def test_a_few_bytes_are_no_batch(
    node: Node, connection: BrokerConnection, version: int, data: bytes
) -> None:
    await create(node, "t")
    answer = await old_produce(connection, version, data)
    assert answer.error_code in {ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD}


async def test_a_valued_tombstone_is_not_lost_in_an_old_format(
    node: Node, connection: BrokerConnection
) -> None:
    """v0 and v1 have no flag for such a tombstone: it would become a live value."""
    await create(
        node, "t", cleanup_policy="compact", lapse_tombstone_values_enable="true",
        message_format_version="0.10.2", message_timestamp_before_max_ms=str(1 << 60),
    )  # fmt: skip
    for tombstone, code in ((True, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT), (False, 0)):
        sent = build_batch([NewRecord(b"k", b"why", T, tombstone=tombstone)])
        (answer,) = await produce(connection, "t", (0, sent))
        assert answer.error_code == code


async def test_a_dropped_value_of_a_tombstone_is_told(
    node: Node, connection: BrokerConnection, caplog: pytest.LogCaptureFixture
) -> None:
    """KIP-87: the producer's response is success; one line per topic, and a counter."""
    await create(node, "t", 2, cleanup_policy="compact")
    await create(node, "plain")
    await create(node, "keeps", cleanup_policy="compact", lapse_tombstone_values_enable="true")
    sent = build_batch(
        [
            NewRecord(b"a", b"why", tombstone=True),
            NewRecord(b"b", None, tombstone=True),  # nothing is lost
            NewRecord(b"c", b"lives"),
            NewRecord(b"d", b"", tombstone=True),
        ],
        idempotent(0),
    )
    for topic, partition in (("t", 0), ("t", 0), ("t", 1), ("plain", 0), ("keeps", 0)):
        (answer,) = await produce(connection, topic, (partition, sent))
        assert answer.error_code == 0
    dropped = {t: c.tombstone_values_dropped for t, c in node.services.counters.topics.items()}
    assert dropped == {"t": 4, "plain": 0, "keeps": 0}  # one partition's batch was sent twice
    (line,) = [r for r in caplog.records if r.name == "lapse.broker.api.produce"]
    assert line.levelno == logging.WARNING
    assert line.getMessage().startswith("topic t: a tombstone came with a value, which is dropped")
    metrics = "\n".join(
        f"{sample.name}{sample.labels} {sample.value}"
        for family in BrokerCollector(node.services).collect()
        for sample in family.samples
    )
    assert "lapse_tombstone_values_dropped_total{'topic': 't'} 4" in metrics


async def test_other_acks_are_refused(node: Node, connection: BrokerConnection) -> None:
    await create(node, "t")
    (answer,) = await produce(connection, "t", (0, batch_of(b"a")), acks=2)
    assert answer.error_code == ErrorCode.INVALID_REQUIRED_ACKS
    assert node.services.partitions.get(T0).log_end_offset == 0


async def send_without_ack(node: Node, topic: str) -> bytes:
    """Send Produce with acks=0, then Metadata; return the start of the first response."""
    reader, writer = await asyncio.open_connection("127.0.0.1", node.services.address.port)
    produced = produce_request(topic, (0, batch_of(b"a")), acks=0)
    metadata = MetadataRequest(topics=None)
    for number, request in ((1, produced), (2, metadata)):
        parts = encode_request(request, version=9, correlation_id=number, client_id=None)
        writer.writelines(parts)  # type: ignore[arg-type]
    answer = await asyncio.wait_for(reader.read(8), 10)
    writer.close()
    return answer


async def test_acks_0_is_never_answered(node: Node) -> None:
    await create(node, "t")
    assert (await send_without_ack(node, "t"))[4:] == b"\0\0\0\2"
    assert node.services.partitions.get(T0).log_end_offset == 1


async def test_acks_0_that_fails_ends_the_connection(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    assert await send_without_ack(node, "nowhere") == b""
    (line,) = [record.getMessage() for record in caplog.records]
    assert "acks=0" in line
    assert "nowhere-0" in line


async def test_acks_0_counts_though_the_client_left(node: Node) -> None:
    await create(node, "t")
    _, writer = await asyncio.open_connection("127.0.0.1", node.services.address.port)
    request = produce_request("t", (0, batch_of(b"a")), acks=0)
    for number in range(30):
        parts = encode_request(request, version=9, correlation_id=number, client_id=None)
        writer.writelines(parts)  # type: ignore[arg-type]
    writer.close()
    async with asyncio.timeout(10):
        while node.services.partitions.get(T0).log_end_offset < 30:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


# --- a disk that is full ---------------------------------------------------------------------


class _FillingFile:
    """An append file that writes half of what it is given once the disk is full."""

    def __init__(self, file: AppendFile, full: threading.Event) -> None:
        self._file = file
        self._full = full
        self.path = file.path

    @property
    def size(self) -> int:
        return self._file.size

    @size.setter
    def size(self, size: int) -> None:
        self._file.size = size

    def write(self, *buffers: Buffer) -> None:
        if self._full.is_set():
            data = b"".join(buffers)
            os.pwrite(self._file.fileno(), data[: len(data) // 2], self._file.size)
            full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            raise StorageError(f"writing {self.path}: {full.strerror}") from full
        self._file.write(*buffers)

    def fileno(self) -> int:
        return self._file.fileno()

    def copy_from(self, source_fd: int, position: int, length: int) -> None:
        self._file.copy_from(source_fd, position, length)

    def fsync(self) -> None:
        self._file.fsync()

    def close(self) -> None:
        self._file.close()


class FillingFs(RealFs):
    """A disk that can be full for appends."""

    def __init__(self) -> None:
        self.full = threading.Event()

    def open_append(self, path: Path) -> AppendFile:
        return _FillingFile(super().open_append(path), self.full)  # type: ignore[return-value]


async def test_full_disk_loses_nothing_acknowledged(tmp_path: Path) -> None:
    fs = FillingFs()
    async with running_node(tmp_path / "data", fs=fs) as node, await connect(node) as connection:
        await create(node, "t")
        await produce(connection, "t", (0, batch_of(b"a")))
        fs.full.set()
        (refused,) = await produce(connection, "t", (0, batch_of(b"b" * 1000)))
        assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        (got,) = await fetch(connection, "t", (0, 0))
        assert bytes(got.records) == batch_of(b"a")  # type: ignore[arg-type]
        fs.full.clear()
        (after,) = await produce(connection, "t", (0, batch_of(b"c")))
        assert (after.error_code, after.base_offset) == (0, 1)
    async with running_node(tmp_path / "data") as node:
        assert node.services.partitions.get(T0).log_end_offset == 2


# --- without a thread -----------------------------------------------------------------------------


async def test_only_what_may_wait_for_a_disk_or_takes_long_goes_to_a_thread(
    node: Node, connection: BrokerConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    worked: list[int] = []
    run = node.services.disk.run

    async def counted(work: Callable[..., object], *rest: object) -> object:
        worked.append(1)
        return await run(work, *rest)

    async def threads(*batches: tuple[int, bytes]) -> int:
        worked.clear()
        answers = await produce(connection, "t", *batches)
        assert [p.error_code for p in answers] == [0] * len(batches)
        return len(worked)

    await create(node, "t", 2, **{"segment.bytes": "1048576"})
    monkeypatch.setattr(node.services.disk, "run", counted)
    assert await threads((0, batch_of(b"a"))) == 1  # the first one opens the file
    assert await threads((0, batch_of(b"a"))) == 0
    assert await threads((0, batch_of(b"b")), (1, batch_of(b"c")), (0, batch_of(b"d"))) == 1
    assert await threads((1, batch_of(b"e" * 500, spec=BatchSpec(codec=Codec.LZ4)))) == 1
    assert await threads((0, batch_of(b"f" * 1_047_000))) == 1  # a large batch takes a while
    assert await threads((0, batch_of(b"f" * 2000))) == 1  # a segment is rolled
    log = node.services.partitions.get(T0)
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        assert log.try_begin(1)
        held.set()
        done.wait(10)
        log.end()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(10)
    waiting = asyncio.ensure_future(threads((0, batch_of(b"g"))))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    done.set()
    assert await waiting == 1
    holder.join()
    (got,) = await fetch(connection, "t", (0, 0))
    sizes = [header.size for header in headers_of(scan_batches(got.records or b"", "t-0"))]
    assert sizes[:4] == [len(batch_of(b"x"))] * 4
    assert log.log_end_offset == 7


@pytest.mark.parametrize(("ahead_s", "goes_back"), [(600, False), (7201, True)])
async def test_append_times_do_not_go_back_with_the_clock(
    tmp_path: Path, ahead_s: int, goes_back: bool
) -> None:
    """L12, KIP-32's max(last, now): the bounds of create times (T-1) do not bound append times."""
    clock = ManualClock()
    rare = {"lapse.housekeeping.interval.ms": "3600000", "lapse.clock.jump.max.ms": "7200000"}
    async with running_node(tmp_path / "data", rare, clock=clock) as node:
        settings = {
            "message_timestamp_type": "LogAppendTime",
            "message_timestamp_after_max_ms": "1000",
        }
        await create(node, "l", **settings)
        append_times = []
        async with await connect(node) as connection:
            for jump_ms in (1000 * ahead_s, -1000 * ahead_s, 1000):
                clock.jump(jump_ms)
                (answer,) = await produce(connection, "l", (0, batch_of(b"v")))
                append_times.append(answer.log_append_time_ms)
    first, second, third = append_times
    if goes_back:  # further ahead than a clock may jump: then the earlier time was wrong
        assert (second, third) == (clock.now_ms() - 1000, clock.now_ms())
    else:
        assert (second, third) == (first, first)  # until the clock catches up


# --- internal topics -----------------------------------------------------------------------------

ADMIN_CLIENT = "__admin_client"
WRITES_ALL = {
    **WITH_ACLS,
    "super.users": "User:admin",
    "allow.everyone.if.no.acl.found": "true",
}


async def with_internal_topics(node: Node) -> None:
    for name in sorted(INTERNAL_TOPICS):
        await node.services.topics.create(NewTopic(name, 1, {}))
    # An older Lapse let clients create it; no client can any more.
    await node.services.topics.create(NewTopic(METADATA_LOG, 1, {}))


@pytest.mark.parametrize("topic", sorted({*INTERNAL_TOPICS, METADATA_LOG}))
@pytest.mark.parametrize("client_id", ["lapse", ADMIN_CLIENT])
async def test_no_client_writes_an_internal_topic(topic: str, client_id: str, node: Node) -> None:
    """Kafka lets any client with the client id `__admin_client` write."""
    await with_internal_topics(node)
    await create(node, "t")
    address = node.services.address
    async with await BrokerConnection.open(
        address.host, address.port, client_id=client_id
    ) as connection:
        for acks in (-1, 1):
            answers = await produce(
                connection, topic, (0, batch_of(b"a")), (7, batch_of(b"a")), acks=acks
            )
            assert [a.error_code for a in answers] == [
                ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ]  # fmt: skip
            assert topic in str(answers[0].error_message)
        (other,) = await produce(connection, "t", (0, batch_of(b"a")))
        assert other.error_code == 0
        request = produce_request(topic, (0, batch_of(b"a")), acks=0)
        await connection.send(request, version=BY_NAME)
        await until(lambda: connection.is_lost)
    assert node.services.partitions.get(TopicPartition(topic, 0)).log_end_offset == 0


@pytest.mark.parametrize(
    ("user", "client_id", "code"),
    [
        ("alice", "lapse", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("alice", ADMIN_CLIENT, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("admin", "lapse", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("admin", ADMIN_CLIENT, ErrorCode.NONE),
    ],
)
async def test_a_super_user_writes_one_as_kafkas_admin_client(
    user: str, client_id: str, code: ErrorCode, tmp_path: Path
) -> None:
    async with running_node(tmp_path, WRITES_ALL) as node:
        await with_internal_topics(node)
        address = address_of(node)
        async with await BrokerConnection.open(
            address.host, address.port, client_id=client_id
        ) as connection:
            assert (await log_in(connection, user, PASSWORDS[user])).error_code == 0
            (answer,) = await produce(connection, "__consumer_offsets", (0, batch_of(b"a")))
        assert answer.error_code == code
