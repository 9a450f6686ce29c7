"""Rows to batches against a slow twin: every record, once, in order, where Kafka puts it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from lapse.base.ids import TopicPartition
from lapse.kernels.layout import HEADER_SIZE
from lapse.records.batch import plain_records, scan_batches
from lapse.records.builder import BatchSpec, build_batch
from lapse.records.column_spec import HEADERS, TIME
from lapse.records.from_arrow import WriteSpec, encode_batches
from lapse.records.layout import Codec
from tests.reference.from_arrow import records_by_partition

NOW = 1_700_000_000_000
COUNTS = {"a": 1, "b": 3, "c": 12}
MICROS = st.none() | st.just(-1000) | st.integers(0, 1 << 62)
FIELD = st.none() | st.binary(max_size=40)


@st.composite
def rows(draw: st.DrawFn) -> dict[str, Any]:
    topic, value = draw(st.sampled_from("abc")), draw(FIELD)
    pairs = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3)
    return {
        "topic": topic,
        "partition": draw(st.none() | st.integers(0, COUNTS[topic] - 1)),
        "key": draw(FIELD),
        "value": value,
        "headers": draw(st.none() | pairs),
        "timestamp": draw(MICROS),
        "create_time": draw(MICROS),
        "create_time_ms": draw(st.none() | st.integers(-(1 << 63), (1 << 63) - 1)),
        "is_tombstone": draw(st.sampled_from([None, True, False] if value is not None else [None])),
    }


TYPES = {
    "topic": pa.string(), "partition": pa.int32(), "key": pa.binary(), "value": pa.binary(),
    "headers": HEADERS, "timestamp": TIME, "create_time": TIME, "create_time_ms": pa.int64(),
    "is_tombstone": pa.bool_(),
}  # fmt: skip


def table(found: list[dict[str, Any]], chunks: int) -> pa.Table:
    def column(name: str) -> list[Any]:
        if name != "headers":
            return [row[name] for row in found]
        return [
            None if row[name] is None else [{"key": k, "value": v} for k, v in row[name]]
            for row in found
        ]

    whole = pa.table({name: pa.array(column(name), kind) for name, kind in TYPES.items()})
    size = max(len(found) // chunks, 1)
    return pa.concat_tables([whole.slice(n, size) for n in range(0, len(found), size)])


@given(st.lists(rows(), min_size=1, max_size=40), st.sampled_from(Codec), st.data())
def test_batches_are_what_the_builder_makes_of_each_partitions_rows(
    found: list[dict[str, Any]], codec: Codec, choose: st.DataObject
) -> None:
    keyless_from = choose.draw(st.integers(0, 30))
    bytes_max = choose.draw(st.sampled_from([HEADER_SIZE + 1, 200, 500, 1 << 20]))
    expected = records_by_partition(found, COUNTS, NOW, keyless_from)
    spec = WriteSpec(
        COUNTS, NOW, tombstone_values=frozenset(COUNTS), codec=codec, batch_bytes_max=bytes_max,
        keyless_from=keyless_from,
    )  # fmt: skip
    seen: list[TopicPartition] = []
    for batch in encode_batches(table(found, choose.draw(st.integers(1, 3))), spec):
        taken = expected[batch.partition][: batch.records]
        if any(record.tombstone for record in taken):  # then null values must say so too
            taken = [replace(r, tombstone=r.tombstone or r.value is None) for r in taken]
        assert bytes(batch.data) == build_batch(taken, BatchSpec(codec=codec))
        del expected[batch.partition][: batch.records]
        [row] = scan_batches(batch.data, "t")
        plain = HEADER_SIZE + len(plain_records(batch.data, row, "t"))
        assert plain <= bytes_max or batch.records == 1
        seen.append(batch.partition)
    assert not any(expected.values())
    assert seen == sorted(seen)
