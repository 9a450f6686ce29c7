"""What came of one partition: which batches count, both times, and the flag."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from lapse.base.errors import CorruptData
from lapse.base.ids import TopicPartition
from lapse.client.fetched import Fetched, fetched
from lapse.log.markers import EndMarker, build_marker
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.layout import Codec, TimestampType
from lapse.records.legacy import Message, MessageSpec, build_messages
from lapse.wire.schema.fetch import AppendedFrom, PartitionData

T0 = TopicPartition("t", 0)


def batch(base_offset: int, *values: bytes | None, **spec: object) -> bytes:
    records = [NewRecord(b"k", value, 100 + n) for n, value in enumerate(values)]
    return build_batch(records, BatchSpec(base_offset=base_offset, **spec))  # type: ignore[arg-type]


def transactional(base_offset: int, producer_id: int, *values: bytes) -> bytes:
    return batch(
        base_offset, *values, producer_id=producer_id, producer_epoch=0, base_sequence=0,
        transactional=True,
    )  # fmt: skip


def values(found: Fetched) -> list[bytes | None]:
    by_hand = [record.value for record in found.records()]
    by_kernel = [value for b in found.arrow(["value"]) for value in b["value"].to_pylist()]
    assert by_hand == by_kernel
    return by_hand


def test_a_batch_that_begins_below_the_offset_and_one_that_is_cut() -> None:
    data = batch(0, b"0", b"1", b"2") + batch(3, b"3") + batch(4, b"4")
    found = fetched(T0, 2, data[:-5])
    assert values(found) == [b"2", b"3"]
    assert found.next_offset == 4
    assert [r.offset for r in found.records()] == [2, 3]


def test_offsets_that_a_cleaner_left_out_are_passed_over() -> None:
    """Y-4."""
    data = batch(0, b"0", last_offset_delta=9)
    found = fetched(T0, 5, data)
    assert (values(found), found.next_offset) == ([], 10)


@pytest.mark.parametrize("cut", [5, 30, 70])
def test_nothing_whole(cut: int) -> None:
    with pytest.raises(CorruptData, match="t-0"):
        fetched(T0, 0, batch(0, b"v" * 50)[:cut])


def test_damage_is_told_with_its_place() -> None:
    data = bytearray(batch(0, b"0") + batch(1, b"1"))
    data[-1] ^= 1
    with pytest.raises(CorruptData, match=r"t-0: .*checksum") as damaged:
        fetched(T0, 0, bytes(data))
    assert damaged.value.position == len(batch(0, b"0"))


def test_aborted_transactions_end_at_their_producers_marker() -> None:
    def end(offset: int, producer_id: int, *, commit: bool) -> bytes:
        spec = BatchSpec(
            base_offset=offset, producer_id=producer_id, producer_epoch=0, transactional=True,
            control=True,
        )  # fmt: skip
        return build_marker(EndMarker(commit, 0), 0, spec)

    data = (
        transactional(0, 7, b"aborted") + transactional(1, 8, b"committed") + batch(2, b"plain")
        + end(3, 7, commit=False) + transactional(4, 7, b"committed later")
        + end(5, 8, commit=True) + transactional(6, 8, b"aborted later")
        + end(7, 7, commit=True) + end(8, 8, commit=False)
    )  # fmt: skip
    committed = fetched(T0, 0, data, [(8, 6), (7, 0)])
    assert values(committed) == [b"committed", b"plain", b"committed later"]
    assert len(values(fetched(T0, 0, data))) == 5
    assert committed.next_offset == 9
    # An answer that begins in the middle of one.
    assert values(fetched(T0, 0, data[: len(transactional(0, 7, b"aborted"))], [(7, 0)])) == []


@pytest.mark.parametrize("codec", Codec)
def test_both_times(codec: Codec) -> None:
    append_timed = {"timestamp_type": TimestampType.LOG_APPEND_TIME, "codec": codec}
    for spec, expected in (
        ({"codec": codec}, [(100, None, 100), (101, None, 101)]),
        ({**append_timed, "append_time": 500}, [(100, 500, 500), (101, 500, 500)]),
    ):
        got = [
            (r.create_time, r.append_time, r.timestamp)
            for r in fetched(T0, 0, batch(0, b"a", b"b", **spec)).records()
        ]
        assert got == expected
    flat = build_batch(
        [NewRecord(b"k", b"v", 500)] * 2,
        BatchSpec(timestamp_type=TimestampType.LOG_APPEND_TIME, append_time=500),
    )
    assert [(r.create_time, r.append_time) for r in fetched(T0, 0, flat).records()] == [
        (None, 500), (None, 500),
    ]  # fmt: skip
    told = PartitionData(
        partition_index=0, error_code=0, high_watermark=2, records=None, create_times_kept=True
    )
    kept = fetched(T0, 0, flat, None, told)
    assert [(r.create_time, r.append_time) for r in kept.records()] == [(500, 500), (500, 500)]
    (table,) = kept.arrow(["create_time"])
    assert table["create_time"].null_count == 0
    untimed = build_batch([NewRecord(b"k", b"v", -1)])
    (record,) = fetched(T0, 0, untimed).records()
    assert (record.create_time, record.append_time, record.timestamp) == (None, None, -1)


def test_tombstones_by_null_and_by_flag() -> None:
    records = [
        NewRecord(b"a", b"v"),
        NewRecord(b"b", None),
        NewRecord(b"c", b"why", tombstone=True),
    ]
    found = fetched(T0, 0, build_batch(records))
    assert [r.is_tombstone for r in found.records()] == [False, True, True]
    (columns,) = found.arrow()
    assert columns["is_tombstone"].to_pylist() == [False, True, True]


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_old_formats(magic: int, codec: Codec) -> None:
    messages = [Message(n, 100 + n, b"k", b"%d" % n) for n in range(5)]
    data = build_messages(messages, MessageSpec(magic, codec))
    found = fetched(T0, 2, data, [])
    assert values(found) == [b"2", b"3", b"4"]
    assert found.next_offset == 5
    times = [r.create_time for r in found.records()]
    assert times == ([None] * 3 if magic == 0 else [102, 103, 104])


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_append_times_that_the_broker_tells_beside(codec: Codec) -> None:
    """On CreateTime topics; what readers of Kafka's are shown stays the create time."""
    data = b"".join(batch(2 * n, b"a", b"b", codec=codec) for n in range(4))
    told = [(2, 7000), (4, -9000), (6, 12_000)]

    def beside(entries: Sequence[tuple[int, int]]) -> PartitionData:
        return PartitionData(
            partition_index=0, error_code=0, high_watermark=8, records=None,
            append_times=tuple(AppendedFrom(offset=o, append_ms=ms) for o, ms in entries),
        )  # fmt: skip

    found = fetched(T0, 1, data, None, beside(told))
    times = [(r.append_time, r.timestamp) for r in found.records()]
    expected = [None, 7000, 7000, None, None, 12_000, 12_000]
    assert times == list(zip(expected, [101, *[100, 101] * 3], strict=True))
    (table,) = found.arrow(["append_time"])
    micros = table["append_time"].cast("int64").to_pylist()
    assert micros == [None if ms is None else 1000 * ms for ms in expected]
    disordered = fetched(T0, 1, data, None, beside(told[::-1]))
    assert {r.append_time for r in disordered.records()} == {None}
