"""What the headers of a segment come to, in one walk over its rows of BATCH.

A column of rows costs a cache miss a batch, and a segment of small batches has millions: facts that
are wanted together are gathered together.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lapse.kernels.decode import RECORD_BYTES_MIN
from lapse.kernels.jit import inlined, kernel
from lapse.kernels.layout import (
    CODEC_MASK,
    CONTROL,
    DELETE_HORIZON,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    VALUED_TOMBSTONES,
)

# Words of `survey`'s result.
RECORDS = 0
ATTRIBUTES = 1  # every bit that is set in some batch
OLD_FORMAT = 2  # messages of v0 and v1
COUNT_MAX = 3
SIZE_MAX = 4
DISORDER = 5  # the first batch whose base offset is not above what precedes it, -1 if none
GAPS = 6  # batches where offset ≠ base offset of the segment + number of the record
CROWDED = 7  # the first batch that says to hold more records than it can, -1 if none
SURVEY_SIZE = 8

# Words of `tally`'s result; a time is -1 where there is none.
TALLY_RECORDS = 0  # a message of an old format counts as one
TALLY_OLD = 1
TALLY_DATA = 2  # batches with records that are no markers
TIMESTAMP_MAX = 3
TIMESTAMP_MIN = 4  # of the batches' greatest timestamps
APPEND_TIME_MAX = 5
HORIZON_BYTES = 6
HORIZON_MIN = 7
VALUED = 8  # batches that hold a tombstone with a value
OF_TRANSACTIONS = 9  # transactional and control batches
TALLY_ATTRIBUTES = 10
UNTIMED = 11  # batches with data of which the first or every record has no timestamp
BARE = 12  # headers without records
TALLY_SIZE = 13


@kernel
def survey(
    rows: NDArray[np.void], base_offset: int, ordinals: NDArray[np.int64],
    starts: NDArray[np.int64], ends: NDArray[np.int64], inflated_bytes_always: int,
    inflated_ratio_max: int, found: NDArray[np.int64],
) -> None:  # fmt: skip
    """Walk a segment; `found` is int64[SURVEY_SIZE].

    ordinals[b] is the number of batch b's first record; its records lie in bytes
    starts[b] to ends[b] - 1. So many compressed bytes become `inflated_bytes_always` + their
    number · `inflated_ratio_max` at most.
    """
    found[:] = 0
    found[DISORDER] = found[CROWDED] = -1
    records = np.int64(0)
    next_offset = base_offset
    for b in range(rows.shape[0]):
        row = rows[b]
        count = np.int64(row.count)
        if row.base_offset < next_offset and found[DISORDER] < 0:
            found[DISORDER] = b
        if row.base_offset != base_offset + records or (
            row.last_offset - row.base_offset + 1 != count
        ):
            found[GAPS] += 1
        n_bytes = row.size - HEADER_SIZE
        if row.attributes & CODEC_MASK != 0:
            n_bytes = inflated_bytes_always + inflated_ratio_max * n_bytes
        if count * RECORD_BYTES_MIN > n_bytes and row.magic == 2 and found[CROWDED] < 0:
            found[CROWDED] = b
        ordinals[b] = records
        starts[b], ends[b] = row.position + HEADER_SIZE, row.position + row.size
        records += count
        next_offset = row.last_offset + 1
        found[ATTRIBUTES] |= row.attributes
        found[OLD_FORMAT] += row.magic < 2
        found[COUNT_MAX] = max(found[COUNT_MAX], count)
        found[SIZE_MAX] = max(found[SIZE_MAX], row.size)
    found[RECORDS] = records


@kernel
def tally(rows: NDArray[np.void], found: NDArray[np.int64]) -> None:
    """Fill `found`, int64[TALLY_SIZE]: what a summary counts."""
    found[:] = 0
    found[TIMESTAMP_MIN] = found[APPEND_TIME_MAX] = found[HORIZON_MIN] = -1
    # Words that most rows move are held in registers.
    records = data = untimed = all_attributes = np.int64(0)
    timestamp_max = np.int64(-1)
    for b in range(rows.shape[0]):
        row = rows[b]
        attributes = np.int64(row.attributes)
        v2 = row.magic == 2
        timestamp = row.max_timestamp
        is_data = row.count != 0 and not (v2 and attributes & CONTROL != 0)
        first_is_untimed = row.base_timestamp < 0 and attributes & LOG_APPEND_TIME == 0
        records += np.int64(row.count) if v2 else np.int64(1)
        data += is_data
        untimed += is_data and (timestamp < 0 or first_is_untimed)
        all_attributes |= attributes
        if timestamp >= 0:
            if found[TIMESTAMP_MIN] < 0 or timestamp < found[TIMESTAMP_MIN]:
                found[TIMESTAMP_MIN] = timestamp
            timestamp_max = max(timestamp_max, timestamp)
            if attributes & LOG_APPEND_TIME != 0 and row.magic > 0:
                found[APPEND_TIME_MAX] = max(found[APPEND_TIME_MAX], timestamp)
        if not v2:
            found[TALLY_OLD] += 1
        elif row.count == 0 or attributes & ~CODEC_MASK != 0:
            _tally_rare(row, attributes, found)
    found[TALLY_RECORDS], found[TALLY_DATA], found[UNTIMED] = records, data, untimed
    found[TALLY_ATTRIBUTES], found[TIMESTAMP_MAX] = all_attributes, timestamp_max


@inlined
def _tally_rare(row: np.void, attributes: int, found: NDArray[np.int64]) -> None:
    """What is true of few batches of v2."""
    found[BARE] += row.count == 0
    found[VALUED] += attributes & VALUED_TOMBSTONES != 0
    found[OF_TRANSACTIONS] += attributes & (TRANSACTIONAL | CONTROL) != 0
    if attributes & DELETE_HORIZON != 0:
        horizon = row.base_timestamp
        if found[HORIZON_BYTES] == 0 or horizon < found[HORIZON_MIN]:
            found[HORIZON_MIN] = horizon
        found[HORIZON_BYTES] += row.size
