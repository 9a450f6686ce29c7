"""The sketch of a segment's keys: the kernel against its slow twin, merging, and how far off."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lapse.kernels.layout import HEADER_SIZE
from lapse.kernels.sketch import note_batches, note_records
from lapse.log.sketch import decode_sketch, empty_sketch, encode_sketch, estimate
from lapse.records.batch import as_array, decode_rows, scan_batches
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from tests.property.strategies import keys, new_records, values
from tests.reference.sketch import registers

many_keys = st.lists(st.binary(max_size=40), max_size=60)


def sketched(some: list[bytes]) -> np.ndarray:
    sketch = empty_sketch()
    sketch[:] = registers(some)
    return sketch


@given(st.lists(new_records(), min_size=1, max_size=5))
def test_keys_are_noted_as_the_slow_twin_does(batches: list[list[NewRecord]]) -> None:
    """By batch and by record alike; keyless records count for nothing, null values are counted."""
    data = b"".join(build_batch(records, BatchSpec()) for records in batches)
    buf, rows = as_array(data), scan_batches(data, "t")
    by_batch, by_record = empty_sketch(), empty_sketch()
    starts, ends = rows["position"] + HEADER_SIZE, rows["position"] + rows["size"]
    counts = rows["count"].astype(np.int64)
    nulls = sum(r.value is None for records in batches for r in records)
    assert note_batches(buf, starts, ends, counts, by_batch) == (len(batches), nulls)
    decoded = [decode_rows(data, row, "t") for row in rows]
    assert sum(note_records(plain, records, by_record) for plain, records in decoded) == nulls
    wanted = registers(r.key for records in batches for r in records if r.key is not None)
    assert by_batch.tolist() == by_record.tolist() == wanted


@given(st.lists(st.tuples(keys, values), min_size=1, max_size=4), st.data())
def test_a_batch_that_does_not_parse_ends_the_count(pairs: list, data: st.DataObject) -> None:
    good = build_batch([NewRecord(key, value) for key, value in pairs])
    batch = as_array(good * 3)
    cut = data.draw(st.integers(1, len(good) - HEADER_SIZE))
    starts = np.arange(3, dtype=np.int64) * len(good) + HEADER_SIZE
    ends = starts + len(good) - HEADER_SIZE
    ends[1] -= cut
    counts = np.full(3, len(pairs), np.int64)
    nulls = sum(value is None for _, value in pairs)
    assert note_batches(batch, starts, ends, counts, empty_sketch()) == (1, nulls)


@given(many_keys, many_keys)
def test_merged_sketches_are_the_sketch_of_all_keys(some: list[bytes], more: list[bytes]) -> None:
    assert estimate([sketched(some), sketched(more)]) == estimate([sketched(some + more)])


@given(many_keys)
def test_few_keys_are_counted_nearly_exactly(some: list[bytes]) -> None:
    assert abs(estimate([sketched(some)]) - len(set(some))) <= 2 + len(set(some)) // 8


@given(many_keys)
def test_a_sketch_travels_as_text(some: list[bytes]) -> None:
    sketch = sketched(some)
    back = decode_sketch(encode_sketch(sketch))
    assert back is not None
    assert (back == sketch).all()


@given(st.binary(max_size=2000) | st.text(max_size=40))
def test_what_is_no_sketch_is_none(data: bytes | str) -> None:
    text = data if isinstance(data, str) else encode_sketch(np.frombuffer(data, np.uint8))
    decoded = decode_sketch(text)
    assert decoded is None or (len(data) == 1024 and max(map(int, decoded)) <= 55)
