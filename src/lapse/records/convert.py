"""From one record format to another: KIP-32's migration, both ways.

Up: whatever a producer of v0 or v1 sent becomes one v2 batch, which is what the log writes. Down:
a v2 batch becomes messages, for a topic whose `message.format.version` is before 0.11 and for a
client of that time (`downconvert`); v1 becomes v0 the same way. What the old formats cannot say is
lost on the way down (headers, leader epoch) or was never there on the way up (v0 has no time).
Offsets stay.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from lapse.base.errors import CorruptData
from lapse.kernels.layout import CODEC_MASK, CONTROL, TRANSACTIONAL
from lapse.records.batch import Buffer, as_array, records_of
from lapse.records.builder import BatchSpec, NewRecord, build_batch
from lapse.records.layout import (
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    Codec,
    TimestampType,
    timestamp_type_of,
)
from lapse.records.legacy import Message, MessageSpec, build_messages, decode_sent


class CannotSay(ValueError):
    """The old format has no way to say this; the text names it."""


def to_batch(buffer: Buffer, rows: NDArray[np.void], where: str) -> bytes:
    """Messages and wrappers of v0 or v1, `rows` of one buffer, as one v2 batch.

    Its codec is that of the last one. Records are numbered from 0 on: old producers number them as
    they like. Raises CorruptData.
    """
    found = [record for row in rows for record in _sent(as_array(buffer), row, where)]
    last = rows[-1]
    append_time = any(timestamp_type_of(row) is TimestampType.LOG_APPEND_TIME for row in rows)
    return build_batch(
        found,
        BatchSpec(
            codec=Codec(int(last["attributes"]) & CODEC_MASK),
            timestamp_type=TimestampType(append_time),
            append_time=int(rows["max_timestamp"].max()),
        ),
    )


def _sent(data: NDArray[np.uint8], row: np.void, where: str) -> Iterator[NewRecord]:
    plain, rows = decode_sent(data, row, where)
    for r in rows:
        key, value = (
            None if r[length] < 0 else plain[r[at] : r[at] + r[length]].tobytes()
            for at, length in (("key_position", "key_length"), ("value_position", "value_length"))
        )
        yield NewRecord(key, value, int(r["timestamp_delta"]))


def to_messages(
    buffer: Buffer,
    row: np.void,
    magic: int,
    where: str,
    *,
    from_offset: int = 0,
    tombstone_values: bool = True,
) -> bytes:
    """One batch of a newer format as a v0 or v1 message set, its headers left out.

    Records below `from_offset` are left out too; empty if none remains. A tombstone that carries a
    value (KIP-87) gets null instead where `tombstone_values` is not set. Raises CannotSay for zstd
    and for control batches, and CorruptData.
    """
    attributes = int(row["attributes"])
    if attributes & CONTROL:
        raise CannotSay("a control batch")
    if attributes & CODEC_MASK == Codec.ZSTD:
        raise CannotSay("zstd")
    messages = [
        Message(
            r.offset,
            r.create_time if magic else NO_TIMESTAMP,
            r.key,
            None if r.flagged and not tombstone_values else r.value,
        )
        for r in records_of(buffer, row, where)
        if r.offset >= from_offset
    ]
    if not messages:
        return b""
    offsets = [-1, *(m.offset for m in messages)]
    if any(after <= before for before, after in pairwise(offsets)):
        raise CorruptData(where, int(row["position"]), "offsets of records do not ascend")
    kind = timestamp_type_of(row)
    append_time = kind is TimestampType.LOG_APPEND_TIME
    codec = Codec(attributes & CODEC_MASK)  # one we know, since its records were read
    spec = MessageSpec(magic, codec, kind, int(row["max_timestamp"]) if append_time else -1)
    return build_messages(messages, spec)


def needs_v2(buffer: Buffer, row: np.void, where: str) -> str | None:
    """What in a v2 batch a topic of an older format must refuse, rather than drop silently."""
    if row["producer_id"] != NO_PRODUCER_ID or int(row["attributes"]) & TRANSACTIONAL:
        return "an idempotent or transactional producer"
    if int(row["attributes"]) & CODEC_MASK == Codec.ZSTD:
        return "zstd"
    if any(record.headers for record in records_of(buffer, row, where)):
        return "record headers"
    return None
