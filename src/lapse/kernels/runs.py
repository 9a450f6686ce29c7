"""Keys of a log too large for one map: to runs by hash range, and from runs to what is superseded.

An entry is two words: 64 bits of the key's hash; 32 more bits of it, and the record's number
within its segment below them. A segment cannot hold 2^31 offsets, so the number always fits, and
what numbers a log has in all does not matter. Range r of n holds the hashes with
`hash · n >> 64 = r`.

What is superseded is found from the newest entry to the oldest: one whose key was met before is.
So a table of keys is all that is held of a range, and it need not say which record is the last.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lapse.kernels.decode import next_key, next_record
from lapse.kernels.jit import inlined, kernel
from lapse.kernels.keyhash import hash_key
from lapse.kernels.layout import HEADER_SIZE
from lapse.kernels.machine import multiply_high, prefetch, prefetch_until
from lapse.kernels.offset_map import (
    BAD_CRC,
    BROKEN,
    DONE,
    FULL,
    WINDOW,
    Batches,
    Marks,
    ahead_of,
    crc_ok,
    flagged,
    set_bit,
)

NO_ROOM = 5  # for all records of batch `b`; beside the reasons of `offset_map`

# Words of `state` of `supersede`.
ENTRIES = 0  # keys in the table
FOUND = 1  # numbers in `out`
STATE_SIZE = 2

_LOW32 = np.uint64(0xFFFFFFFF)
_HIGH32 = np.uint64(0xFFFFFFFF00000000)
_USED = np.uint64(1)  # in the low half of a slot's second word, which is 0 where it is empty


@kernel
def collect_keys(
    batches: Batches, lo: int, hi: int, dirty: int, seed: tuple[int, int],
    entries: NDArray[np.uint64], filled: int, mapped_from: int, marks: Marks,
) -> tuple[int, int, int, int]:  # fmt: skip
    """An entry for each record with a key of batches lo..hi-1, from entry `filled` on.

    Ordinals are numbers within the segment. `mapped_from` is the number of the first record at
    `dirty` or above, -1 while there was none. Within the batch that holds `dirty`, what a small
    plan would neither map nor look up is left out. Nothing is marked as superseded. Returns (why
    it ended, the batch it stopped at, entries filled, `mapped_from`).
    """
    data = batches.data
    s0, s1 = np.uint64(seed[0]), np.uint64(seed[1])
    for b in range(lo, hi):
        row = batches.rows[b]
        if batches.skipped[b]:
            continue
        if batches.unchecked and not crc_ok(batches, b):
            return BAD_CRC, b, filled, mapped_from  # before its count is believed
        if filled + row.count > entries.shape[0] >> 1:
            return NO_ROOM, b, filled, mapped_from
        some = row.base_offset < dirty <= row.last_offset
        if mapped_from < 0 and row.base_offset >= dirty:
            mapped_from = batches.ordinals[b]
        nulls = 0
        i, end, ordinal = batches.starts[b], batches.ends[b], batches.ordinals[b]
        reach = ahead_of(row)
        ahead = i - HEADER_SIZE + reach
        for n in range(ordinal, ordinal + row.count):
            below = row.last_offset < dirty
            if some:
                i, _, _, delta, key, key_length, _, value_length = next_record(data, i, end)
                below = row.base_offset + delta < dirty
            else:
                i, key, key_length, value_length = next_key(data, i, end)
            if i < 0:
                return BROKEN, b, filled, mapped_from
            ahead = prefetch_until(data, ahead, i + reach)
            nulls += value_length < 0
            if some and not below and mapped_from < 0:
                mapped_from = n
            if key_length < 0:
                set_bit(marks.keyless, n)
            elif not (below and mapped_from >= 0):
                low, high = hash_key(data, key, key_length, s0, s1)
                entries[2 * filled] = low
                entries[2 * filled + 1] = (high & _HIGH32) | np.uint64(n)
                filled += 1
        marks.tombstones[b] += nulls + flagged(batches, b)
    return DONE, hi, filled, mapped_from


@kernel
def partition(
    entries: NDArray[np.uint64], filled: int, starts: NDArray[np.int64],
    places: NDArray[np.int64], out: NDArray[np.uint64],
) -> None:  # fmt: skip
    """Entries in the order of their ranges, and within a range in that in which they came.

    Range r of as many as `places` has is entries starts[r] to starts[r + 1] - 1 of `out`.
    """
    n_ranges = np.uint64(places.shape[0])
    starts[:] = 0
    for k in range(filled):
        starts[np.int64(multiply_high(entries[2 * k], n_ranges)) + 1] += 1
    for r in range(places.shape[0]):
        starts[r + 1] += starts[r]
        places[r] = starts[r]
    for k in range(filled):
        low = entries[2 * k]
        r = np.int64(multiply_high(low, n_ranges))
        at = places[r]
        out[2 * at], out[2 * at + 1] = low, entries[2 * k + 1]
        places[r] = at + 1


@inlined
def _home(low: np.uint64, n_ranges: np.uint64, n_slots: np.uint64) -> np.int64:
    """The hashes of one range, spread over all slots: what is left of hash · ranges."""
    return np.int64(multiply_high(low * n_ranges, n_slots))


@inlined
def _meet(
    slots: NDArray[np.uint64], i: int, low: np.uint64, word: np.uint64, fill_max: int,
    put: bool, state: NDArray[np.int64],
) -> int:  # fmt: skip
    """1 if the key was met before, 0 if not, -1 if it is to be put and there is no room."""
    n_slots = slots.shape[0] >> 1
    mark = (word & _HIGH32) | _USED
    while True:
        there = slots[2 * i + 1]
        if there == 0:
            if not put:
                return 0
            if state[ENTRIES] >= fill_max:
                return -1
            slots[2 * i], slots[2 * i + 1] = low, mark
            state[ENTRIES] += 1
            return 0
        if there == mark and slots[2 * i] == low:
            return 1
        i += 1
        if i == n_slots:
            i = 0


@kernel
def supersede(
    entries: NDArray[np.uint64], count: int, mapped_from: int, n_ranges: int, this_range: int,
    slots: NDArray[np.uint64], fill_max: int, window: NDArray[np.int64],
    out: NDArray[np.uint32], state: NDArray[np.int64],
) -> int:  # fmt: skip
    """Go through `count` entries of a segment from the last to the first; DONE or FULL.

    Takes those of one range. The numbers of records that are superseded go to `out`, which has
    room for all, from state[FOUND] on. Keys of records numbered `mapped_from` and above are put
    into `slots` (zeroed before the newest), `fill_max` in all and less than there are slots; those
    below are only looked up. `window` has WINDOW words.
    """
    n_slots = np.uint64(slots.shape[0] >> 1)
    ranges = np.uint64(n_ranges)
    k = count - 1
    while k >= 0:
        held = 0
        while k >= 0 and held < window.shape[0]:
            low = entries[2 * k]
            if np.int64(multiply_high(low, ranges)) == this_range:
                prefetch(slots, 2 * _home(low, ranges, n_slots))
                window[held] = k
                held += 1
            k -= 1
        for w in range(held):
            low, word = entries[2 * window[w]], entries[2 * window[w] + 1]
            number = np.int64(word & _LOW32)
            put = number >= mapped_from
            met = _meet(slots, _home(low, ranges, n_slots), low, word, fill_max, put, state)
            if met < 0:
                return FULL
            if met > 0:
                out[state[FOUND]] = number
                state[FOUND] += 1
    return DONE


@kernel
def set_bits(numbers: NDArray[np.uint32], count: int, bits: NDArray[np.uint8]) -> int:
    """Set the bits of these numbers below `count`; returns how many numbers that are, or -1.

    -1: one is not below `count`.
    """
    for k in range(numbers.shape[0]):
        n = np.int64(numbers[k])
        if n >= count:
            return -1
        set_bit(bits, n)
    return numbers.shape[0]


__all__ = [
    "BAD_CRC",
    "BROKEN",
    "DONE",
    "ENTRIES",
    "FOUND",
    "FULL",
    "NO_ROOM",
    "STATE_SIZE",
    "WINDOW",
    "Batches",
    "Marks",
    "collect_keys",
    "partition",
    "set_bits",
    "supersede",
]  # fmt: skip
