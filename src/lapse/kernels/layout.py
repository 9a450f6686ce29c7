"""Where things are in a v2 record batch, as numbers; `records.layout` says what they mean.

The document is docs/internals/record-batch.md. A batch on disk is
`base offset (8) · length (4) · the rest (length)`.
"""

from __future__ import annotations

import numpy as np

BASE_OFFSET = 0
LENGTH = 8
LEADER_EPOCH = 12  # outside the CRC, so that a follower may change it
MAGIC = 16
CRC = 17
ATTRIBUTES = 21  # the CRC covers everything from here on
LAST_OFFSET_DELTA = 23
BASE_TIMESTAMP = 27  # or the delete horizon, where attribute bit 6 is set
MAX_TIMESTAMP = 35
PRODUCER_ID = 43
PRODUCER_EPOCH = 51
BASE_SEQUENCE = 53
COUNT = 57
HEADER_SIZE = 61

LOG_OVERHEAD = 12  # base offset and length, common to all formats

# A v0 or v1 message: CRC-32 (of the bytes from the magic byte on), magic, attributes, in v1 a
# timestamp, then key and value, each behind a length of four bytes (T-10).
LEGACY_CRC = 12
LEGACY_ATTRIBUTES = 17
V1_TIMESTAMP = 18
V0_KEY = 18
V1_KEY = 26
LEGACY_SIZES_MIN = (V0_KEY + 8, V1_KEY + 8)  # with null key and value

CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40
VALUED_TOMBSTONES = 0x4000  # ADR-4: some record is a tombstone that has a value …
RECORD_TOMBSTONE = 0x20  # … namely those with this bit in their own attributes

# One row per batch, as `scan` fills it. `position` and `size` are bytes in the scanned buffer.
# A v0/v1 message (or wrapper: a message whose value holds others) is a row too: both its offsets
# are its own, which for a wrapper is its last message's; base and max timestamp are its own, -1 in
# v0; crc is its CRC-32; what it has no field for is -1, count included.
BATCH = np.dtype(
    [
        ("position", np.int64),
        ("size", np.int64),
        ("base_offset", np.int64),
        ("last_offset", np.int64),
        ("base_timestamp", np.int64),
        ("max_timestamp", np.int64),
        ("producer_id", np.int64),
        ("crc", np.int64),
        ("leader_epoch", np.int32),
        ("base_sequence", np.int32),
        ("count", np.int32),
        ("attributes", np.int32),
        ("producer_epoch", np.int16),
        ("magic", np.int16),
    ],
    align=True,
)

# One row per record, as `decode` fills it. Positions are bytes in the decoded buffer; a null key
# or value has length -1.
RECORD = np.dtype(
    [
        ("position", np.int64),
        ("size", np.int64),
        ("timestamp_delta", np.int64),
        ("offset_delta", np.int64),
        ("key_position", np.int64),
        ("key_length", np.int64),
        ("value_position", np.int64),
        ("value_length", np.int64),
        ("headers_position", np.int64),
        ("attributes", np.int64),
    ],
    align=True,
)

assert COUNT + 4 == HEADER_SIZE
