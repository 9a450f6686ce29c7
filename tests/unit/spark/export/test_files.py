"""The table's files: what is written is what is read, by us and by strangers."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lapse.base.errors import CorruptData, StorageError
from lapse.base.fs import RealFs
from lapse.spark.export.files import (
    FILE_RECORDS_MAX,
    SCHEMA,
    STORED,
    NewFiles,
    Span,
    TableFile,
    read_rows,
    rows_in,
    span_of,
)
from lapse.spark.export.store import Folder

TIME = datetime(2026, 1, 1, 12, 30, 15, 123000, tzinfo=UTC)


def rows(first: int, count: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [
            {
                "offset": n,
                "key": b"k%d" % n,
                "value": None if n % 3 == 0 else b"v" * n,
                "headers": [{"key": "h", "value": b"x"}] if n % 2 else None,
                "timestamp": TIME,
                "timestampType": 0,
                "create_time": None if n % 2 else datetime(9999, 12, 31, tzinfo=UTC),
                "append_time": None,
            }
            for n in range(first, first + count)
        ],
        pa.schema([SCHEMA.field(name) for name in STORED]),
    )


def file_at(path: Path) -> TableFile:
    return TableFile(Folder(path.parent, RealFs()), path.name)


def new_in(folder: Path, records_max: int = FILE_RECORDS_MAX) -> NewFiles:
    return NewFiles(Folder(folder, RealFs()).create, records_max)


def test_rows_come_back_from_files_of_a_size(tmp_path: Path) -> None:
    out = new_in(tmp_path / "new", 4)
    written = [rows(0, 3), rows(3, 6), rows(9, 0), rows(9, 3)]
    for some in written:
        out.write(some)
    names = out.close()
    assert out.rows == 12
    paths = [tmp_path / "new" / name for name in names]
    assert [rows_in(file_at(path)) for path in paths] == [4, 4, 4]
    found = pa.Table.from_batches([some for path in paths for some in read_rows(file_at(path))])
    assert found.equals(pa.Table.from_batches(written))
    offsets = [
        n
        for path in paths
        for some in read_rows(file_at(path), ("offset",))
        for n in some["offset"]
    ]
    assert [n.as_py() for n in offsets] == [*range(12)]
    assert pq.read_metadata(paths[0]).row_group(0).column(1).compression == "ZSTD"


def test_rows_that_go_back_begin_another_file(tmp_path: Path) -> None:
    """And so do those beyond the beginning of a file that stays."""
    out = NewFiles(Folder(tmp_path, RealFs()).create, kept=[20, 7])
    back = pa.Table.from_batches([rows(4, 2), rows(2, 1)]).combine_chunks().to_batches()
    for some in (rows(0, 2), *back, rows(3, 1), rows(10, 2), rows(12, 3), rows(30, 1)):
        out.write(some)
    found = [[*read_rows(file_at(tmp_path / name), ("offset",))] for name in out.close()]
    offsets = [[n for some in file for n in some["offset"].to_pylist()] for file in found]
    assert offsets == [[0, 1, 4, 5], [2, 3], [10, 11, 12, 13, 14], [30]]


def test_a_files_span_is_known_without_statistics_too(tmp_path: Path) -> None:
    table = pa.Table.from_batches([rows(7, 3), rows(4, 2)])
    for has_statistics in (True, False):
        path = tmp_path / f"{has_statistics}.parquet"
        pq.write_table(table, path, row_group_size=2, write_statistics=has_statistics)
        assert span_of(file_at(path)) == Span(5, 4)
    pq.write_table(table.slice(0, 0), path)
    assert span_of(file_at(path)) == Span(0, -1)


def test_two_attempts_have_no_name_in_common(tmp_path: Path) -> None:
    names = []
    for _ in range(2):
        out = new_in(tmp_path)
        out.write(rows(0, 1))
        names += out.close()
    assert len(set(names)) == 2
    assert new_in(tmp_path / "none").close() == ()
    assert not (tmp_path / "none").exists()


def test_files_that_spark_wrote_are_read(tmp_path: Path) -> None:
    """Times of 96 bits, also those that nanoseconds of 64 bits do not reach."""
    wanted = pa.Table.from_batches([rows(0, 5)])
    path = tmp_path / "of-spark.parquet"
    naive = wanted
    for name in ("timestamp", "create_time", "append_time"):
        at = wanted.schema.get_field_index(name)
        naive = naive.set_column(at, name, naive[name].cast(pa.timestamp("us")))
    pq.write_table(naive, path, use_deprecated_int96_timestamps=True)
    assert pq.read_metadata(path).schema.column(5).physical_type == "INT96"
    assert pa.Table.from_batches([*read_rows(file_at(path))]).equals(wanted)


def test_what_is_no_file_of_ours_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    with pytest.raises(StorageError, match=r"x\.parquet"):
        rows_in(file_at(path))
    path.write_bytes(b"not ours")
    with pytest.raises(CorruptData, match=r"x\.parquet.*is not a file of this table"):
        rows_in(file_at(path))
    pq.write_table(pa.table({"offset": [1]}), path)
    with pytest.raises(CorruptData, match=r"x\.parquet.*is not a file of this table"):
        list(read_rows(file_at(path)))


def test_a_file_that_is_damaged_anywhere_is_named(tmp_path: Path) -> None:
    out = new_in(tmp_path)
    out.write(rows(0, 2000))
    [name] = out.close()
    path = tmp_path / name
    whole, told = path.read_bytes(), list[str]()
    for at in range(4, len(whole), len(whole) // 40):
        other = bytes(byte ^ 0xFF for byte in whole[at : at + 60])
        path.write_bytes(whole[:at] + other + whole[at + 60 :])
        try:
            list(read_rows(file_at(path)))
        except CorruptData as e:
            told.append(str(e))
    assert len(told) > 10
    assert all(str(path) in text for text in told)
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CorruptData, match="is not a file of this table"):
        rows_in(file_at(path))
