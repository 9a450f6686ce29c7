"""Rows to batches: where they go, what they keep, and what is refused before any is written."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import pytest

from lapse.base.errors import ConfigError
from lapse.base.ids import TopicPartition
from lapse.client.partitioner import partition_of
from lapse.records.batch import Record, records_of, scan_batches
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.column_spec import TIME_MS_MAX
from lapse.records.columns import TYPES, ColumnSpec, record_batches
from lapse.records.from_arrow import WriteSpec, encode_batches, warm_up
from lapse.records.layout import Codec, TimestampType

NOW = 1_700_000_000_000
SPEC = WriteSpec({"a": 4, "b": 1}, NOW, tombstone_values=frozenset("b"))
ONE = WriteSpec({"a": 1}, NOW, topic="a", tombstone_values=frozenset("a"))


def rows(**columns: Any) -> pa.Table:
    return pa.table(columns)


def written(
    table: pa.Table | pa.RecordBatch, spec: WriteSpec
) -> dict[TopicPartition, list[Record]]:
    found: dict[TopicPartition, list[Record]] = {}
    for batch in encode_batches(table, spec):
        for row in scan_batches(batch.data, "t"):
            found.setdefault(batch.partition, []).extend(records_of(batch.data, row, "t"))
    return found


@pytest.mark.parametrize("length", range(40))
def test_a_key_goes_where_kafkas_clients_put_it(length: int) -> None:
    """Every length of the hash's tail, and bytes above 127."""
    key = bytes((n * 37 + 200) & 0xFF for n in range(length))
    spec = WriteSpec({"a": 1009}, NOW, topic="a")
    [place] = written(rows(key=[key], value=[b"v"]), spec)
    assert place.partition == partition_of(key, 1009)


def test_partitions_that_are_named_and_records_that_name_nothing() -> None:
    table = rows(
        topic=["a", "b", "a", "a"],
        partition=pa.array([2, None, None, None], pa.int32()),
        key=pa.array([b"k", None, None, None]),
        value=[b"0", b"1", b"2", b"3"],
    )
    for keyless_from, place in ((0, 0), (3, 3), (6, 2)):
        spec = WriteSpec({"a": 4, "b": 1}, NOW, keyless_from=keyless_from)
        found = {str(p): [r.value for r in rs] for p, rs in written(table, spec).items()}
        alone = {"a-2": [b"0"], f"a-{place}": [b"2", b"3"]}
        assert found == ({"a-2": [b"0", b"2", b"3"]} if place == 2 else alone) | {"b-0": [b"1"]}


def test_the_topic_given_for_all_wins() -> None:
    table = rows(topic=pa.array(["b", None]), value=[b"0", b"1"])
    assert [str(p) for p in written(table, ONE)] == ["a-0"]


def test_times_are_told_or_now_in_whole_milliseconds() -> None:
    table = rows(
        value=[b"v"] * 4,
        timestamp=pa.array([5_999, 5_999, None, -1000], pa.timestamp("us", tz="UTC")),
        create_time=pa.array([None, 7_000_000, None, None], pa.timestamp("ns", tz="Europe/Zurich")),
    )
    [found] = written(table, ONE).values()
    assert [r.create_time for r in found] == [5, 7, NOW, -1]


def test_headers_come_along() -> None:
    pairs = [("a", b"1"), ("a", None), ("é", b"")]
    headers = [None, [], [{"key": k, "value": v} for k, v in pairs]]
    [found] = written(
        rows(value=[b"v"] * 3, headers=pa.array(headers, TYPES["headers"])), ONE
    ).values()
    assert [r.headers for r in found] == [(), (), tuple(pairs)]


def test_tombstones() -> None:
    table = rows(
        key=[b"1", b"2", b"3", b"4"],
        value=pa.array([b"live", b"gone, and why", None, None]),
        is_tombstone=[False, True, True, None],
    )
    [found] = written(table, ONE).values()
    assert [(r.value, r.flagged) for r in found] == [
        (b"live", False), (b"gone, and why", True), (None, True), (None, True),
    ]  # fmt: skip
    [plain] = written(rows(value=pa.array([b"live", None])), ONE).values()
    assert [r.flagged for r in plain] == [False, False]


def test_batches_end_at_the_size() -> None:
    table = rows(value=[b"v" * 100] * 10 + [b"v" * 5000] + [b"v"])
    spec = WriteSpec({"a": 1}, NOW, topic="a", batch_bytes_max=500)
    assert [b.records for b in encode_batches(table, spec)] == [3, 3, 3, 1, 1, 1]


def test_what_the_source_reads_can_be_written_on() -> None:
    """A copy of a LogAppendTime topic keeps create times (KIP-32) and valued tombstones."""
    records = [
        NewRecord(b"k", b"v", 5, (("h", None),)), NewRecord(b"k", b"why", 6, tombstone=True),
    ]  # fmt: skip
    spec = BatchSpec(timestamp_type=TimestampType.LOG_APPEND_TIME, append_time=NOW)
    data = build_batch(records, spec)
    asked = ColumnSpec(tuple(TYPES), valued_tombstones=True)
    [arrow] = record_batches(data, scan_batches(data, "t"), TopicPartition("a", 0), "t", asked)
    [batch] = encode_batches(arrow, WriteSpec({"a": 1}, NOW, tombstone_values=frozenset("a")))
    assert bytes(batch.data) == build_batch(records)


TIMES_MS = (NOW, 1_700_000_000_000_000_000, -315_619_200_000, -1, -(1 << 63), (1 << 63) - 1)


@pytest.mark.parametrize("kind", [TimestampType.CREATE_TIME, TimestampType.LOG_APPEND_TIME])
def test_a_copy_keeps_every_time_that_a_record_may_have(kind: TimestampType) -> None:
    """Nanoseconds that a producer took for milliseconds, those before 1970, and none."""
    records = [NewRecord(b"k", b"v", time_ms) for time_ms in TIMES_MS]
    data = build_batch(records, BatchSpec(timestamp_type=kind, append_time=NOW + 5))
    asked = ColumnSpec(tuple(TYPES))
    [arrow] = record_batches(data, scan_batches(data, "t"), TopicPartition("a", 0), "t", asked)
    [found] = written(arrow, ONE).values()
    none = NOW + 5 if kind is TimestampType.LOG_APPEND_TIME else -1
    assert [r.create_time for r in found] == [none if t == -1 else t for t in TIMES_MS]


def test_milliseconds_win_over_timestamps() -> None:
    far = pa.array([TIME_MS_MAX * 1000, 3_000, None], pa.timestamp("us", "UTC"))
    table = rows(value=[b"v"] * 3, create_time=far, create_time_ms=pa.array([1 << 60, None, None]))
    [found] = written(table, ONE).values()
    assert [r.create_time for r in found] == [1 << 60, 3, NOW]


def test_nothing_is_nothing() -> None:
    warm_up()
    assert not list(encode_batches(rows(value=pa.array([], pa.binary())), ONE))


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"value": [b"v"], "colour": [5]}, "no column 'colour'"),
        ({"key": [b"k"]}, "column value is missing"),
        ({"value": [b"v"]}, "column topic is missing"),
        ({"value": [b"v", b"v"], "topic": ["b", None]}, "record 1 has no topic"),
        ({"value": [b"v"], "topic": ["z"]}, "topic z is not there"),
        ({"value": [b"v"], "topic": ["b"], "partition": [1]}, "record 0 names a partition"),
        ({"value": [b"v"], "topic": ["b"], "partition": [-1]}, "record 0 names a partition"),
        ({"value": [5], "topic": ["b"]}, "column value of type int64"),
        ({"value": [b"v"], "topic": ["b"], "timestamp": [5]}, "column timestamp of type int64"),
        ({"value": [b"v"], "topic": ["b"], "headers": ["h"]}, "column headers of type string"),
        (
            {"value": [b"v"], "topic": ["b"], "headers": [[{"key": None, "value": b"v"}]]},
            "column headers: record 0 has one without a name",
        ),
        (
            {"value": [b"v"], "topic": ["b"],
             "timestamp": pa.array([-2000], pa.timestamp("us", "UTC"))},
            "record 0 has a timestamp before 1970",
        ),
        (
            {"value": [b"v", b"v"], "topic": ["b", "b"],
             "create_time": pa.array([0, TIME_MS_MAX * 1000], pa.timestamp("us", "UTC"))},
            "record 1 has a time that a timestamp does not hold; column create_time_ms has it",
        ),
        (
            {"value": [b"v", None], "topic": ["b", "b"], "is_tombstone": [True, False]},
            "record 1: is_tombstone is false and the value is null",
        ),
        (
            {"value": [b"v", b"v"], "topic": ["b", "a"], "is_tombstone": [True, True]},
            "record 1 is a tombstone with a value",
        ),
        ({"value": [b"v"], "topic": ["b"], "control": [True]}, "record 0 is a control record"),
    ],
)  # fmt: skip
def test_what_cannot_be_written(columns: dict[str, list[object]], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        next(encode_batches(pa.table(columns), SPEC))


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("timestamp", pa.array([5_000], pa.timestamp("us"))),  # Spark's TIMESTAMP_NTZ
        ("create_time", pa.array([5_000], pa.timestamp("us"))),
        ("create_time", pa.array([5])),
        ("partition", pa.array(["0"])),
        ("partition", pa.array([0.0])),
        ("partition", pa.array([False])),
        ("is_tombstone", pa.array([1])),
        ("key", pa.array([5])),
        ("key", pa.array([[b"k"]])),
        ("topic", pa.array([b"b"])),
        ("headers", pa.array([[{"key": 5, "value": b"v"}]])),
        ("headers", pa.array([[{"value": b"v", "key": "h"}]])),
    ],
)
def test_a_column_of_another_kind_is_refused(name: str, column: pa.Array) -> None:
    """Cast it would be written, and mean what nobody said."""
    table = pa.table({"value": [b"v"], "topic": ["b"]}).drop_columns(["topic"] * (name == "topic"))
    said = re.escape(f"column {name} of type {column.type}: allowed is ")
    with pytest.raises(ConfigError, match=said):
        next(encode_batches(table.append_column(name, column), SPEC))


def test_a_column_of_another_width_is_of_the_same_kind() -> None:
    headers = pa.array([[{"key": "h", "value": "x"}]] * 2)
    table = pa.table(
        {
            "key": pa.array(["k", None], pa.large_string()),
            "value": pa.array([b"v", b"w"]).dictionary_encode(),
            "topic": pa.array(["b"] * 2).cast(pa.string_view()),
            "partition": pa.array([0, 0], pa.uint8()),
            "headers": headers.cast(pa.large_list(headers.type.value_type)),
            "timestamp": pa.nulls(2),
            "is_tombstone": pa.nulls(2),
        }
    )
    [(where, found)] = written(table, SPEC).items()
    assert where == TopicPartition("b", 0)
    assert [(r.key, r.value, r.headers, r.timestamp) for r in found] == [
        (b"k", b"v", (("h", b"x"),), NOW), (None, b"w", (("h", b"x"),), NOW),
    ]  # fmt: skip


@pytest.mark.parametrize("codec", Codec)
def test_every_codec(codec: Codec) -> None:
    spec = WriteSpec({"a": 1}, NOW, topic="a", codec=codec)
    [batch] = encode_batches(rows(key=[b"k"], value=[b"v" * 300]), spec)
    assert bytes(batch.data) == build_batch(
        [NewRecord(b"k", b"v" * 300, NOW)], BatchSpec(codec=codec)
    )
