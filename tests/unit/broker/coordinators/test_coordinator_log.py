"""A coordinator's log: what goes into one batch, what fails, and what is read when it is loaded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lapse.base.errors import CorruptData, ErrorCode, StorageError
from lapse.base.ids import TopicPartition
from lapse.broker.coordinators.coordinator_log import (
    BATCH_BYTES_MAX,
    KeyValue,
    Parts,
    StateLog,
    Writer,
)
from lapse.broker.node import Node
from lapse.coordination.records.entries import UNKNOWN, Marker, Write, encode_entry
from lapse.coordination.records.offsets import (
    OFFSET_COMMIT,
    TYPES,
    OffsetCommitKey,
    OffsetCommitValue,
)
from lapse.log.markers import EndMarker
from lapse.log.partition_log import PartitionLog
from lapse.records.batch import scan_batches
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from tests.support.broker.failing import FailingFs, unreadable
from tests.support.broker.running import create, running_node, until

HERE = TopicPartition("t", 0)
WRITER = Writer(producer_id=7, producer_epoch=0)
Results = list[tuple[str, ErrorCode, int]]


@pytest.fixture
def fs() -> FailingFs:
    return FailingFs()


@pytest.fixture
async def node(tmp_path: Path, fs: FailingFs) -> AsyncIterator[Node]:
    async with running_node(tmp_path / "data", fs=fs) as running:
        await create(running, "t", cleanup_policy="compact")
        yield running


def state_log(node: Node) -> StateLog:
    services = node.services
    parts = Parts(
        services.partitions, services.disk, services.clock, services.purgatory, services.replicas
    )
    return StateLog(services.partitions.led(HERE), parts)


def log_of(node: Node) -> PartitionLog:
    return node.services.partitions.get(HERE)


def batches(node: Node) -> list[tuple[int, int]]:
    """First offset and number of records of each."""
    data = log_of(node).read(0, 1 << 30).read()
    return [(int(row["base_offset"]), int(row["count"])) for row in scan_batches(data, str(HERE))]


def append(
    log: StateLog, results: Results, name: str, *records: KeyValue, writer: Writer | None = None
) -> None:
    log.append(records, lambda error, offset: results.append((name, error, offset)), writer)


# --- appending ------------------------------------------------------------------------------------


async def test_what_comes_meanwhile_goes_together_and_each_is_told_its_offset(node: Node) -> None:
    log, results = state_log(node), Results()
    append(log, results, "a", (b"k", b"v"), (b"l", b"v"))
    append(log, results, "b", (b"k", None))
    append(log, results, "c", (b"m", b"v"))
    await log.close()
    none = ErrorCode.NONE
    assert results == [("a", none, 0), ("b", none, 2), ("c", none, 3)]
    assert batches(node) == [(0, 4)]


async def test_a_batch_has_one_producer_and_a_limit(node: Node) -> None:
    log, results = state_log(node), Results()
    large = b"v" * (BATCH_BYTES_MAX // 2)
    append(log, results, "a", (b"k", large))
    append(log, results, "b", (b"k", large))
    append(log, results, "c", (b"k", b"v"), writer=WRITER)
    append(log, results, "d", (b"k", b"v"))
    await log.close()
    assert [offset for _, _, offset in results] == [0, 1, 2, 3]
    assert batches(node) == [(n, 1) for n in range(4)]


async def test_what_comes_after_the_end_is_not_appended(node: Node) -> None:
    """It is told soon, but not within the call: whoever appends is in the middle of a step."""
    log, results = state_log(node), Results()
    append(log, results, "a", (b"k", b"v"))
    closing = asyncio.create_task(log.close())
    await asyncio.sleep(0)
    append(log, results, "b", (b"k", b"v"))
    log.append_marker(WRITER, EndMarker(True, 0), lambda *_: None)
    assert results == []
    await closing
    assert sorted(results) == [
        ("a", ErrorCode.NONE, 0),
        ("b", ErrorCode.NOT_LEADER_OR_FOLLOWER, -1),
    ]
    assert batches(node) == [(0, 1)]


async def test_batches_carry_the_epoch_of_their_log(node: Node) -> None:
    """A topic that was Kafka's goes on where its last leader stopped."""
    log_of(node).append_raw(build_batch([NewRecord(b"k", b"v", 1)], BatchSpec(leader_epoch=7)))
    log, results = state_log(node), Results()
    append(log, results, "a", (b"k", b"v"))
    append(log, results, "b", (b"k", b"v"), writer=WRITER)
    log.append_marker(WRITER, EndMarker(True, 0), lambda *_: None)
    await log.close()
    rows = scan_batches(log_of(node).read(0, 1 << 20).read(), "t")
    assert rows["leader_epoch"].tolist() == [7] * 4


async def test_readers_that_wait_are_woken(node: Node) -> None:
    log = state_log(node)
    with node.services.purgatory.watch([HERE]) as watch:
        waiting = asyncio.create_task(watch.wait(1 << 20, 3600))
        await asyncio.sleep(0)
        append(log, [], "a", (b"k", b"v"))
        await asyncio.wait_for(waiting, 10)


async def test_what_is_too_large_fails_alone(node: Node) -> None:
    log, results = state_log(node), Results()
    append(log, results, "a", (b"k", b"v"))
    append(log, results, "b", (b"k", b"v" * (2 << 20)))
    append(log, results, "c", (b"k", b"v"))
    await log.close()
    assert results == [
        ("a", ErrorCode.NONE, 0),
        ("b", ErrorCode.MESSAGE_TOO_LARGE, -1),
        ("c", ErrorCode.NONE, 1),
    ]


async def test_a_failing_disk_is_told_and_what_is_behind_is_tried(
    node: Node, fs: FailingFs
) -> None:
    log, results = state_log(node), Results()
    fs.broken = log_of(node).dir
    append(log, results, "a", (b"k", b"v"))
    await until(lambda: results)
    append(log, results, "b", (b"k", b"v"))
    await log.close()
    assert [(error, offset) for _, error, offset in results] == [
        (ErrorCode.KAFKA_STORAGE_ERROR, -1)
    ] * 2
    assert not node.services.partitions.is_online(HERE)
    fs.broken = None


async def test_a_producer_that_was_fenced_appends_nothing(node: Node) -> None:
    log, results = state_log(node), Results()
    append(log, results, "new", (b"k", b"v"), writer=Writer(7, 3))
    append(log, results, "old", (b"k", b"v"), writer=Writer(7, 2))
    await log.close()
    assert results[1] == ("old", ErrorCode.INVALID_PRODUCER_EPOCH, -1)
    assert batches(node) == [(0, 1)]


# --- loading --------------------------------------------------------------------------------------


def commit(group: str, offset: int) -> KeyValue:
    key = OffsetCommitKey(group=group, topic="t", partition=0)
    value = OffsetCommitValue(offset=offset, metadata="", commit_timestamp=1)
    return encode_entry(OFFSET_COMMIT, key, value)


def put(node: Node, *records: KeyValue, spec: BatchSpec | None = None) -> int:
    """Append as the log's earlier writer; returns the first offset."""
    new = [NewRecord(key, value, 1) for key, value in records]
    return log_of(node).append_own(new, spec or BatchSpec(), now_ms=1).base_offset


def said(events: list[Write | Marker]) -> list[tuple[int, str, int, int]]:
    """Offset, group, committed offset and producer of commits."""
    return [
        (e.offset, e.entry.key.group, e.entry.value.offset, e.producer_id)
        for e in events
        if isinstance(e, Write)
    ]


async def test_an_empty_log_says_nothing(node: Node) -> None:
    assert await state_log(node).load(TYPES, list) == []


async def test_everything_is_read_in_order(node: Node) -> None:
    put(node, commit("a", 1), commit("b", 2))
    put(node, commit("c", 3), spec=WRITER.spec)
    log_of(node).append_marker(7, 0, commit=True, coordinator_epoch=0, leader_epoch=0, now_ms=1)
    put(node, commit("a", 4))
    events = await state_log(node).load(TYPES, list)
    assert events[3] == Marker(7, commit=True)
    assert said(events) == [(0, "a", 1, -1), (1, "b", 2, -1), (2, "c", 3, 7), (4, "a", 4, -1)]


async def test_a_log_of_many_reads_is_read_to_its_end(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lapse.broker.coordinators.coordinator_log.READ_BYTES", 200)
    for n in range(20):
        put(node, commit("a", n))
    assert [offset for offset, *_ in said(await state_log(node).load(TYPES, list))] == list(
        range(20)
    )


async def test_what_does_not_parse_is_left_out_and_said(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    key, value = commit("b", 2)
    assert value is not None
    put(node, commit("a", 1), (key[:-1], value), (key, b"\0\x09" + value[2:]), (key, value[:-1]))
    put(node, (b"\x7f\x7fsomething", b"v"), (None, b"v"), commit("b", 3))  # type: ignore[arg-type]
    events = await state_log(node).load(TYPES, list)
    known = [e for e in events if isinstance(e, Write) and e.entry.type is not UNKNOWN]
    assert said(list(known)) == [(0, "a", 1, -1), (6, "b", 3, -1)]
    assert len(events) == 3  # an unknown record type is no error
    left_out = [r.getMessage() for r in caplog.records if "is left out" in r.getMessage()]
    assert [f"offset {n}" in text for n, text in zip((1, 2, 3, 5), left_out, strict=True)] == [
        True
    ] * 4


async def test_a_corrupt_batch_is_no_end(node: Node) -> None:
    """What follows it would be missed in silence."""
    for n in range(3):
        put(node, commit("a", n))
    path = log_of(node).dir / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(CorruptData, match="t-0"):
        await state_log(node).load(TYPES, list)


async def test_a_disk_that_fails_is_told_as_such(node: Node) -> None:
    put(node, commit("a", 1))
    with unreadable(log_of(node)), pytest.raises(StorageError, match="reading t-0: Is a directory"):
        await state_log(node).load(TYPES, list)
    assert said(await state_log(node).load(TYPES, list)) == [(0, "a", 1, -1)]
