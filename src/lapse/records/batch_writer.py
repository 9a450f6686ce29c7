"""Many records to v2 batches: from columns, by kernel (`kernels.encode`).

`RecordFields` holds what the records of one partition say, column by column; `write_batch` makes a
batch of a range of them and `split` says which ranges fit a size. `builder` is the slow, obvious
twin. Called by the client's producer; `arrow_fields` reads the columns out of Arrow.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lapse.kernels import encode as kernel
from lapse.kernels.jit import first_compile
from lapse.kernels.keep import finish_batch
from lapse.kernels.layout import (
    HEADER_SIZE,
    LOG_APPEND_TIME,
    RECORD_TOMBSTONE,
    TRANSACTIONAL,
    VALUED_TOMBSTONES,
)
from lapse.records.batch import as_array
from lapse.records.builder import BatchSpec, Header, varint
from lapse.records.compression import deflate
from lapse.records.layout import TimestampType

_HEADER = struct.Struct(">qiibIhiqqqhii")
_NO_HEADERS = varint(0)
_RECORDS_MAX = (1 << 31) - 1  # of a batch
assert _HEADER.size == HEADER_SIZE


class Bytes(kernel.Column):
    """A field of some records: where in `data` each begins, and how long it is; -1 is null."""

    __slots__ = ()

    @staticmethod
    def of(values: Iterable[bytes | None]) -> Bytes:
        """One after the other."""
        values = list(values)
        lengths = np.array([-1 if v is None else len(v) for v in values], np.int64)
        ends = np.cumsum(np.maximum(lengths, 0))
        data = as_array(b"".join(v for v in values if v is not None))
        return Bytes(data, ends - np.maximum(lengths, 0), lengths)

    @staticmethod
    def same(value: bytes, count: int) -> Bytes:
        """The same for all."""
        return Bytes(
            as_array(value), np.zeros(count, np.int64), np.full(count, len(value), np.int64)
        )


@dataclass(frozen=True, slots=True)
class RecordFields:
    """Records, field by field; all columns have one entry a record.

    Attributes:
        headers: encoded, their count included.
        times: create times in ms.
        tombstones: which say so themselves, whatever their value (KIP-87).
        offsets: ascending; None: one follows the other.
    """

    keys: Bytes
    values: Bytes
    headers: Bytes
    times: NDArray[np.int64]
    tombstones: NDArray[np.bool_]
    offsets: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.times)

    def sizes(self) -> NDArray[np.int64]:
        """Bytes of each record at most, not compressed."""
        sizes = np.empty(len(self), np.int64)
        kernel.record_sizes(
            self.keys.lengths, self.values.lengths, self.headers.lengths, self.places(), sizes
        )
        return sizes

    def places(self) -> NDArray[np.int64]:
        """The offsets, or what stands for them."""
        return np.arange(len(self)) if self.offsets is None else self.offsets


def encoded_headers(headers: Sequence[Header]) -> bytes:
    """A record's headers as they lie in it."""
    if not headers:
        return _NO_HEADERS
    out = bytearray(varint(len(headers)))
    for name, value in headers:
        text = name.encode()
        out += varint(len(text)) + text
        out += varint(-1) if value is None else varint(len(value)) + value
    return bytes(out)


def no_headers(count: int) -> Bytes:
    """None for any of so many records."""
    return Bytes.same(_NO_HEADERS, count)


def split(
    sizes: NDArray[np.int64], bytes_max: int, records_max: int = _RECORDS_MAX
) -> Iterator[tuple[int, int]]:
    """Ranges of records that stay below `bytes_max` together; a larger one has one to itself."""
    ends = np.cumsum(sizes)
    begin = 0
    while begin < len(sizes):
        before = int(ends[begin - 1]) if begin else 0
        fitting = int(np.searchsorted(ends, before + bytes_max, "right"))
        end = min(max(fitting, begin + 1), begin + records_max)
        yield begin, end
        begin = end


def write_batch(
    records: RecordFields, spec: BatchSpec, first: int = 0, until: int | None = None
) -> bytearray:
    """A batch of the records `first` … `until`, at least one, CRC included.

    Of `spec` all counts but `control`, `horizon_ms` and `last_offset_delta`; where the records have
    offsets its base offset does not. Where one record is flagged as a tombstone, so is the batch,
    and then every null value must have the flag too (KIP-87): brokers refuse it otherwise.
    """
    until = len(records) if until is None else until
    some = slice(first, until)
    room = np.empty(int(records.sizes()[some].sum()), np.uint8)
    keys, values, headers = records.keys, records.values, records.headers
    places = records.places()
    flags = records.tombstones.astype(np.uint8) * np.uint8(RECORD_TOMBSTONE)
    end = kernel.write_records(
        keys, values, headers, places, records.times, flags, first, until, room, 0
    )
    plain = room[:end]
    plain.flags.writeable = False
    attributes = (
        spec.codec
        | LOG_APPEND_TIME * (spec.timestamp_type is TimestampType.LOG_APPEND_TIME)
        | TRANSACTIONAL * spec.transactional
        | VALUED_TOMBSTONES * bool(records.tombstones[some].any())
    )
    count = until - first
    times = records.times[some]
    base_offset = spec.base_offset if records.offsets is None else int(places[first])
    stamped = bool(attributes & LOG_APPEND_TIME)
    greatest = spec.append_time if stamped else int(times.max())
    out = bytearray(
        _HEADER.pack(
            base_offset, 0, spec.leader_epoch, 2, 0, attributes,
            int(places[until - 1] - places[first]), int(times[0]), greatest,
            spec.producer_id, spec.producer_epoch, spec.base_sequence, count,
        )
    )  # fmt: skip
    out += deflate(spec.codec, plain)
    finish_batch(np.frombuffer(out, np.uint8), 0, len(out))
    return out


def warm_up() -> None:
    """Compile or load the kernels, once on this machine under a lock."""
    one = Bytes.of([b"k"])
    fields = RecordFields(one, one, no_headers(1), np.zeros(1, np.int64), np.zeros(1, np.bool_))
    with first_compile("batch-writer"):
        write_batch(fields, BatchSpec())
