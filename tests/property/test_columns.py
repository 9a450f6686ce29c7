"""Batches to Arrow against a slow twin, on sound batches and on broken ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.base.errors import CorruptData
from lapse.base.ids import TopicPartition
from lapse.kernels import columns as kernel
from lapse.kernels.layout import CONTROL, HEADER_SIZE, RECORD, VALUED_TOMBSTONES
from lapse.records.batch import as_array, scan_batches, scan_prefix
from lapse.records.builder import build_batch
from lapse.records.columns import TYPES, ColumnSpec, record_batches
from lapse.records.compression import BadCompression, inflate
from lapse.records.layout import Codec
from tests.property.strategies import new_records, specs
from tests.reference import columns as twin

PARTITION = TopicPartition("orders", 3)
OURS = tuple(name for name in TYPES if name not in {"topic", "partition"})
TIMES = {"timestamp", "create_time", "append_time", "horizon"}
ENDLESS = (1 << 63) - 1


def inflate_bytes(codec: int, payload: bytes) -> bytes:
    return inflate(codec, np.frombuffer(payload, np.uint8)).tobytes()


def rows_in(found: list[pa.RecordBatch]) -> list[dict[str, object]]:
    """Rows as Python values, times as microseconds (Python's datetime ends with year 9999)."""
    rows = []
    for batch in found:
        batch.validate(full=True)
        columns = {
            name: (batch[name].cast(pa.int64()) if name in TIMES else batch[name]).to_pylist()
            for name in batch.schema.names
        }
        for n in range(batch.num_rows):
            rows.append({name: column[n] for name, column in columns.items()})
    return rows


@st.composite
def logs(draw: st.DrawFn, *, codecs: bool = True) -> bytes:
    """Some batches one after the other, of any kind a log may hold."""
    data, base_offset = b"", draw(st.integers(0, 5))
    for _ in range(draw(st.integers(0, 4))):
        records = draw(new_records())
        spec = draw(specs(records, base_offset))
        more = draw(st.sampled_from([0, 0, CONTROL, VALUED_TOMBSTONES]))
        codec = spec.codec if codecs else Codec.NONE
        data += build_batch(records, replace(spec, codec=codec, attributes_more=more))
        base_offset += (spec.last_offset_delta or 0) + 1 + draw(st.sampled_from([0, 7]))
    return data


column_specs = st.builds(
    ColumnSpec,
    st.just(OURS),
    offset_from=st.sampled_from([0, 0, 1, 9, 80]),
    offset_until=st.sampled_from([ENDLESS, ENDLESS, 0, 8, 90]),
    control=st.booleans(),
    valued_tombstones=st.booleans(),
    views=st.booleans(),
    records_max=st.sampled_from([1, 2, 3, 1 << 16]),
    bytes_max=st.sampled_from([1, 30, 150, 1 << 20]),
)


def expected_rows(data: bytes, spec: ColumnSpec) -> list[dict[str, object]]:
    return twin.rows_of(
        data,
        inflate_bytes,
        offset_from=spec.offset_from,
        offset_until=spec.offset_until,
        control=spec.control,
        valued_tombstones=spec.valued_tombstones,
    )


@given(logs(), column_specs)
def test_columns_equal_twin(data: bytes, spec: ColumnSpec) -> None:
    """The same rows whatever the split, and no record batch larger than asked for."""
    rows = scan_batches(data, "test")
    found = list(record_batches(data, rows, PARTITION, "test", spec))
    assert rows_in(found) == expected_rows(data, spec)
    for batch in found:
        assert 1 <= batch.num_rows <= spec.records_max
        sizes = [len(x) for name in ("key", "value") for x in batch[name].to_pylist() if x]
        assert batch.num_rows == 1 or sum(sizes) <= spec.bytes_max


@given(logs(), column_specs, st.data())
def test_broken_records_are_refused_at_their_batch(
    data: bytes, spec: ColumnSpec, draw: st.DataObject
) -> None:
    """Any byte of a payload may change: the same rows as the twin's, or its refusal."""
    broken = bytearray(data)
    payloads = [
        at
        for row in scan_batches(data, "test")
        for at in range(row["position"] + HEADER_SIZE, row["position"] + row["size"])
    ]
    if payloads:
        for _ in range(draw.draw(st.integers(1, 4))):
            at = draw.draw(st.sampled_from(payloads))
            broken[at] = draw.draw(st.sampled_from([0, 1, 2, 127, 128, 255]) | st.integers(0, 255))
    check_as_twin(bytes(broken), spec)


@given(logs(codecs=False), column_specs, st.data())
def test_broken_headers_of_batches_are_refused_or_read_alike(
    data: bytes, spec: ColumnSpec, draw: st.DataObject
) -> None:
    """Counts and times that lie; a batch is scanned first, so that its bounds are sound."""
    broken = bytearray(data)
    for row in scan_batches(data, "test"):
        at = draw.draw(st.integers(21, HEADER_SIZE - 1)) + int(row["position"])
        broken[at] = draw.draw(st.sampled_from([0, 1, 127, 128, 255]))
    check_as_twin(bytes(broken), spec)


def check_as_twin(data: bytes, spec: ColumnSpec) -> None:
    rows, covered, _ = scan_prefix(data, check_crc=False)
    data = data[:covered]
    if (rows["magic"] < 2).any():
        return
    refused, expected = False, []
    try:
        expected = expected_rows(data, spec)
    except (twin.BadData, BadCompression):
        refused = True
    found = record_batches(data, rows, PARTITION, "test", spec)
    if not refused:
        assert rows_in(list(found)) == expected
        return
    with pytest.raises(CorruptData, match=r"^test: ") as refusal:
        list(found)
    assert refusal.value.position in rows["position"]


# --- what the kernels themselves refuse -----------------------------------------------------------

positions = st.integers(-3, 40) | st.sampled_from([1 << 31, 1 << 62, -(1 << 62)])


@given(st.binary(max_size=30), st.lists(st.tuples(positions, positions), max_size=4), positions)
def test_rows_that_point_outside_are_refused(
    data: bytes, places: list[tuple[int, int]], room: int
) -> None:
    """A row of RECORD is only believed as far as the arrays reach."""
    plain, count = as_array(data), len(places)
    records = np.zeros(count, RECORD)
    for row, (position, length) in zip(records, places, strict=True):
        row["value_position"], row["value_length"] = position, length
    sizes = [max(length, 0) for _, length in places]
    inside = all(
        length < 0 or (position >= 0 and position + length <= len(data))
        for position, length in places
    )
    room = max(0, min(room, 200))
    target, offsets = np.full(room + 8, 7, np.uint8), np.empty(count + 1, np.int32)
    validity = np.zeros(count // 8 + 1, np.uint8)
    done = kernel.gather(plain, records, kernel.VALUE, offsets, validity, target[:room])
    assert (target[room:] == 7).all()
    if inside and sum(sizes) <= room:
        parts = [data[p : p + n] if n >= 0 else b"" for p, n in places]
        assert target[:done].tobytes() == b"".join(parts)
        assert np.diff(offsets).tolist() == sizes
    else:
        assert done == -1
    views = np.zeros(kernel.VIEW_BYTES * count, np.uint8)
    validity[:] = 0
    assert (kernel.point(plain, records, kernel.VALUE, views, validity) == 0) == inside


def test_too_little_room_is_refused() -> None:
    """And what lies behind it is not touched."""
    plain, records = as_array(b"0123456789"), np.zeros(2, RECORD)
    records["key_position"], records["key_length"] = [0, 4], [4, 6]
    offsets, none = np.empty(3, np.int32), np.empty(0, np.uint8)
    for room in range(10):
        target = np.full(16, 7, np.uint8)
        assert kernel.gather(plain, records, kernel.KEY, offsets, none, target[:room]) == -1
        assert (target[room:] == 7).all()
    assert kernel.gather(plain, records, kernel.KEY, offsets[:2], none, target) == -1
    assert kernel.gather(plain, records, kernel.KEY, offsets, none, target) == 10


@given(st.binary(max_size=30), positions, positions)
def test_headers_outside_are_refused(data: bytes, at: int, size: int) -> None:
    records = np.zeros(1, RECORD)
    records["position"], records["size"], records["headers_position"] = 0, size, at
    totals = np.empty(4, np.int64)
    bad = kernel.measure_headers(as_array(data), records, totals)
    if at < 0 or size > len(data) or at > size:
        assert bad == 0
