"""KIP-87 in format v2: a tombstone that carries a value (ADR-4).

A record says that it is a tombstone with bit 5 of its own attributes, and its batch says that it
holds such records with bit 14. Kafka reads neither, so it and its clients see the values. The bits
count only on topics that compact, and a record's only in a batch that has its own. A null value is
a tombstone with or without them.

`without_values` is what those get who could take the value of a tombstone for a live one: a topic
that does not know the flag, and a real Kafka.
"""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

from lapse.kernels.keep import finish_batch
from lapse.kernels.layout import (
    ATTRIBUTES,
    CODEC_MASK,
    HEADER_SIZE,
    RECORD_TOMBSTONE,
    VALUED_TOMBSTONES,
)
from lapse.kernels.varint import read_one_varint
from lapse.records.batch import Buffer, as_array, decode_rows
from lapse.records.builder import varint
from lapse.records.compression import deflate

_NULL = varint(-1)


def holds_valued_tombstones(row: np.void) -> bool:
    """What the batch says of itself."""
    return bool(row["magic"] == 2 and int(row["attributes"]) & VALUED_TOMBSTONES)


def valued_rows(rows: NDArray[np.void]) -> NDArray[np.bool_]:
    """The same of many batches (rows of BATCH)."""
    found: NDArray[np.bool_] = (rows["magic"] == 2) & (rows["attributes"] & VALUED_TOMBSTONES != 0)
    return found


def bits_agree(row: np.void, records: NDArray[np.void]) -> bool:
    """Whether batch (a row of BATCH) and records (rows of RECORD) say the same of tombstones."""
    flagged = bool((records["attributes"] & RECORD_TOMBSTONE).any())
    return flagged == holds_valued_tombstones(row)


def without_values(buffer: Buffer, row: np.void, where: str) -> bytearray:
    """One batch, its flagged records with a null value and no flag.

    Base offset, last offset delta, count, producer fields, times, horizon and the other records
    stay byte for byte; codec too. Raises CorruptData.
    """
    start = int(row["position"])
    out = bytearray(as_array(buffer)[start : start + HEADER_SIZE])
    plain, records = decode_rows(buffer, row, where)
    view = plain.data
    parts: list[bytes | memoryview] = []
    copied = 0
    for r in records[records["attributes"] & RECORD_TOMBSTONE != 0]:
        begin, end = int(r["position"]), int(r["position"] + r["size"])
        parts += [view[copied:begin], _nulled(plain, r)]
        copied = end
    parts.append(view[copied:])
    attributes = int(row["attributes"]) & ~VALUED_TOMBSTONES
    payload = np.frombuffer(b"".join(parts), np.uint8)
    out += deflate(attributes & CODEC_MASK, payload)
    struct.pack_into(">h", out, ATTRIBUTES, attributes)
    finish_batch(np.frombuffer(out, np.uint8), 0, len(out))
    return out


def _nulled(plain: NDArray[np.uint8], r: np.void) -> bytes:
    """The record without its flag and value."""
    end = int(r["position"] + r["size"])
    _, attributes_at = read_one_varint(plain, int(r["position"]), end)
    value_length_at = int(r["key_position"]) + max(int(r["key_length"]), 0)
    body = bytes([int(r["attributes"]) & ~RECORD_TOMBSTONE])
    body += plain[attributes_at + 1 : value_length_at].tobytes() + _NULL
    body += plain[int(r["headers_position"]) : end].tobytes()
    return varint(len(body)) + body
