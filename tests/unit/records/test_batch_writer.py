"""Batches from columns: byte for byte what the slow builder makes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.records.batch_writer import (
    Bytes,
    RecordFields,
    encoded_headers,
    no_headers,
    split,
    warm_up,
    write_batch,
)
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.layout import Codec

FIELD = st.none() | st.binary(max_size=200)
RECORDS = st.lists(
    st.builds(
        NewRecord,
        FIELD,
        FIELD,
        timestamp=st.integers(-1, 1 << 62),
        headers=st.lists(st.tuples(st.text(max_size=5), FIELD), max_size=3).map(tuple),
        tombstone=st.booleans(),
    ),
    min_size=1,
    max_size=80,
)


def fields_of(records: list[NewRecord]) -> RecordFields:
    return RecordFields(
        Bytes.of(r.key for r in records),
        Bytes.of(r.value for r in records),
        Bytes.of(encoded_headers(r.headers) for r in records),
        np.array([r.timestamp for r in records], np.int64),
        np.array([r.tombstone for r in records], np.bool_),
    )


@given(RECORDS, st.sampled_from(Codec), st.data())
def test_a_range_of_records_is_the_batch_the_builder_makes(
    records: list[NewRecord], codec: Codec, choose: st.DataObject
) -> None:
    first = choose.draw(st.integers(0, len(records) - 1))
    until = choose.draw(st.integers(first + 1, len(records)))
    spec = BatchSpec(codec=codec, producer_id=7, producer_epoch=3, base_sequence=11)
    written = write_batch(fields_of(records), spec, first, until)
    assert bytes(written) == build_batch(records[first:until], spec)


@given(RECORDS)
def test_sizes_are_never_too_small_and_off_by_the_times_at_most(records: list[NewRecord]) -> None:
    fields = fields_of(records)
    for size, record in zip(fields.sizes(), records, strict=True):
        alone = len(build_batch([record])) - 61
        assert alone <= size <= alone + 11


def test_ranges_stay_below_the_size_and_miss_nothing() -> None:
    sizes = np.array([40, 40, 40, 500, 1, 99, 1], np.int64)
    assert list(split(sizes, 100)) == [(0, 2), (2, 3), (3, 4), (4, 6), (6, 7)]
    assert list(split(sizes[:0], 100)) == []


@pytest.mark.parametrize("count", [1, 300])
def test_without_headers(count: int) -> None:
    warm_up()
    records = [NewRecord(b"k%d" % n, None, n) for n in range(count)]
    fields = fields_of(records)
    plain = RecordFields(
        fields.keys, fields.values, no_headers(count), fields.times, fields.tombstones
    )
    assert bytes(write_batch(plain, BatchSpec())) == build_batch(records)
