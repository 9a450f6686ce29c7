"""Arrow rows to record batches, partition by partition: what the data source writes.

Columns as Spark's Kafka sink has them (`key`, `value`, `headers`, `topic`, `partition`), and ours:

- `timestamp`: the record's create time; `create_time`, where there is one, wins: a copy of a
  LogAppendTime topic keeps what the producer said (KIP-32). Where both are null, `now_ms`. One
  before 1970 is refused, as Kafka's producers do, save -1 ms, which is none. So is one that
  `columns` gives for times that do not fit: it is not what the record says.
- `create_time_ms` wins over both. It is written as it is, whatever it is: brokers judge it (T-1).
- `is_tombstone`: true with a value flags the record (KIP-87), only for topics that have such; false
  without a value is refused; null, or no such column: a null value is a tombstone.

Where `partition` is null the key chooses as in Kafka's clients; records with neither go together
(`WriteSpec.keyless_from`). What else the data source reads is left out; other names are refused,
and so is a control record, which would become data.

All records are judged before the first batch is handed out. Records of one partition keep their
order. The slow twin is `tests/reference/from_arrow.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lapse.base.errors import ConfigError
from lapse.base.ids import TopicPartition
from lapse.kernels.jit import first_compile
from lapse.kernels.layout import HEADER_SIZE
from lapse.kernels.murmur2 import place_keys
from lapse.records.arrow_fields import (
    bytes_column,
    flagged,
    headers_column,
    nulls_of,
    typed_column,
)
from lapse.records.batch_writer import Bytes, RecordFields, split, write_batch
from lapse.records.builder import BatchSpec
from lapse.records.column_spec import HEADERS, TIME_MS_MAX, TYPES
from lapse.records.layout import NO_TIMESTAMP, Codec

_BATCH_BYTES_MAX = 1 << 20  # what a broker takes by default
_TICKS_A_MS = {"ms": 1, "us": 1000, "ns": 1_000_000}
_NO_PARTITION = -1

Rows: TypeAlias = "pa.RecordBatch | pa.Table"


@dataclass(frozen=True, slots=True)
class WriteSpec:
    """How rows become batches.

    Attributes:
        topics: the partitions of each topic that may be written to.
        topic: where all records go, whatever their column says; None: each says so itself.
        tombstone_values: topics with `lapse.tombstone.values.enable`.
        now_ms: create time of records that name none.
        batch_bytes_max: of a batch before it is compressed; a larger record has one to itself.
        keyless_from: the partition, modulo their count, of records with neither partition nor key.
    """

    topics: Mapping[str, int]
    now_ms: int
    topic: str | None = None
    tombstone_values: frozenset[str] = frozenset()
    codec: Codec = Codec.NONE
    batch_bytes_max: int = _BATCH_BYTES_MAX
    keyless_from: int = 0


@dataclass(frozen=True, slots=True)
class PlacedRecords:
    """Records of one partition, in their order."""

    partition: TopicPartition
    fields: RecordFields


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """A batch of format v2 for one partition; base offset and leader epoch are the broker's."""

    partition: TopicPartition
    data: bytearray
    records: int


def encode_batches(rows: Rows, spec: WriteSpec) -> Iterator[EncodedBatch]:
    """The rows as batches, ascending by topic and partition; raises as `place_records`."""
    for placed in place_records(rows, spec):
        yield from _batches(placed.fields, placed.partition, spec)


def place_records(rows: Rows, spec: WriteSpec) -> list[PlacedRecords]:
    """The rows by topic and partition, ascending; for who numbers batches himself (KIP-98).

    Raises ConfigError, which names the column and the first record, where something cannot be
    written so.
    """
    check_columns(rows.schema.names)
    control = typed_column(rows, "control", pa.bool_())
    if control is not None:
        _refuse_first(_true(control), "is a control record, which only a broker writes")
    count = len(rows)
    if not count:
        return []
    values = bytes_column(rows, "value", count)
    fields = RecordFields(
        keys=bytes_column(rows, "key", count),
        values=values,
        headers=headers_column(rows),
        times=_times(rows, spec.now_ms),
        tombstones=flagged(rows, values, count),
    )
    names, codes = _topics(rows, spec)
    places = _places(rows, fields.keys, np.array([spec.topics[n] for n in names])[codes], spec)
    _check_flags(fields, names, codes, spec)
    order = np.lexsort((places, codes))  # stable: offsets will ascend as the rows do
    fields, codes, places = _taken(fields, order), codes[order], places[order]
    edges = np.flatnonzero((np.diff(codes) != 0) | (np.diff(places) != 0)) + 1
    return [
        PlacedRecords(
            TopicPartition(names[codes[begin]], int(places[begin])),
            _taken(fields, slice(begin, end)),
        )
        for begin, end in pairwise([0, *edges.tolist(), count])
    ]


def _batches(
    fields: RecordFields, partition: TopicPartition, spec: WriteSpec
) -> Iterator[EncodedBatch]:
    for first, until in split(fields.sizes(), spec.batch_bytes_max - HEADER_SIZE):
        some = _taken(fields, slice(first, until))
        if some.tombstones.any():  # then null values must say so too (KIP-87)
            some = replace(some, tombstones=some.tombstones | (some.values.lengths < 0))
        yield EncodedBatch(partition, write_batch(some, BatchSpec(codec=spec.codec)), until - first)


def _taken(fields: RecordFields, which: slice | NDArray[np.int64]) -> RecordFields:
    """Some records, maybe in another order; their bytes stay where they are."""

    def bytes_taken(column: Bytes) -> Bytes:
        return Bytes(column.data, column.starts[which], column.lengths[which])

    return RecordFields(
        bytes_taken(fields.keys), bytes_taken(fields.values), bytes_taken(fields.headers),
        fields.times[which], fields.tombstones[which],
    )  # fmt: skip


# --- what is written where ------------------------------------------------------------------------


def check_columns(names: Collection[str]) -> None:
    """Raises ConfigError where records with such columns cannot be written."""
    unknown = [name for name in names if name not in TYPES]
    if unknown or "value" not in names:
        wrong = f"no column {unknown[0]!r}" if unknown else "column value is missing"
        raise ConfigError(
            f"{wrong}: written are key, value, headers, topic, partition, timestamp (or "
            "create_time, create_time_ms) and is_tombstone; what else the source reads is left out"
        )


def _topics(rows: Rows, spec: WriteSpec) -> tuple[list[str], NDArray[np.int64]]:
    """The topics, ascending, and each record's place among them."""
    column = None if spec.topic is not None else typed_column(rows, "topic", pa.string())
    if column is None:
        if spec.topic is None:
            raise ConfigError("column topic is missing, and no topic is given for all records")
        column = pa.repeat(pa.scalar(spec.topic), len(rows))
    _refuse_first(nulls_of(column), "has no topic")
    encoded = column.dictionary_encode()
    found = encoded.dictionary.to_pylist()
    for name in found:
        if spec.topics.get(name, 0) < 1:
            raise ConfigError(f"topic {name} is not there to be written to: make it first")
    names = sorted(found)
    rank = np.array([names.index(name) for name in found], np.int64)
    return names, rank[encoded.indices.to_numpy(zero_copy_only=False)]


def _places(
    rows: Rows, keys: Bytes, counts: NDArray[np.int64], spec: WriteSpec
) -> NDArray[np.int64]:
    column = typed_column(rows, "partition", pa.int64())
    places = np.full(len(rows), _NO_PARTITION, np.int64)
    if column is not None:
        given = ~nulls_of(column)
        named = np.asarray(pc.fill_null(column, 0).to_numpy(zero_copy_only=False), np.int64)
        beyond = given & ((named < 0) | (named >= counts))
        _refuse_first(beyond, "names a partition that its topic does not have")
        places[given] = named[given]
    bad = place_keys(keys.data, keys.starts, keys.lengths, counts, places)
    assert bad < 0, "keys of an Arrow column lie in it"
    keyless = places < 0
    places[keyless] = spec.keyless_from % counts[keyless]
    return places


def _times(rows: Rows, now_ms: int) -> NDArray[np.int64]:
    """`create_time_ms`, else `create_time`, else `timestamp`, else now, in milliseconds."""
    times = np.full(len(rows), now_ms, np.int64)
    for name in ("timestamp", "create_time"):  # the later one wins
        unit, kind = _ticks(rows, name)
        column = typed_column(rows, name, kind)
        if column is None:
            continue
        given = ~nulls_of(column)
        ticks = pc.fill_null(column.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
        times[given] = (ticks // _TICKS_A_MS[unit])[given]
    exact = typed_column(rows, "create_time_ms", pa.int64())
    known = np.zeros(len(rows), np.bool_) if exact is None else ~nulls_of(exact)
    _refuse_first(
        ~known & (np.abs(times) == TIME_MS_MAX),
        "has a time that a timestamp does not hold; column create_time_ms has it in milliseconds",
    )
    _refuse_first(~known & (times < NO_TIMESTAMP), "has a timestamp before 1970")
    if exact is not None:
        times[known] = pc.fill_null(exact, 0).to_numpy(zero_copy_only=False)[known]
    return times


def _ticks(rows: Rows, name: str) -> tuple[str, pa.DataType]:
    """In which unit a column of times is taken, and as which type."""
    if name not in rows.schema.names:
        return "ms", pa.timestamp("ms")
    kind = rows.schema.field(name).type
    if pa.types.is_null(kind):
        return "ms", pa.timestamp("ms")
    if not pa.types.is_timestamp(kind) or kind.tz is None:
        raise ConfigError(
            f"column {name} of type {kind}: allowed is a timestamp with a time zone, in Spark "
            "TIMESTAMP and not TIMESTAMP_NTZ, which says no moment"
        )
    unit = "ms" if kind.unit == "s" else kind.unit
    return unit, pa.timestamp(unit, kind.tz)


def _check_flags(
    fields: RecordFields, names: list[str], codes: NDArray[np.int64], spec: WriteSpec
) -> None:
    """A flag that is not read would turn a tombstone into a live value."""
    lacking = np.array([name not in spec.tombstone_values for name in names])[codes]
    _refuse_first(
        fields.tombstones & lacking,
        "is a tombstone with a value, and its topic has no lapse.tombstone.values.enable",
    )


def _true(column: pa.Array) -> NDArray[np.bool_]:
    return np.asarray(pc.fill_null(column, False).to_numpy(zero_copy_only=False), np.bool_)


def _refuse_first(wrong: NDArray[np.bool_], what: str) -> None:
    if wrong.any():
        raise ConfigError(f"record {int(np.argmax(wrong))} {what}")


def warm_up() -> None:
    """Compile or load the kernels, once on this machine under a lock."""
    headers = pa.array([[{"key": "h", "value": b"v"}]], HEADERS)
    row = pa.table({"key": [b"k"], "value": [b"v"], "headers": headers})
    with first_compile("from-arrow"):
        list(encode_batches(row, WriteSpec({"warm-up": 1}, now_ms=0, topic="warm-up")))
