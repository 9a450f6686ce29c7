"""The v2 image of a segment with messages of v0 or v1, which a round reads in its place.

Made beside the segment, batch for batch, so that the rules and kernels of a round know one format
(F-2: what a round rewrites is upgraded). Offsets, keys, values, times and codec stay;
tombstones get their delete horizon like any other, which they cannot have in the old formats.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lapse.base.fs import Fs
from lapse.kernels.layout import CODEC_MASK, DELETE_HORIZON
from lapse.records.batch import Record, records_of
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.layout import Codec, TimestampType, timestamp_type_of

_WRITE_BYTES = 1 << 20


def write_upgraded(
    fs: Fs, path: Path, data: NDArray[np.uint8], rows: NDArray[np.void], where: str, *, flat: bool,
    nulls: NDArray[np.int32] | None = None,
) -> int:  # fmt: skip
    """Write the v2 image of a segment to a new file; returns its size. Raises CorruptData.

    `flat`: LogAppendTime messages lose their create times, as they do when Kafka rewrites them.
    `nulls`: receives the number of tombstones for each of `rows` that is of an old format.
    """
    size = 0
    with contextlib.closing(fs.open_append(path)) as file:
        for part in _parts(data, rows, where, flat=flat, nulls=nulls):
            file.write(part)
            size += len(part)
    return size


def upgraded(
    data: NDArray[np.uint8], rows: NDArray[np.void], where: str, *, flat: bool,
    nulls: NDArray[np.int32] | None = None,
) -> NDArray[np.uint8]:  # fmt: skip
    """The v2 image of a segment in memory, read-only."""
    parts = _parts(data, rows, where, flat=flat, nulls=nulls)
    return np.frombuffer(b"".join(parts), np.uint8)


def _parts(
    data: NDArray[np.uint8], rows: NDArray[np.void], where: str, *, flat: bool,
    nulls: NDArray[np.int32] | None,
) -> Iterator[bytes]:  # fmt: skip
    buffer = bytearray()
    for n, row in enumerate(rows):
        position, size = int(row["position"]), int(row["size"])
        if row["magic"] == 2:
            buffer += data[position : position + size].data
        else:
            records = list(records_of(data, row, where))
            buffer += _batch(records, row, flat=flat)
            if nulls is not None:
                nulls[n] = sum(record.is_tombstone for record in records)
        if len(buffer) >= _WRITE_BYTES:
            yield bytes(buffer)
            buffer.clear()
    yield bytes(buffer)


def narrowed(batch: NDArray[np.uint8], row: np.void, where: str) -> bytes:
    """A rewritten batch whose offsets begin and end with the records it kept (F-3 for v0, v1).

    Only Kafka's rules need it; `row` is the batch's, which lies at 0.
    """
    return _batch(list(records_of(batch, row, where)), row, flat=True)


def _batch(records: list[Record], row: np.void, *, flat: bool) -> bytes:
    first = records[0].offset
    append_time = timestamp_type_of(row) is TimestampType.LOG_APPEND_TIME
    has_horizon = row["magic"] == 2 and int(row["attributes"]) & DELETE_HORIZON
    times = [r.timestamp if flat else r.create_time for r in records]
    return build_batch(
        [
            NewRecord(r.key, r.value, time, offset_delta=r.offset - first)
            for r, time in zip(records, times, strict=True)
        ],
        BatchSpec(
            base_offset=first,
            codec=Codec(int(row["attributes"]) & CODEC_MASK),
            timestamp_type=TimestampType(append_time),
            append_time=int(row["max_timestamp"]),
            leader_epoch=-1,
            horizon_ms=int(row["base_timestamp"]) if has_horizon else None,
        ),
    )
