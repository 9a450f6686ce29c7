"""Decoded records of some batches, before they become columns: rows of `RECORD` and whose they are.

v2 batches are decoded many at a time by `kernels.columns`; here is what that needs around it, and
the old formats. Called by `columns` only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lapse.base.errors import CorruptData
from lapse.kernels.layout import LOG_APPEND_TIME, RECORD
from lapse.kernels.legacy import decode_messages
from lapse.records.batch import as_array, decode_rows

Rows = NDArray[np.void]


def room_for(count: int, dtype: Any) -> NDArray[Any]:
    """Where a column is to be: from Arrow's pool, which hands out pages that were used before."""
    return np.frombuffer(pa.allocate_buffer(count * np.dtype(dtype).itemsize), dtype)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Records of some batches: rows of RECORD that point into `plain`, and whose they are."""

    plain: NDArray[np.uint8]
    batches: Rows
    flattened: NDArray[np.bool_]  # one a batch: create times are lost
    records: Rows
    owner: NDArray[np.int32]  # one a record: its batch

    def only(self, wanted: NDArray[np.bool_]) -> Chunk:
        """Those of the records, one flag each."""
        return replace(self, records=self.records[wanted], owner=self.owner[wanted])

    def each(self, of_batches: NDArray[Any]) -> NDArray[Any]:
        """What is the same for all records of a batch, once for each record."""
        out = room_for(len(self.owner), of_batches.dtype)
        return np.take(of_batches, self.owner, out=out, mode="clip")  # it does not wait for errors

    def flag(self, bit: int) -> NDArray[np.bool_]:
        """Whether a v2 batch has an attribute bit, for each batch."""
        has: NDArray[np.bool_] = (self.batches["attributes"] & bit != 0) & (
            self.batches["magic"] == 2
        )
        return has

    def append_timed(self) -> NDArray[np.bool_]:
        """Whether a batch has an append time, for each batch; v1 has the same bit for it."""
        timed: NDArray[np.bool_] = (self.batches["attributes"] & LOG_APPEND_TIME != 0) & (
            self.batches["magic"] > 0
        )
        return timed

    def offsets(self) -> NDArray[np.int64]:
        """Of the records."""
        offsets = self.each(self.batches["base_offset"])
        offsets += self.records["offset_delta"]
        return offsets

    def create_times(self) -> NDArray[np.int64]:
        """What the records say, in milliseconds; lost ones too."""
        times = self.each(self.batches["base_timestamp"])
        times += self.records["timestamp_delta"]
        return times


def messages(data: NDArray[np.uint8], rows: Rows, where: str) -> Chunk:
    """Uncompressed v0 or v1 messages: one record each, decoded together where they adjoin."""
    records = np.empty(len(rows), RECORD)
    ends = rows["position"] + rows["size"]
    gaps = np.flatnonzero(rows["position"][1:] != ends[:-1]) + 1
    for begin, end in pairwise([0, *gaps.tolist(), len(rows)]):
        start, stop = int(rows["position"][begin]), int(ends[end - 1])
        magic = int(rows["magic"][0])
        if decode_messages(data, start, stop, magic, False, records[begin:end]):
            for row in rows[begin:end]:
                decode_rows(data, row, where)  # says which one
            raise CorruptData(where, start, "a message does not parse")
    records["offset_delta"] -= rows["base_offset"]
    records["timestamp_delta"] -= rows["base_timestamp"]
    lost = (rows["attributes"] & LOG_APPEND_TIME != 0) & (rows["magic"] == 1)
    return Chunk(data, rows, lost, records, np.arange(len(rows), dtype=np.int32))


def wrappers(
    data: NDArray[np.uint8], rows: Rows, where: str, inflated_bytes: int
) -> Iterator[Chunk]:
    """Compressed v0 or v1 messages, each of which holds others, until they are so many bytes."""
    decoded: list[tuple[NDArray[np.uint8], Rows]] = []
    first = n_bytes = 0
    for n, row in enumerate(rows):
        decoded.append(decode_rows(data, row, where))
        n_bytes += len(decoded[-1][0])
        if n_bytes >= inflated_bytes or n + 1 == len(rows):
            yield _together(decoded, rows[first : n + 1])
            decoded, first, n_bytes = [], n + 1, 0


def _together(decoded: Sequence[tuple[NDArray[np.uint8], Rows]], rows: Rows) -> Chunk:
    counts = [len(records) for _, records in decoded]
    records = np.concatenate([records for _, records in decoded])
    shift = np.repeat(np.cumsum([0, *(len(plain) for plain, _ in decoded[:-1])]), counts)
    for field in ("position", "key_position", "value_position", "headers_position"):
        records[field] += shift
    timed = (rows["attributes"] & LOG_APPEND_TIME != 0) & (rows["magic"] == 1)
    lost = timed & [not of_one["timestamp_delta"].any() for _, of_one in decoded]
    plain = as_array(np.concatenate([plain for plain, _ in decoded]))
    return Chunk(
        plain, rows, lost, records, np.repeat(np.arange(len(rows), dtype=np.int32), counts)
    )
