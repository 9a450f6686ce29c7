"""What the bits of a batch mean. Where they are, as numbers: `lapse.kernels.layout`.

The document is docs/internals/record-batch.md; the fields that record-lifecycle rules touch:

- attributes bits 0–2 codec, 3 timestamp type (KIP-32), 4 transactional, 5 control,
  6 delete horizon (KIP-534). Kafka reads only the low byte. Bit 14 (ours): some record in it is
  a tombstone with a value (KIP-87), namely one with bit 5 of its own attributes.
- the base timestamp *is* the delete horizon while bit 6 is set; deltas count from it all the same.
- in a LogAppendTime batch max timestamp is the append time of every record; the deltas still hold
  what the producer said (ADR-5).

Formats v0 and v1 have of these only the codec and, in v1, the timestamp type (T-10).
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from lapse.kernels.layout import (
    CODEC_MASK,
    CONTROL,
    DELETE_HORIZON,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    VALUED_TOMBSTONES,
)

NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1

# Bits this version knows. A batch with any other is left alone, never guessed at (ADR-12).
KNOWN_ATTRIBUTES = (
    CODEC_MASK | LOG_APPEND_TIME | TRANSACTIONAL | CONTROL | DELETE_HORIZON | VALUED_TOMBSTONES
)


class Codec(IntEnum):
    """Compression of a batch's records."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class TimestampType(IntEnum):
    """Whose clock a batch's timestamps are (KIP-32); v0 has none."""

    NO_TIMESTAMP_TYPE = -1
    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


def timestamp_type_of(row: np.void) -> TimestampType:
    """Timestamp type in a `BATCH` row."""
    if not row["magic"]:
        return TimestampType.NO_TIMESTAMP_TYPE
    return TimestampType(int(row["attributes"]) & LOG_APPEND_TIME != 0)


def horizon_of(row: np.void) -> int | None:
    """Delete horizon (ms) of a `BATCH` row, or None without one."""
    if row["magic"] < 2 or not int(row["attributes"]) & DELETE_HORIZON:
        return None
    return int(row["base_timestamp"])
