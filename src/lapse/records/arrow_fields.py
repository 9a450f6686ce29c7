"""Arrow columns as `batch_writer` takes them: the way back of `columns`.

Keys and values are pointed at where they lie, unless their type has to be changed first. Used by
`client` and `from_arrow` only: a broker imports no Arrow.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lapse.base.errors import ConfigError
from lapse.kernels import encode_headers as kernel
from lapse.records.batch import as_array
from lapse.records.batch_writer import Bytes, RecordFields, no_headers
from lapse.records.column_spec import HEADERS, TYPES

_MILLIS = pa.timestamp("ms", tz="UTC")
_LARGE = pa.large_binary()  # chunks laid together may exceed what 32-bit offsets reach


def fields_of_arrow(records: pa.RecordBatch | pa.Table, now_ms: int) -> RecordFields:
    """Records of one partition, by the columns `key`, `value`, `create_time`, `is_tombstone`.

    A null value is a tombstone whatever `is_tombstone` says of it, save False: that is refused
    (KIP-87). Where a create time is null it is `now_ms`; `create_time_ms` wins over it.

    Raises:
        ConfigError: there is neither key nor value, a column of an unknown name or another type,
            headers (which would be lost), or a null value that is to be no tombstone.
    """
    names = records.schema.names
    unknown = [name for name in names if name not in TYPES]
    if unknown or not {"key", "value"} & set(names):
        raise ConfigError(
            f"columns {', '.join(names)}: allowed are key, value, create_time, is_tombstone, and "
            "what else a consumer gives, which is left out"
        )
    if "headers" in names and records.column("headers").null_count < len(records):
        raise ConfigError("column headers: records with headers cannot be sent as columns")
    count = len(records)
    values = bytes_column(records, "value", count)
    return RecordFields(
        keys=bytes_column(records, "key", count),
        values=values,
        headers=no_headers(count),
        times=_times(records, now_ms, count),
        tombstones=flagged(records, values, count),
    )


def typed_column(
    records: pa.RecordBatch | pa.Table, name: str, kind: pa.DataType
) -> pa.Array | None:
    """One array of that type, or None where there is no such column.

    Raises ConfigError where it is of another kind: 1.0 is no partition, 5 no key, and a time of no
    zone no moment.
    """
    if name not in records.schema.names:
        return None
    column = records.column(name)
    if not _is_alike(column.type, kind):
        raise ConfigError(f"column {name} of type {column.type}: allowed is {kind}")
    try:
        column = pc.cast(column, kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as e:
        raise ConfigError(f"column {name} of type {column.type}: allowed is {kind}") from e
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _is_alike(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a type is another width, or another layout, of the same kind; strings are bytes."""
    if pa.types.is_dictionary(found):
        found = found.value_type
    if pa.types.is_null(found):
        return True  # nothing but nulls is in it
    kinds = _kind_of(found), _kind_of(wanted)
    if kinds == ("list", "list"):
        return _is_alike(found.value_type, wanted.value_type)
    if kinds == ("struct", "struct"):
        names = [[field.name for field in one] for one in (found, wanted)]
        pairs = zip(found, wanted, strict=False)
        return names[0] == names[1] and all(_is_alike(one.type, of.type) for one, of in pairs)
    return kinds[0] == kinds[1] or kinds == ("string", "binary")


def _kind_of(kind: pa.DataType) -> str:
    """What all widths and layouts of a type are; empty for other types."""
    if pa.types.is_timestamp(kind):
        return "time" if kind.tz is None else "moment"
    return next((name for name, among in _KINDS.items() if any(is_(kind) for is_ in among)), "")


_KINDS = {
    "string": (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
    "binary": (
        pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view,
        pa.types.is_fixed_size_binary,
    ),
    "integer": (pa.types.is_integer,),
    "boolean": (pa.types.is_boolean,),
    "list": (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list),
    "struct": (pa.types.is_struct,),
}  # fmt: skip


def bytes_column(records: pa.RecordBatch | pa.Table, name: str, count: int) -> Bytes:
    """A column of bytes where it lies; all null where there is no such column."""
    column = typed_column(records, name, _LARGE)
    if column is None:
        return Bytes(as_array(b""), np.zeros(count, np.int64), np.full(count, -1, np.int64))
    return bytes_of(column)


def bytes_of(array: pa.Array) -> Bytes:
    """Bytes or strings where they lie."""
    column = array.cast(_LARGE)
    count = len(column)
    _, offsets, data = column.buffers()
    if offsets is None or count == 0:
        return Bytes.of([])
    ends = np.frombuffer(offsets, np.int64)[column.offset : column.offset + count + 1]
    lengths = np.diff(ends)
    lengths[nulls_of(column)] = -1
    return Bytes(as_array(b"" if data is None else data), ends[:-1].copy(), lengths)


def nulls_of(column: pa.Array) -> NDArray[np.bool_]:
    """Which entries are null."""
    nulls: NDArray[np.bool_] = pc.is_null(column).to_numpy(zero_copy_only=False)
    return nulls


def _times(records: pa.RecordBatch | pa.Table, now_ms: int, count: int) -> NDArray[np.int64]:
    times = np.full(count, now_ms, np.int64)
    for name, kind in (("create_time", _MILLIS), ("create_time_ms", pa.int64())):  # which wins
        column = typed_column(records, name, kind)
        if column is not None:
            given = ~nulls_of(column)
            filled = pc.fill_null(column.cast(pa.int64()), 0)
            times[given] = filled.to_numpy(zero_copy_only=False)[given]
    return times


def flagged(records: pa.RecordBatch | pa.Table, values: Bytes, count: int) -> NDArray[np.bool_]:
    """Which records say that they are tombstones and have a value (KIP-87).

    Raises ConfigError where one has none and says that it is none.
    """
    column = typed_column(records, "is_tombstone", pa.bool_())
    if column is None:
        return np.zeros(count, np.bool_)
    has_value = values.lengths >= 0
    dead = np.asarray(pc.fill_null(column, False).to_numpy(zero_copy_only=False), np.bool_)
    alive = ~dead & ~nulls_of(column)
    wrong = np.flatnonzero(alive & ~has_value)
    if len(wrong):
        raise ConfigError(
            f"record {wrong[0]}: is_tombstone is false and the value is null (KIP-87)"
        )
    found: NDArray[np.bool_] = dead & has_value
    return found


def headers_column(records: pa.RecordBatch | pa.Table) -> Bytes:
    """Each record's headers as they lie in it, count included, by kernel; null is none.

    Raises ConfigError where there is another type, or a header without a name.
    """
    count = len(records)
    column = typed_column(records, "headers", HEADERS)
    if column is None or count in {0, column.null_count}:
        return no_headers(count)
    lists = np.zeros(count + 1, np.int64)
    lengths = pc.fill_null(pc.list_value_length(column), 0)
    np.cumsum(lengths.to_numpy(zero_copy_only=False), out=lists[1:])
    names, values = (bytes_of(part) for part in column.flatten().flatten())
    sizes = np.empty(count, np.int64)
    total = kernel.headers_sizes(lists, names.lengths, values.lengths, sizes)
    if total < 0:
        raise ConfigError(f"column headers: record {-1 - total} has one without a name")
    out = np.empty(total, np.uint8)
    end = kernel.write_headers(
        lists, names.data, names.starts, names.lengths, values.data, values.starts, values.lengths,
        out,
    )  # fmt: skip
    assert end == total, "headers are as long as they were measured"
    return Bytes(as_array(out), np.cumsum(sizes) - sizes, sizes)
