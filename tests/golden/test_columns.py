"""Every segment that real Kafka wrote, to Arrow: the same records as `records_of` reads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from lapse.base.ids import TopicPartition
from lapse.log.segment import base_offset_of
from lapse.records.batch import records_of, scan_prefix
from lapse.records.columns import TYPES, ColumnSpec, record_batches
from lapse.records.layout import TimestampType, horizon_of, timestamp_type_of

NAMES = ("offset", "key", "value", "timestamp", "timestampType", "headers", "horizon")


def segments(root: Path) -> list[Path]:
    found = [path for path in root.rglob("*.log") if base_offset_of(path.name) is not None]
    return sorted(path for path in found if path.stat().st_size)


def as_read(data: bytes, rows: list, where: str) -> Iterator[tuple[object, ...]]:
    for row in rows:
        for r in records_of(data, row, where):
            headers = [{"key": k, "value": v} for k, v in r.headers] or None
            kind = int(timestamp_type_of(row))
            yield r.offset, r.key, r.value, r.timestamp, kind, headers, horizon_of(row)


def as_columns(data: bytes, rows: list, where: str, names: tuple[str, ...]) -> pa.Table:
    spec = ColumnSpec(names, control=True)
    found = record_batches(data, rows, TopicPartition("t", 0), where, spec)
    table = pa.Table.from_batches(found, pa.schema([(name, TYPES[name]) for name in names]))
    table.validate(full=True)
    return table


@pytest.mark.parametrize("part", ["golden", "golden-old", "golden-clean-shutdown"])
def test_segments_read_as_records_of(goldens: Path, part: str) -> None:
    paths = segments(goldens / part)
    assert paths
    for path in paths:
        data = path.read_bytes()
        rows, covered, _ = scan_prefix(data)  # some have a torn or a corrupt end
        table = as_columns(data[:covered], rows, str(path), NAMES)
        columns = [
            [None if t is None else t // 1000 for t in column.cast(pa.int64()).to_pylist()]
            if name in {"timestamp", "horizon"}
            else column.to_pylist()
            for name, column in zip(NAMES, table.columns, strict=True)
        ]
        found = list(zip(*columns, strict=True))
        assert found == list(as_read(data, rows, str(path))), path


def test_logappend_topics_keep_the_producers_time(goldens: Path) -> None:
    """ADR-5: Kafka itself leaves it in the deltas, until its cleaner rewrites a batch."""
    known = 0
    for path in segments(goldens / "golden"):
        if "logappend" not in path.parent.name:
            continue
        data = path.read_bytes()
        rows, _, _ = scan_prefix(data)
        names = ("create_time", "append_time", "timestamp", "timestampType")
        for row in as_columns(data, rows, str(path), names).to_pylist():
            if row["timestampType"] == TimestampType.LOG_APPEND_TIME:
                assert row["append_time"] == row["timestamp"]
                known += row["create_time"] is not None
                assert row["create_time"] != row["append_time"] or row["create_time"] is None
    assert known > 100
