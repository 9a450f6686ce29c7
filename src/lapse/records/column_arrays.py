"""Arrow arrays, one column each, of decoded records. Called by `columns` only."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lapse.base.errors import CorruptData
from lapse.kernels import columns as kernel
from lapse.kernels.layout import CONTROL, DELETE_HORIZON, RECORD_TOMBSTONE, VALUED_TOMBSTONES
from lapse.records.column_chunk import Chunk, room_for
from lapse.records.column_spec import HEADERS, TIME, TIME_MS_MAX, TYPES, ColumnSpec
from lapse.records.layout import NO_PRODUCER_ID, NO_TIMESTAMP

_EMPTY = np.empty(0, np.uint8)


def _bitmap(valid: NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


def _fixed(
    kind: pa.DataType, values: NDArray[Any], valid: NDArray[np.bool_] | None = None
) -> pa.Array:
    """Values of a fixed width, as they are in memory."""
    buffer = _bitmap(values) if values.dtype == np.bool_ else pa.py_buffer(values)
    if valid is None or valid.all():
        return pa.Array.from_buffers(kind, len(values), [None, buffer], 0)
    nulls = len(values) - int(np.count_nonzero(valid))
    return pa.Array.from_buffers(kind, len(values), [_bitmap(valid), buffer], nulls)


def _micros(times_ms: NDArray[np.int64]) -> NDArray[np.int64]:
    """In place."""
    np.clip(times_ms, -TIME_MS_MAX, TIME_MS_MAX, out=times_ms)
    return np.multiply(times_ms, 1000, out=times_ms)


def _time_of_batches(chunk: Chunk, field: str, valid: NDArray[np.bool_]) -> pa.Array:
    """A header field, null where it does not count."""
    if not valid.any():
        return pa.nulls(len(chunk.records), TIME)
    values = _micros(chunk.batches[field].copy())
    return _fixed(TIME, chunk.each(values), None if valid.all() else chunk.each(valid))


def _bytes_column(which: int) -> Callable[[Chunk, ColumnSpec], pa.Array]:
    def make(chunk: Chunk, spec: ColumnSpec) -> pa.Array:
        records, count = chunk.records, len(chunk.records)
        n_bytes, nulls = kernel.measure(records, which)
        validity = np.zeros(-(-count // 8) if nulls else 0, np.uint8)
        bitmap = pa.py_buffer(validity) if nulls else None
        if spec.views:
            views = np.zeros(kernel.VIEW_BYTES * count, np.uint8)
            done = kernel.point(chunk.plain, records, which, views, validity)
            kind, buffers = pa.binary_view(), [pa.py_buffer(views), pa.py_buffer(chunk.plain)]
        else:
            offsets, data = np.empty(count + 1, np.int32), room_for(n_bytes, np.uint8)
            done = kernel.gather(chunk.plain, records, which, offsets, validity, data)
            kind, buffers = pa.binary(), [pa.py_buffer(offsets), pa.py_buffer(data)]
        assert done >= 0, "decoded records lie in their batch"
        return pa.Array.from_buffers(kind, count, [bitmap, *buffers], nulls)

    return make


def _offset(chunk: Chunk, _: ColumnSpec) -> pa.Array:
    return _fixed(TYPES["offset"], chunk.offsets())


def _timestamp(chunk: Chunk, _: ColumnSpec) -> pa.Array:
    times, timed = chunk.create_times(), chunk.append_timed()
    if timed.any():
        shown = chunk.each(chunk.batches["max_timestamp"])
        np.copyto(times, shown, where=chunk.each(timed))
    return _fixed(TIME, _micros(times))


def _timestamp_type(chunk: Chunk, _: ColumnSpec) -> pa.Array:
    kinds = np.where(chunk.batches["magic"] == 0, -1, chunk.append_timed()).astype(np.int32)
    return _fixed(TYPES["timestampType"], chunk.each(kinds))


def _create_time(chunk: Chunk, _: ColumnSpec) -> pa.Array:
    times, valid = _known_create_times(chunk)
    return _fixed(TIME, _micros(times), valid)


def _create_time_ms(chunk: Chunk, _: ColumnSpec) -> pa.Array:
    return _fixed(TYPES["create_time_ms"], *_known_create_times(chunk))


def _known_create_times(chunk: Chunk) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """In milliseconds, and which of them count."""
    times = chunk.create_times()
    valid = times != NO_TIMESTAMP
    if chunk.flattened.any():
        valid &= ~chunk.each(chunk.flattened)
    return times, valid


def _append_time(chunk: Chunk, spec: ColumnSpec) -> pa.Array:
    timed = chunk.append_timed()
    if not len(spec.append_times.offsets) or timed.all():
        known = timed & (chunk.batches["max_timestamp"] != NO_TIMESTAMP)
        return _time_of_batches(chunk, "max_timestamp", known)
    beside = spec.append_times.shown(chunk.batches["base_offset"])
    times = chunk.each(np.where(timed, chunk.batches["max_timestamp"], beside))
    valid = times != NO_TIMESTAMP
    return _fixed(TIME, _micros(times), valid)


def _horizon(chunk: Chunk, _: ColumnSpec) -> pa.Array:
    return _time_of_batches(chunk, "base_timestamp", chunk.flag(DELETE_HORIZON))


def _producer_id(chunk: Chunk, _: ColumnSpec) -> pa.Array:
    ids = chunk.batches["producer_id"]
    known = ids != NO_PRODUCER_ID
    if not known.any():
        return pa.nulls(len(chunk.records), TYPES["producer_id"])
    valid = None if known.all() else chunk.each(known)
    return _fixed(TYPES["producer_id"], chunk.each(ids), valid)


def _is_tombstone(chunk: Chunk, spec: ColumnSpec) -> pa.Array:
    dead = chunk.records["value_length"] < 0
    if spec.valued_tombstones:
        may_flag = chunk.each(chunk.flag(VALUED_TOMBSTONES))
        dead |= may_flag & (chunk.records["attributes"] & RECORD_TOMBSTONE != 0)
    return _fixed(TYPES["is_tombstone"], dead)


def _control(chunk: Chunk, _: ColumnSpec) -> pa.Array:
    return _fixed(TYPES["control"], chunk.each(chunk.flag(CONTROL)))


MAKERS: dict[str, Callable[[Chunk, ColumnSpec], pa.Array]] = {
    "key": _bytes_column(kernel.KEY),
    "value": _bytes_column(kernel.VALUE),
    "offset": _offset,
    "timestamp": _timestamp,
    "timestampType": _timestamp_type,
    "create_time": _create_time,
    "append_time": _append_time,
    "is_tombstone": _is_tombstone,
    "horizon": _horizon,
    "producer_id": _producer_id,
    "control": _control,
    "create_time_ms": _create_time_ms,
}


def headers(chunk: Chunk, where: str) -> pa.Array:
    plain, records, count = chunk.plain, chunk.records, len(chunk.records)
    totals = np.empty(4, np.int64)
    bad = kernel.measure_headers(plain, records, totals)
    if bad >= 0:
        position = int(chunk.batches["position"][chunk.owner[bad]])
        raise CorruptData(where, position, "record headers do not parse")
    n, name_bytes, value_bytes, null_values = totals.tolist()
    if not n:
        return pa.nulls(count, HEADERS)
    lists, validity = np.empty(count + 1, np.int32), np.zeros(-(-count // 8), np.uint8)
    name_at, names = np.empty(n + 1, np.int32), np.empty(name_bytes, np.uint8)
    value_at, values = np.empty(n + 1, np.int32), np.empty(value_bytes, np.uint8)
    value_validity = np.zeros(-(-n // 8), np.uint8)
    every_byte = kernel.gather_headers(
        plain, records, lists, validity, name_at, names, value_at, value_validity, values
    )
    assert every_byte >= 0, "headers are as large as they were measured"
    keys = _names(name_at, names) if every_byte > 0x7F else _variable(pa.string(), name_at, names)
    pairs = pa.StructArray.from_arrays(
        [keys, _variable(pa.binary(), value_at, values, value_validity, null_values)],
        fields=list(HEADERS.value_type),
    )
    return pa.Array.from_buffers(
        HEADERS, count, [pa.py_buffer(validity), pa.py_buffer(lists)], children=[pairs]
    )


def _variable(
    kind: pa.DataType,
    places: NDArray[np.int32],
    data: NDArray[np.uint8],
    validity: NDArray[np.uint8] = _EMPTY,
    nulls: int = 0,
) -> pa.Array:
    bitmap = pa.py_buffer(validity) if nulls else None
    buffers = [bitmap, pa.py_buffer(places), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, len(places) - 1, buffers, nulls)


def _names(places: NDArray[np.int32], data: NDArray[np.uint8]) -> pa.Array:
    """Names that are not all ASCII: what is no UTF-8 is replaced, as consumers do."""
    whole = data.tobytes()
    texts = [whole[begin:end].decode(errors="replace") for begin, end in pairwise(places.tolist())]
    return pa.array(texts, pa.string())
