"""What isolation level 1 sees: Fetch and ListOffsets up to the last stable offset (KIP-98)."""

from __future__ import annotations

import asyncio

import pytest

from lapse.base.errors import ErrorCode
from lapse.base.ids import TopicPartition
from lapse.broker.logs import fetch_records
from lapse.broker.logs.fetch_records import Client, Fetched, ReadRange
from lapse.broker.node import Node
from lapse.client.connection import BrokerConnection
from lapse.log.partition_log import PartitionLog
from lapse.log.txn_index import AbortedTxn, committed
from lapse.records.batch import records_of, scan_prefix
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.validate import check_produced
from lapse.wire.schema.fetch import FetchResponse, PartitionData
from lapse.wire.schema.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tests.support.broker.fetching import offsets, until_waiting
from tests.support.broker.running import batch_of, connect, create, fetch, fetch_request, produce

T0 = TopicPartition("t", 0)
COMMITTED = {"isolation_level": 1}
LONG_MS = 60_000


class Coordinator:
    """Transactions in one partition, as a transaction coordinator and its producers write them."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._sequences: dict[int, int] = {}

    @property
    def log(self) -> PartitionLog:
        return self._node.services.partitions.get(T0)

    def send(self, producer_id: int, *values: bytes, timestamp: int = 0) -> None:
        """A batch of a transaction, which begins with it if none is open."""
        sequence = self._sequences.get(producer_id, 0)
        self._sequences[producer_id] = sequence + len(values)
        spec = BatchSpec(
            producer_id=producer_id, producer_epoch=0, base_sequence=sequence, transactional=True
        )
        batch = build_batch([NewRecord(b"k", value, timestamp) for value in values], spec)
        checked = check_produced(batch, self.log.config, 0, "t-0")
        self.log.append(checked, leader_epoch=0, now_ms=0)
        self._appended(checked.header.size)

    def end(self, producer_id: int, *, commit: bool) -> None:
        before = self.log.size_bytes
        self.log.append_marker(producer_id, 0, commit, 0, leader_epoch=0, now_ms=0)
        self._appended(self.log.size_bytes - before)

    def _appended(self, size: int) -> None:
        """As for every append: whoever waits is told."""
        self._node.services.purgatory.appended(T0, size)


@pytest.fixture
async def transactions(node: Node) -> Coordinator:
    await create(node, "t")
    return Coordinator(node)


def values(got: PartitionData) -> list[bytes | None]:
    """What a client hands out of an answer with isolation level 1 (Y-3)."""
    data = bytes(got.records or b"")
    rows, _, _ = scan_prefix(data)
    assert got.aborted_transactions is not None
    # Until its next marker every record of that producer is dropped.
    aborted = []
    for txn in got.aborted_transactions:
        marker = _marker_after(rows, txn.producer_id, txn.first_offset)
        aborted.append(AbortedTxn(txn.producer_id, txn.first_offset, marker, 0))
    shown = committed(rows, aborted)
    return [r.value for row in rows[shown] for r in records_of(data, row, "answer")]


def _marker_after(rows, producer_id: int, first: int) -> int:  # type: ignore[no-untyped-def]
    own = rows[(rows["producer_id"] == producer_id) & (rows["attributes"] & 0x20 != 0)]
    later = own["base_offset"][own["base_offset"] >= first]
    return int(later[0]) if len(later) else 1 << 60


@pytest.mark.parametrize("version", range(4, 13))
async def test_bound_and_aborted(
    transactions: Coordinator, connection: BrokerConnection, version: int
) -> None:
    """Y-2, Y-3."""
    transactions.send(1, b"gone", b"gone")  # 0, 1
    await produce(connection, "t", (0, batch_of(b"plain")))  # 2
    transactions.send(2, b"kept")  # 3
    transactions.end(1, commit=False)  # 4
    transactions.end(2, commit=True)  # 5
    transactions.send(1, b"open")  # 6
    await produce(connection, "t", (0, batch_of(b"behind it")))  # 7
    request = fetch_request("t", (0, 0), **COMMITTED)
    answer = await connection.request(request, FetchResponse, version=version)
    (got,) = answer.responses[0].partitions
    assert (got.error_code, got.high_watermark, got.last_stable_offset) == (0, 8, 6)
    assert offsets(got.records) == [0, 2, 3, 4, 5]
    aborted = got.aborted_transactions or ()
    assert [(t.producer_id, t.first_offset) for t in aborted] == [(1, 0)]
    assert values(got) == [b"plain", b"kept"]
    (all_of_it,) = await fetch(connection, "t", (0, 0))
    assert offsets(all_of_it.records) == [0, 2, 3, 4, 5, 6, 7]
    assert (all_of_it.last_stable_offset, all_of_it.aborted_transactions) == (6, None)


async def test_between_the_stable_offset_and_the_end_there_is_nothing(
    transactions: Coordinator, connection: BrokerConnection
) -> None:
    """Y-2."""
    transactions.send(1, b"open", b"open")
    for offset in (0, 1, 2):
        (got,) = await fetch(connection, "t", (0, offset), **COMMITTED)
        assert (got.error_code, got.records, got.aborted_transactions) == (0, b"", ())
    (beyond,) = await fetch(connection, "t", (0, 3), **COMMITTED)
    assert beyond.error_code == 1


async def test_only_what_reaches_into_the_answer_is_named(
    transactions: Coordinator, connection: BrokerConnection
) -> None:
    """Up to an index entry past its end, not all of the log."""
    total = 60
    for n in range(total):
        transactions.send(n, b"x" * 1000)
        transactions.end(n, commit=n % 2 == 1)
    (whole,) = await fetch(connection, "t", (0, 0), **COMMITTED)
    assert len(whole.aborted_transactions or ()) == total / 2
    assert len(values(whole)) == total / 2
    offset, seen, named = 0, [], 0
    while offset < 2 * total:
        (got,) = await fetch(connection, "t", (0, offset), partition_max_bytes=3000, **COMMITTED)
        seen += values(got)
        named = max(named, len(got.aborted_transactions or ()))
        rows, _, _ = scan_prefix(got.records or b"")  # the last batch may be cut
        offset = int(rows["last_offset"][-1]) + 1
    assert len(seen) == total / 2
    assert named <= 8
    transactions.log.roll(0)
    (sealed,) = await fetch(connection, "t", (0, 2 * total - 2), **COMMITTED)
    assert values(sealed) == [b"x" * 1000]


async def test_a_marker_ends_the_wait(
    node: Node, transactions: Coordinator, connection: BrokerConnection
) -> None:
    """Its own bytes are few; what it lets be seen is what was waited for."""
    transactions.send(1, b"x" * 5000)
    async with await connect(node) as other:
        waiting = asyncio.create_task(
            fetch(connection, "t", (0, 0), max_wait_ms=LONG_MS, min_bytes=4000, **COMMITTED)
        )
        await until_waiting(node)
        await produce(other, "t", (0, batch_of(b"y" * 5000)))  # behind the open transaction
        transactions.send(1, b"z")
        assert node.services.purgatory.waiting == 1
        transactions.end(1, commit=True)
        (got,) = await waiting
    assert values(got) == [b"x" * 5000, b"y" * 5000, b"z"]


async def test_without_transactions_min_bytes_counts(
    node: Node, transactions: Coordinator, connection: BrokerConnection
) -> None:
    size = len(batch_of(b"a"))
    async with await connect(node) as other:
        waiting = asyncio.create_task(
            fetch(connection, "t", (0, 0), max_wait_ms=LONG_MS, min_bytes=2 * size, **COMMITTED)
        )
        await until_waiting(node)
        await produce(other, "t", (0, batch_of(b"a")))
        assert node.services.purgatory.waiting == 1
        await produce(other, "t", (0, batch_of(b"b")))
        (got,) = await waiting
    assert values(got) == [b"a", b"b"]
    assert transactions.log.last_stable_offset == 2


@pytest.mark.parametrize(
    ("timestamp", "uncommitted", "stable"),
    [(-1, 2, 1), (-2, 0, 0), (-3, 1, -1), (50, 0, 0), (150, 1, -1)],
)
async def test_list_offsets(
    transactions: Coordinator,
    connection: BrokerConnection,
    timestamp: int,
    uncommitted: int,
    stable: int,
) -> None:
    """T-17: an answer at or beyond what may be seen is none."""
    await produce(connection, "t", (0, build_batch([NewRecord(b"k", b"v", timestamp=100)])))
    transactions.send(1, b"open", timestamp=200)
    for level, offset in ((0, uncommitted), (1, stable)):
        asked = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=level,
            topics=(ListOffsetsTopic(name="t", partitions=(asked,)),),
        )
        answer = await connection.request(request, ListOffsetsResponse)
        assert answer.topics[0].partitions[0].offset == offset


async def test_aborted_data_is_named_though_its_segment_goes_meanwhile(
    node: Node, connection: BrokerConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at the records and that at what was aborted: DeleteRecords, or retention."""
    await create(node, "t")
    transactions = Coordinator(node)
    transactions.send(1, b"aborted")  # 0
    transactions.end(1, commit=False)  # 1
    transactions.send(2, b"committed")  # 2
    transactions.end(2, commit=True)  # 3
    log = transactions.log
    log.roll(0)
    transactions.send(3, b"later")  # 4
    transactions.end(3, commit=True)  # 5
    real = fetch_records.records_for

    def then_deleted(log: PartitionLog, client: Client, wanted: ReadRange) -> Fetched:
        found = real(log, client, wanted)
        log.delete_records(4)
        return found

    monkeypatch.setattr(fetch_records, "records_for", then_deleted)
    (got,) = await fetch(connection, "t", (0, 0), **COMMITTED)
    assert got.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert not got.records
