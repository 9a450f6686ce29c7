"""What headers and bitmaps alone say of batches, before `keep` looks into records."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lapse.kernels.jit import inlined, kernel
from lapse.kernels.keep import (
    ABORTED,
    CONTROL,
    COVERED,
    DELETED,
    GONE,
    HORIZON_PASSED,
    HORIZON_SET,
    HORIZON_STRANGE,
    KEEP,
    KEEP_AND_STAMP,
    KEYED,
    MARKER,
    RECORD_FACTS,
    REMOVE_SUPERSEDED,
    SPENT,
    SUPERSEDED,
    TOMBSTONE,
    TOUCHED,
    UNTOUCHED,
    always_drops_superseded,
    bit_at,
)


@inlined
def _count_bits(bits: NDArray[np.uint8], start: int, end: int) -> int:
    """Bits set among start..end-1."""
    n = 0
    i = start
    while i < end and i & 7:
        n += bit_at(bits, i)
        i += 1
    while i + 8 <= end:
        byte = np.int64(bits[i >> 3])
        byte = byte - ((byte >> 1) & 0x55)
        byte = (byte & 0x33) + ((byte >> 2) & 0x33)
        n += (byte + (byte >> 4)) & 0x0F
        i += 8
    while i < end:
        n += bit_at(bits, i)
        i += 1
    return n


@inlined
def _whole_reason(record_table: NDArray[np.uint8], facts: int) -> int:
    """Why all data records with these facts go whatever else is true of them; KEEP if some may not.

    Only one combination is tried with the others: the rules ask about these facts first.
    """
    reason = record_table[facts] & ~KEEP_AND_STAMP
    others = record_table[facts | COVERED | KEYED | SUPERSEDED | TOMBSTONE] & ~KEEP_AND_STAMP
    return reason if reason == others else KEEP


@kernel
def classify(
    batches: NDArray[np.void], ordinals: NDArray[np.int64],
    superseded: NDArray[np.uint8], keyless: NDArray[np.uint8], tombstones: NDArray[np.int32],
    guarded: NDArray[np.uint8], facts_of: NDArray[np.uint16], record_table: NDArray[np.uint8],
    log_start: int, out: NDArray[np.uint8],
) -> int:  # fmt: skip
    """out[b] = what headers and bitmaps alone say of batch b; returns how many change for sure.

    A batch is TOUCHED too when its horizon has passed or is of none of its records, when it has
    none and holds a tombstone that may be stamped, and when the log starts within it. GONE promises
    that the rules remove every record of it, and offsets without gaps, so that the records need not
    be read.
    """
    drop_superseded = always_drops_superseded(record_table)
    n = 0
    for b in range(batches.shape[0]):
        row = batches[b]
        facts = np.int64(facts_of[b]) & (RECORD_FACTS - 1)
        first, after = ordinals[b], ordinals[b] + row.count
        dense = row.last_offset - row.base_offset == row.count - 1
        has_horizon = facts & HORIZON_SET != 0
        ends = facts & HORIZON_PASSED != 0 or facts_of[b] & HORIZON_STRANGE != 0
        if row.last_offset < log_start:
            facts |= DELETED
        if row.count == 0:
            verdict = UNTOUCHED if guarded[b] else TOUCHED
        elif facts & CONTROL != 0:
            verdict = MARKER
        elif dense and (
            facts & DELETED != 0 or (facts & ABORTED != 0 and row.base_offset >= log_start)
        ):
            verdict = GONE + _whole_reason(record_table, facts)
        elif facts & (DELETED | ABORTED) != 0 or row.base_offset < log_start:
            verdict = TOUCHED
        else:
            gone = _count_bits(superseded, first, after)
            if gone == row.count and dense and drop_superseded:
                verdict = GONE + REMOVE_SUPERSEDED
            elif (
                gone > 0
                or ends
                or (tombstones[b] > 0 and not has_horizon)
                or _count_bits(keyless, first, after) > 0
            ):
                verdict = TOUCHED
            else:
                verdict = UNTOUCHED
        if verdict == GONE + KEEP:
            verdict = TOUCHED
        out[b] = verdict
        n += verdict != UNTOUCHED and (verdict != MARKER or ends or facts & DELETED != 0)
    return n


@kernel
def markers_change(
    batches: NDArray[np.void], classes: NDArray[np.uint8], facts_of: NDArray[np.uint16],
    txns: NDArray[np.int32], alive: NDArray[np.uint8], record_table: NDArray[np.uint8],
) -> int:  # fmt: skip
    """How many of the batches that are MARKER would not stay as they are."""
    n = 0
    for b in range(batches.shape[0]):
        if classes[b] != MARKER:
            continue
        facts = np.int64(facts_of[b]) & (RECORD_FACTS - 1)
        if txns[b] >= 0 and alive[txns[b]] == 0:
            facts |= SPENT
        n += record_table[facts] != KEEP
    return n
