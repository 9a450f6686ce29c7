"""What each client gets of a log: old formats, tombstones nulled, and mostly the file itself."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lapse.base.errors import ErrorCode
from lapse.base.ids import TopicPartition
from lapse.broker.logs.fetch_records import REPLICA, Client, client_of
from lapse.broker.node import Node
from lapse.client.connection import BrokerConnection
from lapse.log.partition_log import PartitionLog
from lapse.records.batch import scan_batches
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.layout import Codec
from lapse.records.legacy import Message, MessageSpec, build_messages
from lapse.wire.schema.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
    ReplicaState,
)
from tests.property.strategies import OLD_CODECS
from tests.support.broker.old_requests import T, magics, old_fetch, seen
from tests.support.broker.running import (
    BY_NAME,
    batch_of,
    connect,
    create,
    fetch,
    fetch_request,
    produce,
    running_node,
)

OLD = {0: 0, 1: 0, 2: 1, 3: 1}  # Fetch version: what it reads
FLAGGED = {"cleanup_policy": "compact", "lapse_tombstone_values_enable": "true"}


def asking(version: int, **fields: object) -> FetchRequest:
    return FetchRequest(max_wait_ms=0, min_bytes=0, topics=(), **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("version", "fields", "client"),
    [
        (0, {}, Client(0, zstd=False, hard_limit=True)),
        (1, {}, Client(0, zstd=False, hard_limit=True)),
        (2, {}, Client(1, zstd=False, hard_limit=True)),
        (3, {}, Client(1, zstd=False)),
        (4, {}, Client(2, zstd=False)),
        (9, {}, Client(2, zstd=False)),
        (10, {}, Client()),
        (12, {"tombstone_values": True}, Client(tombstone_values=True, is_ours=True)),
        (3, {"replica_id": 1}, REPLICA),
        (14, {"replica_id": 0}, REPLICA),
        (15, {"replica_id": 0}, Client()),  # no longer said there
        (15, {"replica_state": ReplicaState(replica_id=2)}, REPLICA),
    ],
)
def test_who_asks(version: int, fields: dict[str, object], client: Client) -> None:
    assert client_of(version, asking(version, **fields)) == client


# --- old formats ----------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", OLD_CODECS)
@pytest.mark.parametrize("version", OLD)
async def test_old_clients_get_messages(
    node: Node, connection: BrokerConnection, version: int, codec: Codec
) -> None:
    await create(node, "t", retention_ms="-1")
    records = [NewRecord(b"k%d" % n, b"v%d" % n * 50, T + n, (("h", b"1"),)) for n in range(4)]
    for _ in range(2):
        await produce(connection, "t", (0, build_batch(records, BatchSpec(codec=codec))))
    got = await old_fetch(connection, version)
    assert magics(got) == {OLD[version]}
    times = [T + n if OLD[version] else -1 for n in range(4)] * 2
    assert [(r.offset, r.timestamp, r.key, r.value) for r in seen(got)] == [
        (n, time, b"k%d" % (n % 4), b"v%d" % (n % 4) * 50) for n, time in enumerate(times)
    ]
    assert [r.offset for r in seen(await old_fetch(connection, version, 6))] == [6, 7]
    assert (got.high_watermark, got.error_code) == (8, 0)


async def test_append_times_go_along_to_v1(node: Node, connection: BrokerConnection) -> None:
    """KIP-32: an old consumer sees the type and the time that a new one sees."""
    for codec in OLD_CODECS:
        await create(node, codec.name, message_timestamp_type="LogAppendTime")
        (sent,) = await produce(
            connection, codec.name, (0, batch_of(b"a", spec=BatchSpec(codec=codec)))
        )
        got = await old_fetch(connection, 2, topic=codec.name)
        assert [r.timestamp for r in seen(got)] == [sent.log_append_time_ms]
        raw = bytes(got.records or b"")  # type: ignore[arg-type]
        assert raw[17] & 8  # the type bit


async def test_transactions_are_not_told_of(node: Node, connection: BrokerConnection) -> None:
    """Markers are left out and passed over, even where nothing but one is at the offset."""
    await create(node, "t")
    log = node.services.partitions.get(TopicPartition("t", 0))
    await produce(
        connection,
        "t",
        (0, batch_of(b"a", spec=BatchSpec(producer_id=1, producer_epoch=0, base_sequence=0))),
    )
    for _ in range(3):
        log.append_marker(1, 0, True, 0, leader_epoch=0, now_ms=T)
    assert [r.value for r in seen(await old_fetch(connection, 1))] == [b"a"]
    assert (await old_fetch(connection, 1, 1)).records == b""
    await produce(connection, "t", (0, batch_of(b"b")))
    small = await old_fetch(connection, 1, 1, partition_max_bytes=90)
    assert [(r.offset, r.value) for r in seen(small)] == [(4, b"b")]


@pytest.mark.parametrize("version", OLD)
async def test_limits(node: Node, connection: BrokerConnection, version: int) -> None:
    """v0-2 get what they asked for, cut; v3 gets one batch at least. Both get on by one fetch."""
    await create(node, "t")
    await produce(connection, "t", (0, batch_of(*[b"x" * 100] * 20)))
    raw = bytes((await old_fetch(connection, version, 0, partition_max_bytes=300)).records or b"")  # type: ignore[arg-type]
    assert (len(raw) == 300) == (version < 3)
    got = await old_fetch(connection, version, 7, partition_max_bytes=300)
    assert [r.offset for r in seen(got)][:2] == [7, 8]
    if version < 3:  # no whole message: what tells the client that it is too large
        tiny = await old_fetch(connection, version, 7, partition_max_bytes=50)
        assert (len(tiny.records or b""), seen(tiny)) == (50, [])


async def test_each_partition_has_its_own_limit(node: Node, connection: BrokerConnection) -> None:
    """Before v3 none for all; the second one's batch is larger than what it may give, too."""
    await create(node, "t", 2)
    large = batch_of(*[b"x" * 100] * 20)
    await produce(connection, "t", (0, large), (1, large))
    request = fetch_request("t", (0, 0), (1, 5), partition_max_bytes=300)
    answer = await connection.request(request, FetchResponse, version=2)
    first, second = answer.responses[0].partitions
    assert [len(p.records or b"") for p in (first, second)] == [300, 300]
    assert [seen(p)[0].offset for p in (first, second)] == [0, 5]


@pytest.mark.parametrize("magic", [0, 1])
async def test_what_is_stored_old_is_cut_like_it(
    node: Node, connection: BrokerConnection, magic: int
) -> None:
    await create(node, "t", message_format_version="0.10.2" if magic else "0.9.0")
    await produce(connection, "t", (0, batch_of(*[b"x" * 100] * 20)))
    for version in (2, 3):
        got = await old_fetch(connection, version, 1, partition_max_bytes=50)
        assert (len(got.records or b"") == 50) == (version == 2)
        assert [r.offset for r in seen(got)] == ([] if version == 2 else [1])
    whole = await old_fetch(connection, 2)
    assert magics(whole) == {magic}
    assert [r.offset for r in seen(whole)] == list(range(20))


async def test_v1_on_disk_for_a_reader_of_v0(node: Node, connection: BrokerConnection) -> None:
    await create(node, "t", message_format_version="0.10.2")
    await produce(connection, "t", (0, batch_of(b"a", b"b", spec=BatchSpec(codec=Codec.GZIP))))
    got = await old_fetch(connection, 1, 1)
    assert magics(got) == {0}
    assert [(r.offset, r.timestamp, r.value) for r in seen(got)] == [(1, -1, b"b")]


async def test_formats_mixed_in_one_log(node: Node, connection: BrokerConnection) -> None:
    await create(node, "t")
    log = node.services.partitions.get(TopicPartition("t", 0))
    log.append_raw(build_messages([Message(0, -1, b"k", b"v0")], MessageSpec(0)))
    log.append_raw(build_messages([Message(1, T, b"k", b"v1")], MessageSpec(1)))
    await produce(connection, "t", (0, batch_of(b"v2")))
    for version in (1, 3, 4):
        got = await old_fetch(connection, version)
        assert [r.value for r in seen(got)] == [b"v0", b"v1", b"v2"]
        assert magics(got) == {1: {0}, 3: {0, 1}, 4: {0, 1, 2}}[version]


async def test_zstd_is_not_for_old_clients(node: Node, connection: BrokerConnection) -> None:
    await create(node, "t")
    await create(node, "z", compression_type="zstd")
    await produce(connection, "t", (0, batch_of(b"a")))
    await produce(connection, "t", (0, batch_of(b"b", spec=BatchSpec(codec=Codec.ZSTD))))
    await produce(connection, "z", (0, batch_of(b"c")))
    assert [r.value for r in seen(await old_fetch(connection, 3))] == [b"a"]
    refused = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert (await old_fetch(connection, 3, 1)).error_code == refused
    assert (await old_fetch(connection, 4, 1)).error_code == 0  # its producer chose it
    assert (await old_fetch(connection, 9, topic="z")).error_code == refused
    assert [r.value for r in seen(await old_fetch(connection, 10, topic="z"))] == [b"c"]


async def test_damage_is_told_not_converted(node: Node, connection: BrokerConnection) -> None:
    await create(node, "t")
    for value in (b"a", b"b"):
        await produce(connection, "t", (0, batch_of(value)))
    path = node.services.partitions.get(TopicPartition("t", 0)).dir / f"{0:020d}.log"
    raw = bytearray(path.read_bytes())
    raw[-2] ^= 1
    path.write_bytes(raw)
    assert [r.value for r in seen(await old_fetch(connection, 2))] == [b"a"]
    assert (await old_fetch(connection, 2, 1)).error_code == ErrorCode.CORRUPT_MESSAGE


async def test_a_replica_gets_what_is_stored(node: Node, connection: BrokerConnection) -> None:
    await create(node, "t", **FLAGGED)
    sent = build_batch([NewRecord(b"k", b"why", T, tombstone=True)])
    await produce(connection, "t", (0, sent))
    request = fetch_request("t", (0, 0))
    for version in (1, 3, 12):
        asked = FetchRequest(
            replica_id=1, max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, topics=request.topics
        )
        answer = await connection.request(asked, FetchResponse, version=version)
        assert bytes(answer.responses[0].partitions[0].records) == sent
    topic = node.services.topics.image.topics["t"]
    part = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    asked = FetchRequest(
        replica_state=ReplicaState(replica_id=1), max_wait_ms=0, min_bytes=0, max_bytes=1 << 20,
        topics=(FetchTopic(topic_id=topic.topic_id, partitions=(part,)),),
    )  # fmt: skip
    answer = await connection.request(asked, FetchResponse, version=15)
    assert bytes(answer.responses[0].partitions[0].records) == sent


# --- KIP-107 --------------------------------------------------------------------------------------


def log_of(node: Node) -> PartitionLog:
    return node.services.partitions.get(TopicPartition("t", 0))


def values_in(data: PartitionData) -> list[bytes | None]:
    """Of all records in the answer, those below the offset that was asked for too."""
    return [r.value for r in seen(data)]


@pytest.mark.parametrize("codec", Codec)
async def test_no_consumer_is_sent_what_was_deleted_of_a_batch(
    node: Node, connection: BrokerConnection, codec: Codec
) -> None:
    """While it is still in the file; what is beside it is sent as it is stored."""
    await create(node, "t")
    values = [b"secret %d" % n for n in range(5)]
    spec = BatchSpec(codec=codec, producer_id=7, producer_epoch=0, base_sequence=0)
    await produce(connection, "t", (0, batch_of(*values, spec=spec)))
    await produce(connection, "t", (0, batch_of(b"later")))
    log = log_of(node)
    stored = log.read(0, 1 << 20).read()
    assert log.delete_records(2) == 2
    for level in (0, 1):
        (got,) = await fetch(connection, "t", (0, 2), isolation_level=level)
        assert values_in(got) == values[2:]
        assert [r.offset for r in seen(got)] == [2, 3, 4]
        (row,) = scan_batches(bytes(got.records), "answer")  # type: ignore[arg-type]
        assert (row["producer_id"], row["base_offset"], row["last_offset"]) == (7, 0, 4)
        assert row["attributes"] == int(codec)
    # From within the batch, too: it is as the log start has it, not as each client does.
    (got,) = await fetch(connection, "t", (0, 4))
    assert values_in(got) == values[2:]
    (got,) = await fetch(connection, "t", (0, 5))
    assert bytes(got.records) == stored[-len(bytes(got.records)) :]  # type: ignore[arg-type]
    assert values_in(got) == [b"later"]
    asked = replace(fetch_request("t", (0, 2)), replica_id=1)
    answer = await connection.request(asked, FetchResponse, version=BY_NAME)
    assert bytes(answer.responses[0].partitions[0].records) == stored
    assert log.read(2, 1 << 20).read() == stored  # for `append_raw` and export
    log.delete_records(4)
    (got,) = await fetch(connection, "t", (0, 4))
    assert values_in(got) == values[4:]


async def test_what_a_round_has_trimmed_goes_from_the_file_again(
    node: Node, connection: BrokerConnection
) -> None:
    await create(node, "t")
    await produce(connection, "t", (0, batch_of(b"a", b"b", b"c")))
    log = log_of(node)
    stored = log.read(0, 1 << 20).read()
    log.delete_records(1)
    log.trimmed_to(1)  # this one took nothing out, so that it can be told apart
    (got,) = await fetch(connection, "t", (0, 1))
    assert bytes(got.records) == stored  # type: ignore[arg-type]


async def test_who_reads_further_up_asks_no_file_for_the_log_start(
    node: Node, connection: BrokerConnection, tmp_path: Path
) -> None:
    """It would be opened in the event loop, for each fetch until a round has trimmed it."""
    await create(node, "t")
    await produce(connection, "t", (0, batch_of(b"a", b"b")))
    log = log_of(node)
    log.roll(T)
    await produce(connection, "t", (0, batch_of(b"later")))
    log.delete_records(1)
    first = log.dir / f"{0:020d}.log"
    first.rename(tmp_path / "away")
    (got,) = await fetch(connection, "t", (0, 2))
    (tmp_path / "away").rename(first)
    assert (got.error_code, values_in(got)) == (0, [b"later"])


async def test_a_batch_of_which_nothing_lives_lets_a_consumer_pass(
    node: Node, connection: BrokerConnection
) -> None:
    """A compaction may have left its first records alone."""
    await create(node, "t", cleanup_policy="compact,delete")
    log = log_of(node)
    log.append_raw(build_batch([NewRecord(b"k", b"old", T)], BatchSpec(last_offset_delta=9)))
    log.append_raw(build_batch([NewRecord(b"k", b"new", T)], BatchSpec(base_offset=10)))
    log.delete_records(5)
    (got,) = await fetch(connection, "t", (0, 5))
    (row,) = scan_batches(bytes(got.records), "answer")  # type: ignore[arg-type]
    assert (row["count"], row["last_offset"]) == (0, 9)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", OLD_CODECS)
async def test_nor_of_messages_in_the_old_formats(
    node: Node, connection: BrokerConnection, codec: Codec, magic: int
) -> None:
    """Whoever asks: one that reads them as they are stored, or has them converted."""
    await create(node, "t", message_format_version="0.10.2" if magic else "0.9.0")
    values = [b"secret %d" % n for n in range(5)]
    await produce(connection, "t", (0, batch_of(*values, spec=BatchSpec(codec=codec))))
    await produce(connection, "t", (0, batch_of(b"later")))
    log_of(node).delete_records(3)
    for version in (1, 2, 3, 4, 12):
        got = await old_fetch(connection, version, 3)
        assert values_in(got)[:2] == values[3:], version
        assert magics(got) == {min(magic, OLD.get(version, magic))}
        assert values_in(await old_fetch(connection, version, 5)) == [b"later"]
    small = await old_fetch(connection, 2, 3, partition_max_bytes=40)
    assert len(small.records or b"") == 40


async def test_nor_of_a_batch_that_holds_tombstones_with_values(
    node: Node, connection: BrokerConnection
) -> None:
    """KIP-87 beside KIP-107: the deleted ones are gone, the others null for who did not ask."""
    await create(node, "t", **{**FLAGGED, "cleanup_policy": "compact,delete"})
    records = [NewRecord(b"k%d" % n, b"v%d" % n, T, tombstone=n > 1) for n in range(4)]
    await produce(connection, "t", (0, build_batch(records)))
    log_of(node).delete_records(1)
    for aware, wanted in ((True, [b"v1", b"v2", b"v3"]), (False, [b"v1", None, None])):
        (got,) = await fetch(connection, "t", (0, 1), tombstone_values=aware)
        assert values_in(got) == wanted


async def test_damage_where_the_log_starts_is_told(
    node: Node, connection: BrokerConnection
) -> None:
    """What is made anew would get a checksum that is right."""
    await create(node, "t")
    await produce(connection, "t", (0, batch_of(b"a", b"b", b"c")))
    log_of(node).delete_records(1)
    path = log_of(node).dir / f"{0:020d}.log"
    raw = bytearray(path.read_bytes())
    raw[-2] ^= 1
    path.write_bytes(raw)
    (got,) = await fetch(connection, "t", (0, 1))
    assert got.error_code == ErrorCode.CORRUPT_MESSAGE


# --- KIP-87 ---------------------------------------------------------------------------------------

Asks = Callable[..., Awaitable[Callable[[], Awaitable[PartitionData]]]]


async def sessionless(
    connection: BrokerConnection, **fields: Any
) -> Callable[[], Awaitable[PartitionData]]:
    """A way to read the topic's only partition once there is something in it."""

    async def ask() -> PartitionData:
        (got,) = await fetch(connection, "t", (0, 0), **{"session_epoch": -1, **fields})
        return got

    return ask


async def in_full(
    connection: BrokerConnection, **fields: Any
) -> Callable[[], Awaitable[PartitionData]]:
    """By the fetch that begins a session."""
    return await sessionless(connection, session_epoch=0, **fields)


async def in_increments(
    connection: BrokerConnection, **fields: Any
) -> Callable[[], Awaitable[PartitionData]]:
    """By one that goes on with a session, and names no partition."""
    request = fetch_request("t", (0, 0), session_epoch=0, **fields)
    begun = await connection.request(request, FetchResponse, version=BY_NAME)
    assert begun.session_id

    async def ask() -> PartitionData:
        in_session = {"session_id": begun.session_id, "session_epoch": 1}
        request = replace(fetch_request("t", **in_session, **fields), topics=())
        answer = await connection.request(request, FetchResponse, version=BY_NAME)
        assert (answer.error_code, answer.session_id) == (0, begun.session_id)
        ((got,),) = (topic.partitions for topic in answer.responses)
        return got

    return ask


CHANGING = [NewRecord(b"a", b"live", T), NewRecord(b"b", b"why", T + 1, tombstone=True)]


@pytest.mark.parametrize("asks", [sessionless, in_full, in_increments])
@pytest.mark.parametrize("horizon_ms", [None, T + 99], ids=["", "horizon"])
@pytest.mark.parametrize("transactional", [False, True], ids=["", "transactional"])
@pytest.mark.parametrize("codec", Codec)
async def test_valued_tombstones_are_null_for_who_did_not_ask(
    node: Node,
    connection: BrokerConnection,
    codec: Codec,
    transactional: bool,
    horizon_ms: int | None,
    asks: Asks,
) -> None:
    """All else of the batch stays: count, offsets, producer, times, horizon, codec."""
    await create(node, "t", **FLAGGED)
    ask = {
        (level, aware): await asks(connection, isolation_level=level, tombstone_values=aware)
        for level in (0, 1)
        for aware in (False, True)
    }
    log = node.services.partitions.get(TopicPartition("t", 0))
    producer = {"producer_id": 7, "producer_epoch": 3, "base_sequence": 0} if transactional else {}
    spec = BatchSpec(codec=codec, transactional=transactional, horizon_ms=horizon_ms, **producer)  # type: ignore[arg-type]
    stored = build_batch(CHANGING, spec)
    log.append_raw(stored)  # no producer may set a horizon
    if transactional:
        log.append_marker(7, 3, True, 0, leader_epoch=0, now_ms=T)
    for level in (0, 1):
        aware = await ask[level, True]()
        assert bytes(aware.records).startswith(stored)  # type: ignore[arg-type]
        got = await ask[level, False]()
        raw = bytes(got.records)  # type: ignore[arg-type]
        expected = build_batch([CHANGING[0], NewRecord(b"b", None, T + 1)], spec)
        assert len(seen(got)) == len(seen(aware)) == 2 + transactional
        assert [(r.key, r.value, r.flagged) for r in seen(got)[:2]] == [
            (b"a", b"live", False), (b"b", None, False),
        ]  # fmt: skip
        assert raw[: len(expected)] == expected
    for version, magic in OLD.items():
        old = await old_fetch(connection, version)
        if codec is Codec.ZSTD:
            assert old.error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
            continue
        assert [(r.key, r.value) for r in seen(old)] == [(b"a", b"live"), (b"b", None)]
        assert magics(old) == {magic}


async def test_a_tombstone_is_null_whatever_the_setting_says_now(
    node: Node, connection: BrokerConnection
) -> None:
    """It was taken while the setting was on: switching that off brings no value to life."""
    await create(node, "t", cleanup_policy="compact")
    node.services.partitions.get(TopicPartition("t", 0)).append_raw(build_batch(CHANGING))
    (got,) = await fetch(connection, "t", (0, 0))
    assert [(r.key, r.value) for r in seen(got)] == [(b"a", b"live"), (b"b", None)]


@pytest.mark.parametrize("enable", ["true", "false"])
async def test_where_nothing_compacts_the_value_stays(
    node: Node, connection: BrokerConnection, enable: str
) -> None:
    await create(node, "t", lapse_tombstone_values_enable=enable)
    stored = build_batch(CHANGING)
    node.services.partitions.get(TopicPartition("t", 0)).append_raw(stored)
    (got,) = await fetch(connection, "t", (0, 0))
    assert bytes(got.records) == stored  # type: ignore[arg-type]


async def test_aborted_transactions_are_still_named(
    node: Node, connection: BrokerConnection
) -> None:
    await create(node, "t", **FLAGGED)
    log = node.services.partitions.get(TopicPartition("t", 0))
    spec = BatchSpec(producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    log.append_raw(build_batch(CHANGING, spec))
    log.append_marker(7, 0, False, 0, leader_epoch=0, now_ms=T)
    (got,) = await fetch(connection, "t", (0, 0), isolation_level=1)
    assert [(t.producer_id, t.first_offset) for t in got.aborted_transactions or ()] == [(7, 0)]


async def test_what_needs_no_conversion_goes_from_the_file(
    node: Node, connection: BrokerConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a topic with the flag too, as long as no batch in the slice has such a record."""
    sent: list[int] = []
    sendfile = os.sendfile

    def counted(out: int, fd: int, position: int, size: int) -> int:
        sent.append(sendfile(out, fd, position, size))
        return sent[-1]

    monkeypatch.setattr(os, "sendfile", counted)
    await create(node, "t", **FLAGGED)
    await produce(connection, "t", (0, batch_of(b"x" * 200_000)))
    (got,) = await fetch(connection, "t", (0, 0))
    assert sum(sent) == len(got.records or b"") > 200_000
    sent.clear()
    await produce(connection, "t", (0, build_batch(CHANGING)))
    await fetch(connection, "t", (0, 0))
    assert not sent
    await fetch(connection, "t", (0, 0), tombstone_values=True)
    assert sum(sent) > 200_000


async def test_what_was_just_written_needs_no_thread(
    disk_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless it is not in memory any more."""
    async with running_node(disk_path) as node, await connect(node) as connection:
        await create(node, "t")
        await produce(connection, "t", (0, batch_of(b"x")))
        worked: list[object] = []
        run = node.services.disk.run

        async def counted(work: Callable[..., object], *rest: object) -> object:
            worked.append(work)
            return await run(work, *rest)

        monkeypatch.setattr(node.services.disk, "run", counted)
        (got,) = await fetch(connection, "t", (0, 0))
        assert got.records
        assert not worked

        def gone(*_: object) -> int:
            raise BlockingIOError

        monkeypatch.setattr(os, "preadv", gone)
        (again,) = await fetch(connection, "t", (0, 0))
        assert again.records == got.records
        assert worked


async def test_a_cut_batch_is_left_out_of_what_is_converted(
    node: Node, connection: BrokerConnection
) -> None:
    await create(node, "t", **FLAGGED)
    first = build_batch(CHANGING)
    for _ in range(2):
        await produce(connection, "t", (0, first))
    (got,) = await fetch(connection, "t", (0, 0), partition_max_bytes=len(first) + 20)
    assert [r.offset for r in seen(got)] == [0, 1]
    (got,) = await fetch(connection, "t", (0, 2), partition_max_bytes=5)
    assert [r.offset for r in seen(got)] == [2, 3]


async def test_no_fetch_returns_more_than_the_broker_allows(tmp_path: Path) -> None:
    async with running_node(tmp_path, {"fetch.max.bytes": "1024"}) as node:
        await create(node, "t", 2)
        async with await connect(node) as connection:
            for _ in range(3):
                await produce(connection, "t", (0, batch_of(b"x" * 500)), (1, batch_of(b"x" * 500)))
            got = await fetch(connection, "t", (0, 0), (1, 0), max_bytes=1 << 30)
    assert sum(len(p.records or b"") for p in got) == 1024
