"""The view of keys against a dict: random logs of every kind, cut into units by hash at random."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from lapse.kernels.key_table import PARTS
from lapse.kernels.layout import CONTROL
from lapse.log.segment import LOG, segment_path
from lapse.records.batch import records_of, scan_batches
from lapse.records.builder import build_batch
from lapse.spark.views.read import read_unit, view_units
from lapse.spark.views.spec import KEYS, ViewOptions, ViewUnit, decode_unit, encode_unit
from lapse.testing.clock import ManualClock
from tests.property.strategies import message_sets, new_records, specs

NOW = 1_700_000_000_000
Told = dict[bytes, tuple[Any, ...]]


@st.composite
def segments(draw: st.DrawFn) -> dict[int, bytes]:
    """Files by base offset, old formats and all codecs, far up the offsets too."""
    found, offset = {}, draw(st.sampled_from([0, 5, 1 << 40]))
    for _ in range(draw(st.integers(1, 3))):
        base, data = offset, b""
        for _ in range(draw(st.integers(0, 4))):
            if draw(st.integers(0, 4)) == 0:
                more = draw(message_sets(offset))
            else:
                records = draw(new_records())
                more = build_batch(records, draw(specs(records, offset)))
            data += more
            offset = int(scan_batches(more, "t")["last_offset"][-1]) + 1
        found[base] = data
        offset = max(offset, base + 1)
    return found


def expected(files: dict[int, bytes]) -> Told:
    told: Told = {}
    for data in files.values():
        for row in scan_batches(data, "t"):
            if row["magic"] == 2 and row["attributes"] & CONTROL:
                continue
            for r in records_of(data, row, "t"):
                if r.key is None:
                    continue
                before = told.get(r.key, (0, 0, 0, 0, 0, 0))
                size = len(r.key) + len(r.value or b"")
                told[r.key] = (
                    r.offset, min(r.timestamp, ((1 << 63) - 1) // 1000),
                    None if r.value is None else len(r.value), r.value is None,
                    before[4] + 1, before[5] + size,
                )  # fmt: skip
    return told


@given(segments(), st.integers(1, 5))
def test_last_record_and_counts_of_every_key(files: dict[int, bytes], units: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        partition_dir = Path(folder) / "t-0"
        partition_dir.mkdir()
        for base, data in files.items():
            segment_path(partition_dir, base, LOG).write_bytes(data)
        options = ViewOptions(KEYS, (folder,), NOW)
        clock = ManualClock(NOW)
        found: Told = {}
        for unit in view_units(options, clock):
            for part in _parts(unit, units):
                for batch in read_unit(decode_unit(encode_unit(part)), clock):
                    batch.validate(full=True)
                    _note(batch, found)
    assert found == expected(files)


def _parts(unit: ViewUnit, count: int) -> Iterator[ViewUnit]:
    [whole] = unit.keys
    cuts = [PARTS * n // count for n in range(count + 1)]
    for part_from, part_until in pairwise(cuts):
        keys = replace(whole, part_from=part_from, part_until=part_until)
        yield replace(unit, keys=(keys,))


def _note(batch: pa.RecordBatch, found: Told) -> None:
    times = batch["timestamp"].cast(pa.int64()).to_pylist()
    names = ("offset", "value_bytes", "is_tombstone", "records", "record_bytes")
    columns = [batch[name].to_pylist() for name in names]
    for n, key in enumerate(batch["key"].to_pylist()):
        assert key not in found
        offset, size, dead, records, record_bytes = (column[n] for column in columns)
        time = -1 if times[n] is None else times[n] // 1000
        found[key] = offset, time, size, dead, records, record_bytes
