"""A table's files: Parquet, read and written by tasks, some rows at a time."""

from __future__ import annotations

import io
import secrets
from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lapse.base.bucket import Bucket
from lapse.base.errors import CorruptData, LapseError, StorageError, unreadable
from lapse.records.column_spec import TYPES
from lapse.spark.export.store import Out, Store

COLUMNS = (
    "partition", "offset", "key", "value", "headers",
    "timestamp", "timestampType", "create_time", "append_time",
)  # fmt: skip
SCHEMA = pa.schema([pa.field(name, TYPES[name]) for name in COLUMNS])
# The topic's partition is in the name of a file's folder, as readers of Parquet expect.
STORED = tuple(name for name in COLUMNS if name != "partition")
FILE_RECORDS_MAX = 5_000_000
_STORED_SCHEMA = pa.schema([SCHEMA.field(name) for name in STORED])
_GROUP_ROWS, _GROUP_BYTES = 1 << 20, 64 << 20
_READ_ROWS = 1 << 15


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file of a table, wherever that is."""

    store: Store
    name: str

    def __str__(self) -> str:
        return f"{self.store.uri}/{self.name}"


def rows_in(path: TableFile) -> int:
    """How many rows a file has. Raises CorruptData, StorageError."""
    with _opened(path) as file:
        return int(file.metadata.num_rows)


@dataclass(frozen=True, slots=True)
class Span:
    """What a file has: how many rows, and the least of their offsets; -1 where it has none."""

    rows: int
    first: int


def span_of(path: TableFile) -> Span:
    """By a file's metadata, where that has it. Raises CorruptData, StorageError."""
    with _opened(path) as file:
        metadata = file.metadata
        rows = int(metadata.num_rows)
        groups = [metadata.row_group(n) for n in range(metadata.num_row_groups)]
        columns = [one.column(n) for one in groups for n in range(one.num_columns)]
        found = [one.statistics for one in columns if one.path_in_schema == "offset"]
    if all(one is not None and one.has_min_max for one in found) and len(found) == len(groups):
        return Span(rows, min((int(one.min) for one in found), default=-1))
    offsets = (pc.min(some.column("offset")).as_py() for some in read_rows(path, ("offset",)))
    return Span(rows, min(offsets, default=-1))


def read_rows(path: TableFile, columns: Sequence[str] = STORED) -> Iterator[pa.RecordBatch]:
    """A file's rows, in its order. Raises CorruptData, StorageError."""
    schema = pa.schema([SCHEMA.field(name) for name in columns])
    with _opened(path) as file:
        try:
            for batch in file.iter_batches(_READ_ROWS, columns=list(columns)):
                yield batch.select(list(columns)).cast(schema)
        except (pa.ArrowException, KeyError) as e:
            raise _broken(path, e) from e
        except OSError as e:  # Arrow's for bytes that make no sense, too
            raise _unread(path, e) from e


def _opened(path: TableFile) -> pq.ParquetFile:
    """Times of 96 bits, as Spark writes them, are microseconds."""
    try:
        source = path.store.source(path.name)
        return pq.ParquetFile(source, coerce_int96_timestamp_unit="us")
    except pa.ArrowException as e:
        raise _broken(path, e) from e
    except OSError as e:
        raise _unread(path, e) from e


def _unread(path: TableFile, error: OSError) -> LapseError:
    """A path's error has a number; bytes that make no sense have none. A store's has words."""
    if isinstance(path.store, Bucket) and "AWS Error" in str(error):
        return StorageError(f"{path}: {next(iter(str(error).splitlines()), 'cannot be read')}")
    return _broken(path, error) if error.errno is None else unreadable(error, path)


def _broken(path: TableFile, error: Exception) -> CorruptData:
    return CorruptData(str(path), 0, f"is not a file of this table: {error}")


class NewFiles:
    """Rows that become files of one folder, with names that no other attempt at them has.

    Args:
        create: makes a file of that name.
        kept: where files begin that stay as they are: these share no offsets with them, so that
            any that are written anew later can be laid together in order.
    """

    def __init__(
        self,
        create: Callable[[str], Out],
        file_records_max: int = FILE_RECORDS_MAX,
        kept: Iterable[int] = (),
    ) -> None:
        self._create, self._file_records_max = create, file_records_max
        self._kept = sorted(kept)
        self._last = -1
        self._attempt = secrets.token_hex(6)
        self._names: list[str] = []
        self._file: _FileOut | None = None
        self.rows = 0

    def write(self, rows: pa.RecordBatch) -> None:
        """Columns are those of STORED.

        Rows of a file are in the order of their offsets, and no file of `kept` begins among them:
        where either ends, another file begins.
        """
        offsets = rows.column("offset").to_numpy()
        edges = [0, *(np.flatnonzero(np.diff(offsets) < 0) + 1).tolist(), len(rows)]
        for begin, end in pairwise(edges):
            if begin < end:
                self._write_ascending(rows.slice(begin, end - begin), int(offsets[begin]))
                self._last = int(offsets[end - 1])

    def _write_ascending(self, rows: pa.RecordBatch, first: int) -> None:
        if bisect(self._kept, self._last) != bisect(self._kept, first) or first < self._last:
            self._end()
        while len(rows):
            if self._file is None:
                self._file = self._next()
            room = self._file_records_max - self._file.rows
            self._file.write(rows.slice(0, room))
            self.rows += min(len(rows), room)
            rows = rows.slice(room)
            if self._file.rows == self._file_records_max:
                self._end()

    def close(self) -> tuple[str, ...]:
        """The files' names; what was written is durable, the names are not yet."""
        self._end()
        return tuple(self._names)

    def _next(self) -> _FileOut:
        name = f"{self._attempt}-{len(self._names):05}.parquet"
        self._names.append(name)
        return _FileOut(self._create(name))

    def _end(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None


class _FileOut:
    """A file under way; rows are held until there are enough for a row group."""

    def __init__(self, file: Out) -> None:
        self._file = file
        self._writer = pq.ParquetWriter(_Stream(file), _STORED_SCHEMA, compression="zstd")
        self._held: list[pa.RecordBatch] = []
        self._held_rows = self._held_bytes = 0
        self.rows = 0

    def write(self, rows: pa.RecordBatch) -> None:
        self._held.append(rows)
        self._held_rows += len(rows)
        self._held_bytes += rows.nbytes
        self.rows += len(rows)
        if self._held_rows >= _GROUP_ROWS or self._held_bytes >= _GROUP_BYTES:
            self._end_group()

    def close(self) -> None:
        self._end_group()
        self._writer.close()
        self._file.fsync()
        self._file.close()

    def _end_group(self) -> None:
        if self._held:
            table = pa.Table.from_batches(self._held).cast(_STORED_SCHEMA)
            self._writer.write_table(table, row_group_size=max(self._held_rows, 1))
        self._held, self._held_rows, self._held_bytes = [], 0, 0


class _Stream(io.RawIOBase):
    """As Arrow writes to it: forwards only."""

    def __init__(self, file: Out) -> None:
        self._file, self._at = file, 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._file.write(data)
        self._at += len(data)
        return len(data)

    def tell(self) -> int:
        return self._at
