"""Stored messages of v0 and v1 as batches of v2: KIP-32's migration of what is in a log already.

Unlike `convert.to_batch`, which takes what a producer sent, this keeps the offsets and the gaps
that cleaning left between them. Called by `log.upgrade`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from lapse.base.errors import CorruptData
from lapse.kernels.layout import CODEC_MASK, LOG_APPEND_TIME
from lapse.records.batch import Buffer, as_array
from lapse.records.batch_writer import Bytes, RecordFields, no_headers, write_batch
from lapse.records.builder import BatchSpec
from lapse.records.layout import Codec, TimestampType
from lapse.records.legacy import decode_message, decode_plain

# What a producer's batch has at most by default.
BATCH_BYTES_MAX = 16 << 10
_NO_EPOCH = -1  # old requests carry no leader epoch
_SPAN_MAX = (1 << 31) - 1


def upgraded(buffer: Buffer, rows: NDArray[np.void], where: str) -> Iterator[bytearray]:
    """Batches of v2 with the records of `rows`: messages of v0 or v1 that lie side by side.

    A wrapper becomes a batch of its codec. Plain messages go together, up to 16 KiB of them, as far
    as they have the same format and kind of timestamp; with LogAppendTime (v1) the same timestamp.
    Keys, values, offsets, create times and append times are the same as before; v0 has none.
    Raises CorruptData.
    """
    data = as_array(buffer)
    for first, until in _together(rows):
        row = rows[first]
        if int(row["attributes"]) & CODEC_MASK:
            plain, records = decode_message(data, row, where)
            offsets = records["offset_delta"] + row["base_offset"]
            times = records["timestamp_delta"] + row["base_timestamp"]
            _refuse_beyond(int(offsets[-1]), row, where)
        else:
            begin, last = int(row["position"]), rows[until - 1]
            end = int(last["position"] + last["size"])
            plain, records = data, decode_plain(data, begin, end, int(row["magic"]), where)
            offsets, times = records["offset_delta"], records["timestamp_delta"]
        if offsets[0] < 0 or (np.diff(offsets) <= 0).any():
            raise CorruptData(where, int(row["position"]), "offsets of messages do not ascend")
        fields = RecordFields(
            keys=_field(plain, records, "key"),
            values=_field(plain, records, "value"),
            headers=no_headers(len(records)),
            times=np.ascontiguousarray(times),
            tombstones=np.zeros(len(records), np.bool_),
            offsets=np.ascontiguousarray(offsets),
        )
        stamped = int(row["attributes"]) & LOG_APPEND_TIME and row["magic"] == 1
        kind = TimestampType.LOG_APPEND_TIME if stamped else TimestampType.CREATE_TIME
        spec = BatchSpec(
            codec=Codec(int(row["attributes"]) & CODEC_MASK),
            timestamp_type=kind,
            append_time=int(row["max_timestamp"]),
            leader_epoch=_NO_EPOCH,
        )
        yield write_batch(fields, spec)


def _refuse_beyond(last_offset: int, row: np.void, where: str) -> None:
    """What is in a wrapper must lie at or below its own offset (T-11), as in a round."""
    if last_offset > row["last_offset"]:
        reason = f"a wrapper's messages reach offset {last_offset}, beyond its own"
        raise CorruptData(where, int(row["position"]), reason)


def _field(plain: NDArray[np.uint8], records: NDArray[np.void], name: str) -> Bytes:
    starts = np.ascontiguousarray(records[f"{name}_position"])
    return Bytes(plain, starts, np.ascontiguousarray(records[f"{name}_length"]))


def _together(rows: NDArray[np.void]) -> Iterator[tuple[int, int]]:
    """Which messages become one batch: ranges of rows."""
    attributes = rows["attributes"]
    stamped = (attributes & LOG_APPEND_TIME != 0) & (rows["magic"] == 1)
    breaks = np.ones(len(rows), np.bool_)
    breaks[1:] = (
        (attributes[1:] & CODEC_MASK != 0)
        | (attributes[:-1] & CODEC_MASK != 0)
        | (rows["magic"][1:] != rows["magic"][:-1])
        | (stamped[1:] != stamped[:-1])
        | (stamped[1:] & (rows["max_timestamp"][1:] != rows["max_timestamp"][:-1]))
    )
    edges = [*np.flatnonzero(breaks).tolist(), len(rows)]
    sizes, offsets = rows["size"].tolist(), rows["base_offset"].tolist()
    for begin, end in pairwise(edges):
        first, size = begin, 0
        for n in range(begin, end):
            size += sizes[n]
            full = size > BATCH_BYTES_MAX or offsets[n] - offsets[first] > _SPAN_MAX
            if full and n > first:
                yield first, n
                first, size = n, sizes[n]
        yield first, end
