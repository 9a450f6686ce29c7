"""Arrow columns to records: what they mean, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from lapse.base.errors import ConfigError
from lapse.base.ids import TopicPartition
from lapse.records.arrow_fields import fields_of_arrow
from lapse.records.batch import records_of, scan_batches
from lapse.records.batch_writer import write_batch
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.columns import ColumnSpec, record_batches

NOW = 1_700_000_000_000
KEYS = [b"a", None, b"", b"dd", b"e"]


def written(records: pa.RecordBatch | pa.Table) -> list[tuple[object, ...]]:
    data = bytes(write_batch(fields_of_arrow(records, NOW), BatchSpec()))
    (row,) = scan_batches(data, "t")
    return [(r.key, r.value, r.create_time, r.flagged) for r in records_of(data, row, "t")]


@pytest.mark.parametrize(
    "kind", [pa.binary(), pa.large_binary(), pa.string(), pa.binary_view()], ids=str
)
def test_keys_and_values_of_every_bytes_type(kind: pa.DataType) -> None:
    texts = [None if key is None else key.decode() for key in KEYS]
    column = pa.array(KEYS).cast(kind) if kind != pa.string() else pa.array(texts)
    got = written(pa.table({"key": column, "value": column}))
    assert got == [(key, key, NOW, False) for key in KEYS]


def test_slices_and_chunks_are_what_they_show() -> None:
    whole = pa.table({"key": pa.array(KEYS), "value": pa.array(KEYS)})
    chunked = pa.concat_tables([whole.slice(1, 2), whole.slice(3, 1), whole.slice(0, 0)])
    assert [key for key, *_ in written(chunked)] == KEYS[1:4]
    (batch,) = whole.to_batches()
    assert [value for _, value, *_ in written(batch.slice(2))] == KEYS[2:]


def test_one_column_is_enough_and_times_are_told_or_now() -> None:
    times = pa.array([datetime(1970, 1, 1, 0, 0, 5, 600, tzinfo=UTC), None])
    got = written(pa.table({"value": [b"x", b"y"], "create_time": times}).cast(
        pa.schema({"value": pa.binary(), "create_time": pa.timestamp("ms", tz="UTC")}), safe=False
    ))  # fmt: skip
    assert got == [(None, b"x", 5000, False), (None, b"y", NOW, False)]
    assert written(pa.table({"key": pa.array([b"k"])})) == [(b"k", None, NOW, False)]
    exact = pa.table({"key": [b"k", b"l"], "create_time_ms": pa.array([1 << 60, None])})
    assert [time for _, _, time, _ in written(exact)] == [1 << 60, NOW]


def test_tombstones() -> None:
    table = pa.table(
        {
            "key": [b"1", b"2", b"3", b"4", b"5"],
            "value": [b"live", b"live", b"gone, and why", None, None],
            "is_tombstone": [None, False, True, True, None],
        }
    )
    assert [flagged for *_, flagged in written(table)] == [False, False, True, False, False]
    with pytest.raises(ConfigError, match="record 1: is_tombstone is false"):
        fields_of_arrow(table.set_column(2, "is_tombstone", [[True, False, False, False, None]])
                        .slice(2), NOW)  # fmt: skip


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"offset": [5]}, "columns offset: allowed"),
        ({"key": [b"k"], "colour": [5]}, "columns key, colour: allowed"),
        ({"key": [5]}, "column key of type int64"),
        ({"key": [b"k"], "create_time": ["soon"]}, "column create_time of type string"),
        (
            {"key": [b"k"], "create_time": pa.array([5], pa.timestamp("ms"))},
            "column create_time of type timestamp.ms.: allowed is timestamp.ms, tz=UTC",
        ),
        ({"key": [b"k"], "headers": [[{"key": "h", "value": b"v"}]]}, "column headers"),
    ],
)
def test_what_cannot_be_sent(columns: dict[str, list[object]], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        fields_of_arrow(pa.table(columns), NOW)


def test_what_a_consumer_gives_can_be_sent_on() -> None:
    records = [NewRecord(b"k", b"v", 5), NewRecord(b"k", b"why", 6, tombstone=True)]
    data = build_batch(records)
    spec = ColumnSpec(valued_tombstones=True)
    (arrow,) = record_batches(data, scan_batches(data, "t"), TopicPartition("t", 0), "t", spec)
    assert bytes(write_batch(fields_of_arrow(arrow, NOW), BatchSpec())) == data


def test_no_records_are_no_fields() -> None:
    assert len(fields_of_arrow(pa.table({"key": pa.array([], pa.binary())}), NOW)) == 0
