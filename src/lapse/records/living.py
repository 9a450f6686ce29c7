"""A batch without the records below an offset: what consumers get of one that was deleted into.

DeleteRecords may move the log start into a batch (KIP-107). Until a round has taken what is below
out of the file, `broker.logs.fetch_records` sends consumers the batch made anew by this; replicas
get what is stored. The batch keeps its place: base offset and last offset delta stay, as a round
leaves them.
"""

from __future__ import annotations

import struct

import numpy as np

from lapse.kernels.keep import finish_batch
from lapse.kernels.layout import (
    ATTRIBUTES,
    CODEC_MASK,
    COUNT,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    MAX_TIMESTAMP,
    RECORD_TOMBSTONE,
    VALUED_TOMBSTONES,
)
from lapse.records.batch import Buffer, as_array, decode_rows, first_offset, headers_of
from lapse.records.compression import deflate
from lapse.records.convert import to_messages


def from_offset_on(buffer: Buffer, row: np.void, offset: int, where: str) -> bytes:
    """One batch (a row of BATCH), its records below `offset` left out.

    The others stay byte for byte, producer fields, horizon and codec too; the greatest timestamp is
    theirs. Without any it is an empty batch, which lets a consumer pass. Of v0 and v1 it is the
    messages that are left. Raises CorruptData.
    """
    start = int(row["position"])
    stored = as_array(buffer)[start : start + int(row["size"])]
    (header,) = headers_of(np.array([row]))
    if first_offset(buffer, header, where) >= offset:
        return stored.tobytes()
    if header.magic < 2:
        return to_messages(buffer, row, header.magic, where, from_offset=offset)
    plain, records = decode_rows(buffer, row, where)
    kept = records[records["offset_delta"] + row["base_offset"] >= offset]
    attributes = int(row["attributes"])
    if not (kept["attributes"] & RECORD_TOMBSTONE).any():
        attributes &= ~VALUED_TOMBSTONES
    if not len(kept):
        attributes &= ~CODEC_MASK  # as Kafka's cleaner leaves a batch that it empties
    out = bytearray(stored[:HEADER_SIZE])
    view = plain.data
    payload = b"".join(view[int(r["position"]) : int(r["position"] + r["size"])] for r in kept)
    out += deflate(attributes & CODEC_MASK, np.frombuffer(payload, np.uint8))
    struct.pack_into(">h", out, ATTRIBUTES, attributes)
    struct.pack_into(">i", out, COUNT, len(kept))
    if len(kept) and not attributes & LOG_APPEND_TIME:
        greatest = int((kept["timestamp_delta"] + row["base_timestamp"]).max())
        struct.pack_into(">q", out, MAX_TIMESTAMP, greatest)
    finish_batch(np.frombuffer(out, np.uint8), 0, len(out))
    return bytes(out)
