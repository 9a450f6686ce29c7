"""One file of a table looked through: Parquet by its rows, anything else as any file is.

Rows have the columns of an export: `key`, and where there are, `offset` and `value`. A file may
hold a key in a column's dictionary, or in the bounds of its footer, though no row has it any more:
whoever filters rows of dictionary-encoded columns writes such files. So dictionaries count, and
what comes behind the last column is searched raw. A Parquet file without keys, as Delta's
checkpoints are, is searched raw in all that is text or bytes, and so are the blocks of an Avro file
once inflated, of which Iceberg's manifests are. What is none of these, nor text, may be compressed:
it is opaque, as an attempt at a file is that was cut short.
"""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from lapse.base.bucket import is_bucket
from lapse.base.clock import Clock
from lapse.base.extras import needed_for
from lapse.kernels.find_key import KeyTable
from lapse.lifecycle.erase import avro
from lapse.lifecycle.erase.audit import Look, OnBytes, opened
from lapse.lifecycle.erase.findings import (
    RAW,
    ROWS,
    SPOTS_MAX,
    AuditUnit,
    Count,
    Findings,
    Piece,
    Region,
    Spot,
    by_target,
)
from lapse.lifecycle.erase.objects import fetched
from lapse.lifecycle.erase.places import FileState
from lapse.lifecycle.erase.raw import RawSearch
from lapse.lifecycle.erase.search import Search
from lapse.lifecycle.erase.table_files import EXPORT_CATALOG, partition_of_rows
from lapse.lifecycle.erase.window import Window
from lapse.records.batch import as_array

KEY, OFFSET, VALUE = "key", "offset", "value"
OPAQUE = "neither Parquet, nor Avro, nor text"
_MAGIC = b"PAR1"
_FOOTER_BYTES_MIN = 12  # the magic at both ends, and the footer's length
_AVRO_BYTES_MAX = 256 << 20
_PLAIN = {  # names of files that are no text, and what they begin with
    r"\..+\.crc": b"crc\0",  # Hadoop's checksums, beside each file
    re.escape(EXPORT_CATALOG): b"SQLite format 3\0",  # names of tables and files
}
_BYTES = frozenset({"BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"})  # as Parquet calls them
_BATCH_ROWS = 1 << 16


def audit_rows(
    unit: AuditUnit, search: Search, table: KeyTable, clock: Clock, on_bytes: OnBytes
) -> Findings:
    """Look through a table's file. What cannot be read is a finding, not an error."""

    def look(fd: int) -> Findings:
        state = FileState.of(os.fstat(fd))
        if is_parquet(fd, state.size):
            return _Rows(fd, unit, search, table, state).run(on_bytes)
        found = Look(fd, unit, search, table, clock, on_bytes).run()
        if found.kind != RAW or found.problem or _is_plain(fd, unit.path, state.size):
            return found
        raw = _search_avro(fd, state.size, RawSearch(search, table))
        if raw is None:
            return replace(found, regions=(Region(0, state.size, OPAQUE, opaque=True),))
        more = (Count(n, raw=int(number)) for n, number in enumerate(raw.counts) if number)
        counts = by_target((*found.counts, *more))
        return replace(
            found, regions=(), counts=tuple(counts[n] for n in sorted(counts)),
            raw_spots=(*found.raw_spots, *raw.spots)[:SPOTS_MAX],
        )  # fmt: skip

    return fetched(unit, look) if is_bucket(unit.replica) else opened(unit, look)


def is_parquet(fd: int, size: int) -> bool:
    """Whether a file begins and ends as Parquet does; one that is being written does not end so."""
    if size < _FOOTER_BYTES_MIN:
        return False
    ends = (os.pread(fd, len(_MAGIC), at) for at in (0, size - len(_MAGIC)))
    return all(end == _MAGIC for end in ends)


def _search_avro(fd: int, size: int, raw: RawSearch) -> RawSearch | None:
    """What its blocks have once inflated; None for another file, and one that cannot be read."""
    if size > _AVRO_BYTES_MAX or os.pread(fd, len(avro.MAGIC), 0) != avro.MAGIC:
        return None
    try:
        for plain in avro.blocks_of(os.pread(fd, size, 0)):
            raw.search_inflated(as_array(plain), 0)
    except ValueError:
        return None
    return raw


def _is_plain(fd: int, path: str, size: int) -> bool:
    """Whether a key's bytes would be seen in a file: nothing in it is compressed."""
    name = path.rpartition("/")[2]
    for pattern, magic in _PLAIN.items():
        if re.fullmatch(pattern, name) and os.pread(fd, len(magic), 0) == magic:
            return True
    decoder, window = codecs.getincrementaldecoder("utf-8")(), Window(fd, 0, size)
    try:
        while window.reach < window.end:
            window.fill(window.reach)
            decoder.decode(window.data[: window.filled].tobytes())
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


# Arrow's types, by what `pyarrow.types` asks for.
_LISTS = ("list", "large_list", "fixed_size_list", "list_view", "large_list_view")
_TEXTS = ("string", "binary", "large_string", "large_binary", "string_view", "binary_view")
_WITHOUT_TEXT = ("null", "boolean", "integer", "floating", "decimal", "temporal")


class _Rows:
    """One walk through one Parquet file."""

    def __init__(
        self, fd: int, unit: AuditUnit, search: Search, table: KeyTable, state: FileState
    ) -> None:
        with needed_for("looking through a table"):
            import pyarrow as pa  # noqa: PLC0415  (an extra, and a tenth of a second)
            from pyarrow import compute, parquet  # noqa: PLC0415
        self._pa: Any = pa
        self._compute: Any = compute
        self._parquet: Any = parquet
        self._fd, self._unit, self._search, self._state = fd, unit, search, state
        self._below = search.below if unit.below is None else min(search.below, unit.below)
        self._raw = RawSearch(search, table)
        self._keys = pa.array(search.keys, pa.large_binary())
        self._offsets = pa.array(search.offsets, pa.int64())
        self._in_dictionaries: set[int] = set()
        self._counts: dict[int, Count] = {}
        self._spots: list[Spot] = []
        self._rows = self._groups = 0

    def run(self, on_bytes: OnBytes) -> Findings:
        problem = None
        try:
            with open(self._fd, "rb", closefd=False) as source:
                problem = self._walk(source)
        except OSError as e:  # Arrow's for bytes that make no sense, too
            problem = f"cannot be read as Parquet: {e.strerror or e}"
        except self._pa.ArrowException as e:
            problem = f"cannot be read as Parquet: {e}"
        window = Window(self._fd, 0, self._state.size)
        while window.reach < window.end:
            before = window.reach
            window.fill(before)
            on_bytes(window.reach - before)
        return Findings(
            path=self._unit.path,
            state=self._state,
            kind=ROWS,
            problem=problem,
            pieces=(Piece(0, window.reach, window.sha256.hexdigest()),),
            batches=self._groups,
            records=self._rows,
            counts=self._counted(),
            spots=tuple(self._spots[:SPOTS_MAX]),
            raw_spots=tuple(self._raw.spots),
        )

    def _walk(self, source: Any) -> str | None:
        """All row groups and the footer; why that does not tell all there is, or None."""
        told = self._parquet.read_metadata(source)
        self._groups, self._rows = told.num_row_groups, told.num_rows
        self._raw.search_file(self._fd, _data_end(told), self._state.size)
        names, open_it = told.schema.to_arrow_schema().names, self._parquet.ParquetFile
        if KEY not in names:
            return self._search_all(open_it(source, metadata=told))
        columns = map(told.schema.column, range(told.num_columns))
        if [one.physical_type in _BYTES for one in columns if one.path == KEY] != [True]:
            return f"has no single column {KEY} of bytes or text"
        file = open_it(source, metadata=told, read_dictionary=[KEY])
        if self._search.offsets and OFFSET not in names:
            return "has no column of offsets"
        if self._search.offsets and partition_of_rows(self._unit.path) is None:
            return "does not say in its path of which partition its rows are"
        for group in range(self._groups):
            self._search_group(file, group, names)
        return None

    def _search_group(self, file: Any, group: int, names: list[str]) -> None:
        columns = [name for name in (KEY, OFFSET) if name in names]
        at, found = 0, list[tuple[int, int, int]]()
        in_dictionaries: set[int] = set()
        for rows in file.iter_batches(_BATCH_ROWS, row_groups=[group], columns=columns):
            offsets = rows[OFFSET].cast(self._pa.int64()) if OFFSET in names else None
            for targets, base in self._targets(rows, offsets, in_dictionaries):
                hits = np.flatnonzero(targets.is_valid().to_numpy(zero_copy_only=False))
                for n, target in zip(hits.tolist(), targets.take(hits).to_pylist(), strict=True):
                    offset = -1 if offsets is None else offsets[n].as_py()
                    found.append((at + n, base + target, -1 if offset is None else offset))
            at += len(rows)
        self._in_dictionaries |= in_dictionaries
        if found:
            valueless = self._without_value(file, group) if VALUE in names else frozenset()
            for row, target, offset in found:
                self._note(target, offset, tombstone=row in valueless)

    def _targets(self, rows: Any, offsets: Any, seen: set[int]) -> Iterator[tuple[Any, int]]:
        """Arrays of which key or offset each row has, null for none, and their first's number."""
        keys = rows[KEY]
        if not self._pa.types.is_dictionary(keys.type):
            keys = keys.dictionary_encode()
        distinct = keys.dictionary.cast(self._pa.large_binary())
        if len(self._keys):
            which = self._compute.index_in(distinct, value_set=self._keys)
            seen |= set(which.drop_null().to_pylist())
            yield which.take(keys.indices), 0
        if len(self._offsets) and offsets is not None:
            yield self._compute.index_in(offsets, value_set=self._offsets), len(self._keys)

    def _without_value(self, file: Any, group: int) -> frozenset[int]:
        """The rows of a group that are tombstones."""
        at, found = 0, set[int]()
        for rows in file.iter_batches(_BATCH_ROWS, row_groups=[group], columns=[VALUE]):
            is_null = rows[VALUE].is_null().to_numpy(zero_copy_only=False)
            found |= set((at + np.flatnonzero(is_null)).tolist())
            at += len(rows)
        return frozenset(found)

    def _note(self, target: int, offset: int, *, tombstone: bool) -> None:
        below = self._search.below if tombstone else self._below
        if offset >= below:
            one = Count(target, beyond=1)
        else:
            one = Count(target, tombstones=1) if tombstone else Count(target, records=1)
            if offset >= 0 and len(self._spots) < SPOTS_MAX:
                self._spots.append(Spot(target, offset, 0, tombstone=tombstone))
        self._counts[target] = self._counts.get(target, Count(target)) + one

    def _search_all(self, file: Any) -> str | None:
        """Raw, in what is text or bytes, however deep; why that is not all there is, or None."""
        for rows in file.iter_batches(_BATCH_ROWS):
            for name, column in zip(rows.schema.names, rows.columns, strict=True):
                try:
                    for data in _bytes_in(self._pa, column):
                        self._raw.search_inflated(as_array(data), 0)
                except _NotSearched as e:
                    return f"has a column {name} that is not searched: {e}"
        return None

    def _counted(self) -> tuple[Count, ...]:
        """A key's places in dictionaries and in the footer say nothing new where rows have it."""
        counts = self._counts
        unread = np.zeros(self._search.targets, np.int64)
        unread[: len(self._raw.counts)] = self._raw.counts
        unread[sorted(self._in_dictionaries)] += 1
        more = {n: Count(n, raw=int(unread[n])) for n in np.flatnonzero(unread).tolist()}
        return tuple(counts.get(n) or more[n] for n in sorted(counts.keys() | more.keys()))


def _data_end(metadata: Any) -> int:
    """Where the last column of the last group ends; its footer, and what it points to, follow."""
    ends = [0]
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for column in map(group.column, range(group.num_columns)):
            starts = [column.data_page_offset]
            if column.has_dictionary_page and column.dictionary_page_offset:
                starts.append(column.dictionary_page_offset)
            ends.append(min(starts) + column.total_compressed_size)
    return max(ends)


class _NotSearched(Exception):
    """Of a type that may hold text or bytes, as far as we know."""


def _bytes_in(pa: Any, column: Any) -> Iterator[bytes]:
    """Of all values at once: a key that seems to begin in one and end in the next counts as one.

    Raises _NotSearched.
    """
    kinds, kind = pa.types, column.type
    if isinstance(kind, pa.BaseExtensionType):
        yield from _bytes_in(pa, column.storage)
    elif kinds.is_dictionary(kind):
        yield from _bytes_in(pa, column.dictionary)
    elif kinds.is_struct(kind):
        for part in column.flatten():
            yield from _bytes_in(pa, part)
    elif kinds.is_map(kind):
        for part in (column.keys, column.items):
            yield from _bytes_in(pa, part)
    elif any(getattr(kinds, f"is_{name}")(kind) for name in _LISTS):
        yield from _bytes_in(pa, column.flatten())
    elif any(getattr(kinds, f"is_{name}")(kind) for name in _TEXTS):
        data = column.cast(pa.large_binary()).buffers()[2]
        yield b"" if data is None else data.to_pybytes()
    elif kinds.is_fixed_size_binary(kind):
        yield from _bytes_in(pa, column.cast(pa.binary()))
    elif not any(getattr(kinds, f"is_{name}")(kind) for name in _WITHOUT_TEXT):
        raise _NotSearched(str(kind))
