"""Batches to Arrow: a range of batches of any format as `pyarrow.RecordBatch`es.

The columns are those of Spark's Kafka source, under its names and with its types, then ours:

- `key`, `value`: null stays null, empty stays empty.
- `topic`, `partition`, `offset`.
- `timestamp`: what a consumer is shown, which is the append time on LogAppendTime batches; -1 ms
  where there is none. `timestampType`: 0 CreateTime, 1 LogAppendTime, -1 none (v0).
- `headers`: null where a record has none, as in Spark's Kafka source.
- `create_time`: what the producer said (KIP-32); null where it said nothing, or where it is lost.
- `append_time`: on CreateTime batches, which do not have one, what is known beside them
  (`append_times`), up to a second early; null where nothing is.
- `is_tombstone`: a null value; unless `valued_tombstones` is off, also KIP-87's flag.
- `horizon`: the delete horizon of the record's batch (KIP-534), or null.
- `producer_id`: null without one.
- `control`: whether it is a control record; such records are handed out only on request.
- `create_time_ms`: `create_time` in ms, also where it does not fit into microseconds.

**A lost create time.** When Kafka's cleaner rewrites a LogAppendTime batch, every create time in it
becomes the append time (L15). So where *all* records of a LogAppendTime batch claim to be created
at the very millisecond of the append, their create time is taken to be lost, unless the batch is
known to be from a segment that no such cleaner has rewritten (`create_times_kept`).

Times are microseconds, as Spark has them; one that does not fit is the nearest that does.

A column that is not requested is not made, and of records that `conditions` leave out only what
judging them takes. Memory is bounded: a record batch has at most
`records_max` records, and keys and values of at most `bytes_max` bytes (a single larger record has
one to itself). With `views`, keys and values are not copied where their batch is not compressed,
but pointed at (Arrow's `binary_view`, which Spark does not take).

Used by `client` and `spark` only: a broker imports no Arrow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lapse.base.errors import CorruptData
from lapse.base.ids import TopicPartition
from lapse.kernels import columns as kernel
from lapse.kernels.jit import first_compile
from lapse.kernels.layout import CODEC_MASK, CONTROL, HEADER_SIZE, RECORD
from lapse.records.batch import Buffer, as_array, runs, scan_batches
from lapse.records.batch_writer import split
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.column_arrays import MAKERS, headers
from lapse.records.column_chunk import Chunk, Rows, messages, wrappers
from lapse.records.column_filter import among, matching
from lapse.records.column_spec import TYPES, WITHOUT_HEADERS, ColumnSpec, schema_of
from lapse.records.compression import BadCompression, inflate
from lapse.records.layout import Codec

_INFLATED_BYTES = 2 << 20  # compressed batches are inflated until they are this much


def record_batches(
    buffer: Buffer, rows: Rows, partition: TopicPartition, where: str, spec: ColumnSpec | None
) -> Iterator[pa.RecordBatch]:
    """The batches `rows` (of BATCH, in `buffer`) as Arrow; see `ArrowColumns`."""
    return ArrowColumns(partition, spec or ColumnSpec()).convert(buffer, rows, where)


class ArrowColumns:
    """Turns batches of one partition into record batches of one schema; keeps what is constant.

    Attributes:
        schema: of every record batch.
        spec: what to make; between two calls of `convert` anything but `names` may change.
    """

    def __init__(self, partition: TopicPartition, spec: ColumnSpec) -> None:
        """Raises ConfigError on an unknown column."""
        self.schema = schema_of(spec)
        self.spec = spec
        self._partition = partition
        self._constants: dict[str, pa.Array] = {}
        self._room: NDArray[np.uint8] | None = None
        self._spare: list[tuple[Rows, NDArray[np.int32]]] = []

    def convert(self, buffer: Buffer, rows: Rows, where: str) -> Iterator[pa.RecordBatch]:
        """What `rows` (of BATCH, in `buffer`) hold.

        Raises CorruptData with `where` and the position of the first batch that cannot be decoded,
        some time before its records would come.
        """
        data = as_array(buffer)
        if self.spec.views and len(data) > kernel.VIEWED_BYTES_MAX:
            raise ValueError("views reach 2 GiB of a buffer and no further")
        for chunk in self._chunks(data, self._wanted(rows), where):
            kept = self._filtered(chunk, where)
            if len(kept.records):
                yield self._assembled(kept, where)

    def _wanted(self, rows: Rows) -> Rows:
        spec, modern = self.spec, rows["magic"] == 2
        # Where a wrapper's first record lies, its header does not say; nor, where its offset is 0,
        # the last (T-11).
        wanted = rows["last_offset"] >= spec.offset_from
        wanted |= ~modern & (rows["last_offset"] == 0)
        wanted &= ~modern | (rows["base_offset"] < spec.offset_until)
        wanted &= rows["count"] != 0
        if spec.offsets is not None:
            first, after = np.searchsorted(
                spec.offsets, [rows["base_offset"], rows["last_offset"] + 1]
            )
            wanted &= ~modern | (first < after)
        if not spec.control:
            wanted &= ~modern | (rows["attributes"] & CONTROL == 0)
        return rows if wanted.all() else rows[wanted]

    def _chunks(self, data: NDArray[np.uint8], rows: Rows, where: str) -> Iterator[Chunk]:
        """Runs of one format; plain v2 batches are decoded where they lie."""
        for run in runs(rows, rows["magic"]):
            if run["magic"][0] < 2:
                yield from self._of_legacy(data, run, where)
            elif (run["attributes"] & CODEC_MASK).any():
                yield from self._of_packed(data, run, where)
            else:
                starts = run["position"] + HEADER_SIZE
                yield from self._decoded(data, run, starts, run["position"] + run["size"], where)

    def _of_packed(self, data: NDArray[np.uint8], run: Rows, where: str) -> Iterator[Chunk]:
        """Batches inflated and laid one after the other, some at a time.

        In a room that is used again and fits the processor's cache: fresh memory would cost more
        than decoding.
        """
        room = np.empty(_INFLATED_BYTES, np.uint8) if self._room is None else self._room
        self._room = None
        ends: list[int] = []
        first = 0
        places = zip(
            run["position"].tolist(), run["size"].tolist(), run["attributes"].tolist(), strict=True
        )
        for n, (position, size, attributes) in enumerate(places):
            payload = data[position + HEADER_SIZE : position + size]
            try:
                plain = inflate(attributes & CODEC_MASK, payload)
            except BadCompression as e:
                raise CorruptData(where, position, str(e)) from e
            at = ends[-1] if ends else 0
            if at + len(plain) > len(room):
                yield from self._laid_together(room, ends, run[first:n], where)
                at, first, ends = 0, n, []
                if self.spec.views:
                    room = np.empty(_INFLATED_BYTES, np.uint8)  # the other one is pointed into
            if len(plain) > len(room):
                yield from self._laid_together(plain, [len(plain)], run[n : n + 1], where)
                first = n + 1
            else:
                room[at : at + len(plain)] = plain
                ends.append(at + len(plain))
        yield from self._laid_together(room, ends, run[first:], where)
        if not self.spec.views:
            self._room = room

    def _laid_together(
        self, plain: NDArray[np.uint8], ends: list[int], batches: Rows, where: str
    ) -> Iterator[Chunk]:
        if ends:
            starts = np.array([0, *ends[:-1]], np.int64)
            whole = as_array(plain[: ends[-1]])
            yield from self._decoded(whole, batches, starts, np.array(ends, np.int64), where)

    def _decoded(
        self,
        plain: NDArray[np.uint8],
        batches: Rows,
        starts: NDArray[np.int64],
        ends: NDArray[np.int64],
        where: str,
    ) -> Iterator[Chunk]:
        spec = self.spec
        flattened = np.zeros(len(batches), np.bool_)
        if not spec.create_times_kept:
            kernel.find_flattened(plain, batches, starts, ends, flattened)
        cursor = np.zeros(3, np.int64)
        room = min(spec.records_max, max(1, int(batches["count"].sum(dtype=np.int64))))
        records, owner = scratch = self._scratch(room)
        while cursor[kernel.BATCH_AT] < len(batches):
            n = kernel.decode_batches(
                plain, batches, starts, ends, cursor, spec.offset_from, spec.offset_until,
                spec.bytes_max, records, owner,
            )  # fmt: skip
            if n < 0:
                position = int(batches["position"][cursor[kernel.BATCH_AT]])
                record = int(cursor[kernel.RECORD_AT])
                raise CorruptData(where, position, f"record {record} does not parse")
            yield Chunk(plain, batches, flattened, records[:n], owner[:n])
        self._spare.append(scratch)

    def _scratch(self, room: int) -> tuple[Rows, NDArray[np.int32]]:
        """Rows to decode into; used again, since fresh memory costs as much as decoding."""
        while self._spare:
            scratch = self._spare.pop()
            if len(scratch[0]) >= room:
                return scratch
        room = min(1 << (room - 1).bit_length(), self.spec.records_max)  # for the next ones too
        return np.empty(room, RECORD), np.empty(room, np.int32)

    def _of_legacy(self, data: NDArray[np.uint8], rows: Rows, where: str) -> Iterator[Chunk]:
        """Messages on disk by the run; wrappers each for itself, inflated and laid together."""
        for run in runs(rows, rows["attributes"] & CODEC_MASK != 0):
            if run["attributes"][0] & CODEC_MASK:
                chunks = wrappers(data, run, where, _INFLATED_BYTES)
            else:
                several = range(0, len(run), self.spec.records_max)
                chunks = (
                    messages(data, run[n : n + self.spec.records_max], where) for n in several
                )
            for chunk in chunks:
                yield from self._in_range(chunk)

    def _in_range(self, chunk: Chunk) -> Iterator[Chunk]:
        """What `decode_batches` does as it goes: leave out, and split."""
        offsets = chunk.offsets()
        inside = (self.spec.offset_from <= offsets) & (offsets < self.spec.offset_until)
        records, owner = chunk.records[inside], chunk.owner[inside]
        sizes = np.maximum(records["key_length"], 0) + np.maximum(records["value_length"], 0)
        for begin, end in split(sizes, self.spec.bytes_max, self.spec.records_max):
            yield Chunk(
                chunk.plain, chunk.batches, chunk.flattened, records[begin:end], owner[begin:end]
            )

    def _filtered(self, chunk: Chunk, where: str) -> Chunk:
        """Made of all records are only the columns that the conditions name."""
        if self.spec.offsets is not None:
            chunk = chunk.only(among(chunk.offsets(), self.spec.offsets))
        if not self.spec.conditions or not len(chunk.records):
            return chunk
        spec = replace(self.spec, views=False)
        named = dict.fromkeys(one.column for one in spec.conditions)
        columns = {name: self._column(name, chunk, spec, where) for name in named}
        mask = matching(columns, spec.conditions)
        return chunk if mask.all() else chunk.only(mask)

    def _assembled(self, chunk: Chunk, where: str) -> pa.RecordBatch:
        arrays = [self._column(name, chunk, self.spec, where) for name in self.spec.names]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _column(self, name: str, chunk: Chunk, spec: ColumnSpec, where: str) -> pa.Array:
        make = MAKERS.get(name)
        if make is not None:
            return make(chunk, spec)
        if name == "headers":
            return headers(chunk, where)
        return self._constant(name, len(chunk.records))

    def _constant(self, name: str, count: int) -> pa.Array:
        """Topic or partition, as often as needed: made once, as long as was ever needed."""
        held = self._constants.get(name)
        if held is None or len(held) < count:
            value = getattr(self._partition, name)
            held = pa.repeat(pa.scalar(value, TYPES[name]), count)
            self._constants[name] = held
        return held.slice(0, count)


# --- warm-up --------------------------------------------------------------------------------------


def warm_up() -> None:
    """Compile or load the kernels, once on this machine under a lock."""
    records = [NewRecord(b"k", b"v", 0, (("h", b"v"),)), NewRecord(b"k", None)]
    partition, names = TopicPartition("warm-up", 0), tuple(TYPES)
    with first_compile("columns"):
        for views in (False, True):
            spec = ColumnSpec(names, views=views)
            for codec in (Codec.NONE, Codec.LZ4):
                data = build_batch(records, BatchSpec(codec=codec))
                for _ in record_batches(data, scan_batches(data, ""), partition, "", spec):
                    pass


__all__: Sequence[str] = (
    "TYPES", "WITHOUT_HEADERS", "ArrowColumns", "ColumnSpec", "record_batches", "schema_of",
    "warm_up",
)  # fmt: skip
