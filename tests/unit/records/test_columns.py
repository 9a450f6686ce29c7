"""Batches to Arrow, beside `records_of`; the property tests have a twin for everything in v2."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pytest

from lapse.base.errors import ConfigError, CorruptData
from lapse.base.ids import TopicPartition
from lapse.kernels.layout import VALUED_TOMBSTONES
from lapse.records.batch import records_of, scan_batches
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.column_spec import TIME_MS_MAX
from lapse.records.columns import TYPES, ArrowColumns, ColumnSpec, record_batches
from lapse.records.layout import Codec, TimestampType, horizon_of, timestamp_type_of
from lapse.records.legacy import Message, MessageSpec, build_messages

NOW = 1_700_000_000_000
ORDERS = TopicPartition("orders", 3)
ALL = tuple(TYPES)
TIMES = {"timestamp", "create_time", "append_time", "horizon"}

RECORDS = [
    NewRecord(b"k1", b"on", NOW),
    NewRecord(b"", b"", NOW + 5, (("h", b"1"), ("", None), ("h", b""))),
    NewRecord(b"k2", None, NOW - 70),
    NewRecord(None, b"v" * 200, -1, (("größe", b"x"),)),
]


def table(data: bytes, spec: ColumnSpec | None = None) -> list[dict[str, object]]:
    """Rows as Python values, times in milliseconds."""
    found = record_batches(data, scan_batches(data, "t"), ORDERS, "t", spec or ColumnSpec(ALL))
    rows: list[dict[str, object]] = []
    for batch in found:
        batch.validate(full=True)
        columns = [
            [t if t is None else t // 1000 for t in column.cast(pa.int64()).to_pylist()]
            if name in TIMES
            else column.to_pylist()
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
        ]
        rows += [
            dict(zip(batch.schema.names, row, strict=True)) for row in zip(*columns, strict=True)
        ]
    return rows


def column(data: bytes, name: str, **spec: object) -> list[object]:
    asked = ColumnSpec((name,), **spec)  # type: ignore[arg-type]
    return [row[name] for row in table(data, asked)]


def as_read(data: bytes) -> Iterator[dict[str, object]]:
    """What `records_of` says, but for the two times."""
    for row in scan_batches(data, "t"):
        for r in records_of(data, row, "t"):
            producer_id = int(row["producer_id"])
            yield {
                "key": r.key,
                "value": r.value,
                "topic": "orders",
                "partition": 3,
                "offset": r.offset,
                "timestamp": r.timestamp,
                "timestampType": int(timestamp_type_of(row)),
                "headers": [{"key": k, "value": v} for k, v in r.headers] or None,
                "is_tombstone": r.is_tombstone,
                "horizon": horizon_of(row),
                "producer_id": None if producer_id == -1 else producer_id,
                "control": bool(row["magic"] == 2 and row["attributes"] & 0x20),
            }


def without_times(rows: Sequence[dict[str, object]]) -> list[dict[str, object]]:
    return [
        {k: v for k, v in row.items() if k not in {"create_time", "create_time_ms", "append_time"}}
        for row in rows
    ]


# --- every format ---------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("kind", [TimestampType.CREATE_TIME, TimestampType.LOG_APPEND_TIME])
def test_v2_reads_as_records_of(codec: Codec, kind: TimestampType) -> None:
    common = {"codec": codec, "timestamp_type": kind, "append_time": NOW + 99}
    data = b"".join(
        build_batch(RECORDS, BatchSpec(base_offset=at, **common, **more))  # type: ignore[arg-type]
        for at, more in (
            (0, {}),
            (50, {"producer_id": 7, "producer_epoch": 0, "base_sequence": 3}),
            (60, {"horizon_ms": NOW + 1000}),
            (70, {"transactional": True, "control": True}),
        )
    )
    found = table(data, ColumnSpec(ALL, control=True))
    assert without_times(found) == list(as_read(data))
    assert len(found) == 16
    for row, record in zip(found, RECORDS * 4, strict=True):
        timed = kind is TimestampType.LOG_APPEND_TIME
        assert row["append_time"] == (NOW + 99 if timed else None)
        assert row["create_time"] == (None if record.timestamp == -1 else record.timestamp)
        assert row["create_time_ms"] == row["create_time"]


MESSAGES = [
    Message(10, NOW, b"a", b"1"),
    Message(11, NOW + 3, b"b", None),
    Message(14, NOW + 1, None, b""),
]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
@pytest.mark.parametrize(
    ("magic", "kind"),
    [
        (0, TimestampType.CREATE_TIME),
        (1, TimestampType.CREATE_TIME),
        (1, TimestampType.LOG_APPEND_TIME),
    ],
)
def test_old_formats_read_as_records_of(codec: Codec, magic: int, kind: TimestampType) -> None:
    """T-10 to T-12: wrappers and plain messages, in front of and behind v2."""
    spec = MessageSpec(magic, codec, kind, NOW + 99)
    later = [Message(m.offset + 10, m.timestamp, m.key, m.value) for m in MESSAGES]
    old = build_messages(MESSAGES, spec) + build_messages(later, spec)
    new = build_batch(RECORDS, BatchSpec(base_offset=30))
    found = table(old + new)
    assert without_times(found) == list(as_read(old + new))
    assert [row["offset"] for row in found[:6]] == [10, 11, 14, 20, 21, 24]
    timed = kind is TimestampType.LOG_APPEND_TIME
    for row, message in zip(found, MESSAGES + later, strict=False):
        assert row["append_time"] == (NOW + 99 if timed else None)
        # A plain v1 message has one time; inside a wrapper the producer's own is still there.
        known = magic == 1 and not (timed and codec is Codec.NONE)
        assert row["create_time"] == (message.timestamp if known else None)
        assert row["create_time_ms"] == row["create_time"]


def test_old_formats_in_parts() -> None:
    """By offset, from within a wrapper, and in record batches of two."""
    for codec in (Codec.NONE, Codec.GZIP):
        data = build_messages(MESSAGES, MessageSpec(1, codec)) + build_messages(
            [Message(20, NOW, b"c", b"2"), Message(21, NOW, b"d", b"2")], MessageSpec(1, codec)
        )
        spec = {"offset_from": 11, "offset_until": 21}
        assert column(data, "offset", **spec) == [11, 14, 20]
        rows = scan_batches(data, "t")
        parts = list(record_batches(data, rows, ORDERS, "t", ColumnSpec(records_max=2)))
        assert max(part.num_rows for part in parts) == 2
        assert sum(part.num_rows for part in parts) == 5


def test_a_broken_old_message_is_refused_at_its_place() -> None:
    data = bytearray(build_messages(MESSAGES, MessageSpec(1)))
    second = int(scan_batches(bytes(data), "t")["position"][1])
    data[second + 26 + 3] = 99  # its key's length
    rows = scan_batches(bytes(data), "t", check_crc=False)
    with pytest.raises(CorruptData, match="t: ") as e:
        list(record_batches(bytes(data), rows, ORDERS, "t", None))
    assert e.value.position == second


@pytest.mark.parametrize(("count", "record"), [(1, 1), (3, 2), (0x7FFFFFFF, 2)])
def test_a_count_that_lies_is_refused(count: int, record: int) -> None:
    """Bytes left over, or too few; and no room is made for records that are not there."""
    good = build_batch([NewRecord(b"k", b"v")])
    data = bytearray(build_batch([NewRecord(b"k", b"v")] * 2, BatchSpec(base_offset=1)))
    data[57:61] = count.to_bytes(4, "big")
    data = good + data
    rows = scan_batches(data, "t", check_crc=False)
    with pytest.raises(CorruptData, match=f"record {record} does not parse") as e:
        list(record_batches(data, rows, ORDERS, "t", None))
    assert e.value.position == len(good)


# --- times ----------------------------------------------------------------------------------------


def test_a_flattened_create_time_is_null() -> None:
    """ADR-5: Kafka's cleaner makes all create times of a batch its append time (L15)."""
    append_time = {"timestamp_type": TimestampType.LOG_APPEND_TIME, "append_time": NOW}
    same = [NewRecord(b"a", b"1", NOW), NewRecord(b"b", b"2", NOW)]
    almost = [NewRecord(b"a", b"1", NOW), NewRecord(b"b", b"2", NOW - 1)]
    for more in ({}, {"codec": Codec.GZIP}, {"horizon_ms": NOW + 7}):
        lost, kept = (build_batch(r, BatchSpec(**append_time, **more)) for r in (same, almost))  # type: ignore[arg-type]
        assert column(lost + kept, "create_time") == [None, None, NOW, NOW - 1]
        assert column(lost + kept, "append_time") == [NOW] * 4
        assert column(lost + kept, "timestamp") == [NOW] * 4
    assert column(build_batch(same), "create_time") == [NOW, NOW]  # CreateTime is not flattened


@pytest.mark.parametrize("time_ms", [1_700_000_000_000_000_000, 1 << 62, -(1 << 62), -2])
def test_a_time_that_microseconds_do_not_hold_is_exact_in_milliseconds(time_ms: int) -> None:
    """A producer may say nanoseconds, and a broker takes them."""
    data = build_batch([NewRecord(b"k", b"v", time_ms), NewRecord(b"k", b"v", -1)])
    assert column(data, "create_time_ms") == [time_ms, None]
    [near, _] = column(data, "create_time")
    assert near == min(max(time_ms, -TIME_MS_MAX), TIME_MS_MAX)


def test_flattened_is_asked_of_the_whole_batch() -> None:
    """Also where only some of its records are wanted, or come in this record batch."""
    spec = BatchSpec(timestamp_type=TimestampType.LOG_APPEND_TIME, append_time=NOW)
    records = [NewRecord(b"a", b"1", NOW), NewRecord(b"b", b"2", NOW), NewRecord(b"c", b"3", 5)]
    data = build_batch(records, spec)
    assert column(data, "create_time", records_max=1) == [NOW, NOW, 5]
    assert column(data, "create_time", offset_until=2) == [NOW, NOW]


def test_a_time_beyond_microseconds_is_the_nearest() -> None:
    data = build_batch([NewRecord(b"k", b"v", 1 << 62)])
    [batch] = record_batches(data, scan_batches(data, "t"), ORDERS, "t", None)
    assert batch["timestamp"].cast(pa.int64()).to_pylist() == [((1 << 63) - 1) // 1000 * 1000]


# --- what is asked for ----------------------------------------------------------------------------


def test_only_the_columns_asked_for_in_the_order_asked() -> None:
    data = build_batch(RECORDS)
    spec = ColumnSpec(("offset", "value"))
    [batch] = record_batches(data, scan_batches(data, "t"), ORDERS, "t", spec)
    assert batch.schema.names == ["offset", "value"]


def test_broken_headers_matter_only_to_who_asks_for_them() -> None:
    data = bytearray(build_batch([NewRecord(b"k", b"v", 0, (("h", b"x"),))]))
    data[-1 - 2] = 0x7F  # the name's length is one varint before "h"
    data[-4] = 0x7F
    rows = scan_batches(bytes(data), "t", check_crc=False)
    assert column_of_rows(bytes(data), rows, "key") == [b"k"]
    with pytest.raises(CorruptData, match="record headers do not parse at byte 0"):
        column_of_rows(bytes(data), rows, "headers")


def column_of_rows(data: bytes, rows: np.ndarray, name: str) -> list[object]:
    found = record_batches(data, rows, ORDERS, "t", ColumnSpec((name,)))
    return [value for batch in found for value in batch[name].to_pylist()]


def test_an_unknown_column_is_named_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="no column 'keys': there are key, value, topic"):
        ArrowColumns(ORDERS, ColumnSpec(("key", "keys")))


def test_valued_tombstones_count_unless_told_otherwise() -> None:
    """ADR-4: the record's bit and the batch's."""
    records = [NewRecord(b"k", b"why it went", tombstone=True), NewRecord(b"k", b"v")]
    data = build_batch(records)
    assert int(scan_batches(data, "t")["attributes"][0]) & VALUED_TOMBSTONES
    assert column(data, "is_tombstone") == [True, False]
    assert column(data, "is_tombstone", valued_tombstones=False) == [False, False]


def test_control_records_only_on_request() -> None:
    marker = build_batch([NewRecord(b"\0\0\0\1", b"\0" * 6)], BatchSpec(control=True))
    data = marker + build_batch([NewRecord(b"k", b"v")], BatchSpec(base_offset=1))
    assert column(data, "offset") == [1]
    assert column(data, "control", control=True) == [True, False]


# --- sizes ----------------------------------------------------------------------------------------


def test_views_point_into_the_buffer() -> None:
    """Zero copies: a value of an uncompressed batch lies where it lay."""
    value = b"a value longer than what a view holds in itself"
    data = build_batch([NewRecord(b"k", value), NewRecord(b"k", None), NewRecord(b"k", b"")])
    spec = ColumnSpec(("key", "value"), views=True)
    [batch] = record_batches(data, scan_batches(data, "t"), ORDERS, "t", spec)
    batch.validate(full=True)
    assert batch.schema.types == [pa.binary_view(), pa.binary_view()]
    assert batch["value"].to_pylist() == [value, None, b""]
    inside = batch["value"].buffers()[-1]
    assert inside.address == np.frombuffer(data, np.uint8).ctypes.data


def test_a_large_batch_comes_in_parts() -> None:
    """Neither a batch of many records nor one of large values makes a large record batch."""
    many = build_batch([NewRecord(b"%d" % n, b"v" * 50) for n in range(1000)])
    spec = ColumnSpec(("key", "offset"), records_max=300)
    parts = list(record_batches(many, scan_batches(many, "t"), ORDERS, "t", spec))
    assert [part.num_rows for part in parts] == [300, 300, 300, 100]
    assert [o for part in parts for o in part["offset"].to_pylist()] == list(range(1000))
    large = build_batch([NewRecord(None, b"v" * size) for size in (900, 200, 100, 5000, 1)])
    spec = ColumnSpec(("value",), bytes_max=1000)
    parts = list(record_batches(large, scan_batches(large, "t"), ORDERS, "t", spec))
    assert [[len(v) for v in part["value"].to_pylist()] for part in parts] == [
        [900], [200, 100], [5000], [1],
    ]  # fmt: skip


def test_record_batches_outlive_the_next_ones() -> None:
    """Decoding reuses its rows; nothing handed out may lie in them."""
    data = b"".join(
        build_batch(RECORDS, BatchSpec(base_offset=at, codec=codec))
        for at, codec in ((0, Codec.NONE), (10, Codec.LZ4), (20, Codec.NONE))
    )
    columns = ArrowColumns(ORDERS, ColumnSpec(ALL, records_max=3))
    rows = scan_batches(data, "t")
    first = list(columns.convert(data, rows, "t"))
    before = [batch.to_pylist() for batch in first]
    other = build_batch(RECORDS[::-1]) * 9
    assert len(list(columns.convert(other, scan_batches(other, "t"), "t"))) == 12
    assert [batch.to_pylist() for batch in first] == before


def test_nothing_from_nothing() -> None:
    assert table(b"") == []
    assert table(build_batch([])) == []


def test_a_broker_imports_no_arrow() -> None:
    """A broker's memory is counted; only client and spark may import this module."""
    code = "import sys, lapse.broker.node, lapse.cli.main; sys.exit('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
