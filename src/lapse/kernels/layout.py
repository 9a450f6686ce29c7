"""Where things are in a v2 record batch, as numbers; `records.layout` says what they mean.

Source: SEMANTICS §15. A batch on disk is `base offset (8) · length (4) · the rest (length)`.
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
SIZE_MIN_LEGACY = LOG_OVERHEAD + 14  # an empty v0 message

CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40

# One row per batch, as `scan` fills it. `position` and `size` are bytes in the scanned buffer;
# for a v0/v1 message only position, size, magic, attributes and last_offset mean something.
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
