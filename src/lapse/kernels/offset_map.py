"""Key → the last record that has it, as 16 bytes a key; and what each new record supersedes.

A slot is two words: 64 bits of the key's hash; 32 more bits of it and the record's *ordinal* + 1
in the mapped range (0 = empty slot). The home slot is `hash · slots >> 64`, so slots are in the
order of their hashes and a bigger table is filled by one streaming pass. Collisions probe on
linearly. Keys are hashed a window at a time and their slots prefetched, because a probe is a
DRAM miss (119 ns a key one by one, some 25 so).

Putting a record over an older one with the same key sets the old one's bit in `superseded`
(one bit a record of the mapped range). That bitmap, not the map, is what a rewrite reads.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lapse.kernels.crc32c import crc32c_more
from lapse.kernels.decode import next_key, next_record
from lapse.kernels.jit import inlined, kernel
from lapse.kernels.keyhash import hash_key
from lapse.kernels.layout import ATTRIBUTES, HEADER_SIZE, RECORD_TOMBSTONE, VALUED_TOMBSTONES
from lapse.kernels.machine import multiply_high, prefetch, prefetch_until

WINDOW = 256
# Bytes to come are prefetched while keys are hashed, so that the next checksum finds them in a
# cache instead of waiting for DRAM: some batches of their size, within what the caches hold.
AHEAD_MIN, AHEAD_MAX, AHEAD_BATCHES = 8 << 10, 128 << 10, 8
FILLED, FILLED_OF = 11, 20  # of so many slots so many may be taken

# Words of `state`, the mutable part of a pass that outlives one call.
ENTRIES = 0  # keys in the map
LATEST = 1  # offset up to which the map covers the log (M-5, M-6)
RECORDS = 2  # records walked
KEYLESS = 3  # of these without key
STATE_SIZE = 4

# Why a call ended.
DONE = 0
GROW = 1  # more slots, please, before batch `lo`
FULL = 2  # the entries allowed are used up; LATEST says how far the map reaches (M-5)
BROKEN = 3  # a record of the batch does not parse
BAD_CRC = 4  # the batch's checksum differs


class Batches(NamedTuple):
    """The batches of a segment, by number b.

    Attributes:
        data, starts, ends: the records of batch b lie plain in data[starts[b]:ends[b]].
        rows: their headers (`layout.BATCH`).
        unchecked: the batches themselves lie in `data`, and each is checked against its CRC before
            it is walked over, which brings it into the cache.
        skipped: control batches and aborted ones.
        ordinals: the number of each batch's first record.
        valued: a record may be flagged as a tombstone though it has a value (KIP-87).
    """

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    rows: NDArray[np.void]
    unchecked: bool
    skipped: NDArray[np.bool_]
    ordinals: NDArray[np.int64]
    valued: bool


class Table(NamedTuple):
    """The map: its slots, the window of keys that are to be put, `state`, and the hash's seed."""

    slots: NDArray[np.uint64]
    window: NDArray[np.uint64]
    state: NDArray[np.int64]
    entries_max: int
    seed0: int
    seed1: int


class Marks(NamedTuple):
    """What a walk finds: a bit for each record by its ordinal, and counts for each batch."""

    superseded: NDArray[np.uint8]
    keyless: NDArray[np.uint8]
    tombstones: NDArray[np.int32]


_LOW32 = np.uint64(0xFFFFFFFF)
_HIGH32 = np.uint64(0xFFFFFFFF00000000)


@inlined
def set_bit(bits: NDArray[np.uint8], n: int) -> None:
    bits[n >> 3] |= np.uint8(1 << (n & 7))


@inlined
def _entry(high: np.uint64, ordinal: int) -> np.uint64:
    """The second word of a slot."""
    return (high & _HIGH32) | np.uint64(ordinal + 1)


@inlined
def _put(slots: NDArray[np.uint64], low: np.uint64, entry: np.uint64) -> np.uint64:
    """The ordinal + 1 that was there for the key, 0 for none."""
    n_slots = slots.shape[0] >> 1
    i = np.int64(multiply_high(low, np.uint64(n_slots)))
    while True:
        word = slots[2 * i + 1]
        old = word & _LOW32
        if old == 0 or (slots[2 * i] == low and (word ^ entry) & _HIGH32 == 0):
            slots[2 * i], slots[2 * i + 1] = low, entry
            return old
        i += 1
        if i == n_slots:
            i = 0


@inlined
def _holds(slots: NDArray[np.uint64], low: np.uint64, entry: np.uint64) -> bool:
    n_slots = slots.shape[0] >> 1
    i = np.int64(multiply_high(low, np.uint64(n_slots)))
    while True:
        word = slots[2 * i + 1]
        if word & _LOW32 == 0:
            return False
        if slots[2 * i] == low and (word ^ entry) & _HIGH32 == 0:
            return True
        i += 1
        if i == n_slots:
            i = 0


@kernel
def last_with(slots: NDArray[np.uint64], key: NDArray[np.uint8], seed0: int, seed1: int) -> int:
    """The ordinal of the last record with a key, -1 if the map has none."""
    low, high = hash_key(key, 0, key.shape[0], np.uint64(seed0), np.uint64(seed1))
    n_slots = slots.shape[0] >> 1
    i = np.int64(multiply_high(low, np.uint64(n_slots)))
    while True:
        word = slots[2 * i + 1]
        if word & _LOW32 == 0:
            return -1
        if slots[2 * i] == low and (word & _HIGH32) == high & _HIGH32:
            return np.int64(word & _LOW32) - 1
        i += 1
        if i == n_slots:
            i = 0


@kernel
def rehash(old: NDArray[np.uint64], new: NDArray[np.uint64]) -> None:
    """Move every entry of `old` into `new` (zeroed, larger)."""
    n_slots = new.shape[0] >> 1
    for k in range(old.shape[0] >> 1):
        if old[2 * k + 1] & _LOW32 == 0:
            continue
        i = np.int64(multiply_high(old[2 * k], np.uint64(n_slots)))
        while new[2 * i + 1] & _LOW32 != 0:
            i += 1
            if i == n_slots:
                i = 0
        new[2 * i] = old[2 * k]
        new[2 * i + 1] = old[2 * k + 1]


@kernel
def fill_filter(slots: NDArray[np.uint64], bits: NDArray[np.uint8]) -> None:
    """Set the bit of every entry in `bits` (zeroed): a small table that says which keys are not in.

    It fits into the cache where the map does not, and most keys of a clean log are in no map.
    """
    n_bits = np.uint64(8 * bits.shape[0])
    for k in range(slots.shape[0] >> 1):
        if slots[2 * k + 1] & _LOW32 != 0:
            set_bit(bits, np.int64(multiply_high(slots[2 * k], n_bits)))


@inlined
def _flush(
    slots: NDArray[np.uint64], window: NDArray[np.uint64], filled: int,
    superseded: NDArray[np.uint8],
) -> int:  # fmt: skip
    """Put what is in the window; how many keys were new."""
    new = 0
    for k in range(filled):
        old = _put(slots, window[2 * k], window[2 * k + 1])
        window[2 * k] = old
        prefetch(superseded, np.int64(old >> np.uint64(3)))
        new += old == 0
    for k in range(filled):
        old = window[2 * k]
        if old != 0:
            set_bit(superseded, np.int64(old) - 1)
    return new


@inlined
def _look_up(
    slots: NDArray[np.uint64], window: NDArray[np.uint64], filled: int,
    superseded: NDArray[np.uint8],
) -> None:  # fmt: skip
    for k in range(filled):
        if _holds(slots, window[2 * k], window[2 * k + 1]):
            set_bit(superseded, np.int64(window[2 * k + 1] & _LOW32) - 1)


@inlined
def crc_ok(batches: Batches, b: int) -> bool:
    """Whether batch `b`, which lies in `data` itself, has the checksum that its header says."""
    row = batches.rows[b]
    position = row.position
    return crc32c_more(0, batches.data, position + ATTRIBUTES, position + row.size) == row.crc


@inlined
def flagged(batches: Batches, b: int) -> int:
    """Records of batch `b` that are flagged as tombstones and have a value (KIP-87)."""
    row, data = batches.rows[b], batches.data
    n = 0
    if not batches.valued or row.attributes & VALUED_TOMBSTONES == 0:
        return n
    i, end = batches.starts[b], batches.ends[b]
    for _ in range(row.count):
        i, body, _, _, _, _, _, value_length = next_record(data, i, end)
        if i < 0:
            return n
        n += value_length >= 0 and data[body] & RECORD_TOMBSTONE != 0
    return n


@inlined
def ahead_of(row: np.void) -> int:
    """How far ahead of a batch bytes are prefetched."""
    return max(AHEAD_MIN, min(AHEAD_BATCHES * row.size, AHEAD_MAX))


@inlined
def _put_all(
    batches: Batches, b: int, table: Table, filled: int, marks: Marks
) -> tuple[int, int, int, int]:
    """Put all records of batch `b`, or leave them in the window; there is room for them.

    Returns (new keys or -1 if a record does not parse, keyless, tombstones, window filled).
    """
    data, slots, window = batches.data, table.slots, table.window
    i, end, ordinal = batches.starts[b], batches.ends[b], batches.ordinals[b]
    s0, s1 = np.uint64(table.seed0), np.uint64(table.seed1)
    n_slots = np.uint64(slots.shape[0] >> 1)
    new = 0
    without_key = 0
    tombstones = 0
    reach = ahead_of(batches.rows[b])
    ahead = i - HEADER_SIZE + reach
    for n in range(ordinal, ordinal + batches.rows[b].count):
        i, key, key_length, value_length = next_key(data, i, end)
        if i < 0:
            return -1, 0, 0, filled
        ahead = prefetch_until(data, ahead, i + reach)
        tombstones += value_length < 0
        if key_length < 0:
            set_bit(marks.keyless, n)
            without_key += 1
            continue
        low, high = hash_key(data, key, key_length, s0, s1)
        prefetch(slots, np.int64(multiply_high(low, n_slots)) * 2)
        window[2 * filled], window[2 * filled + 1] = low, _entry(high, n)
        filled += 1
        if filled == WINDOW:
            new += _flush(slots, window, filled, marks.superseded)
            filled = 0
    return new, without_key, tombstones, filled


@inlined
def _put_some(
    batches: Batches, b: int, dirty: int, table: Table, marks: Marks
) -> tuple[int, int, int, int, bool]:
    """Put the records of batch `b` from `dirty` on, one at a time, while entries are left.

    The window is empty. Returns (new keys or -1, keyless, tombstones, the offset that the map
    reaches, whether it stopped).
    """
    data, row, window = batches.data, batches.rows[b], table.window
    i, end, ordinal = batches.starts[b], batches.ends[b], batches.ordinals[b]
    s0, s1 = np.uint64(table.seed0), np.uint64(table.seed1)
    entries_left, latest = table.entries_max - table.state[ENTRIES], table.state[LATEST]
    new = 0
    without_key = 0
    tombstones = 0
    for n in range(ordinal, ordinal + row.count):
        i, _, _, offset_delta, key, key_length, _, value_length = next_record(data, i, end)
        if i < 0:
            return -1, 0, 0, latest, False
        tombstones += value_length < 0
        if key_length < 0:
            set_bit(marks.keyless, n)
            without_key += 1
        elif row.base_offset + offset_delta >= dirty:
            if new >= entries_left:  # M-5: even if this very key is in the map
                return new, without_key, tombstones, latest, True
            low, high = hash_key(data, key, key_length, s0, s1)
            window[0], window[1] = low, _entry(high, n)
            new += _flush(table.slots, window, 1, marks.superseded)
            latest = row.base_offset + offset_delta
    return new, without_key, tombstones, row.last_offset, False


@kernel
def map_keys(
    batches: Batches, lo: int, hi: int, dirty: int, table: Table, marks: Marks
) -> tuple[int, int]:
    """Put the records of batches lo..hi-1 that are at `dirty` or above (M-3, M-4).

    Batches that are skipped only move LATEST. Returns (why it ended, the batch it stopped at).
    """
    slots, window, state = table.slots, table.window, table.state
    entries_max = table.entries_max
    roomy = (slots.shape[0] >> 1) * FILLED // FILLED_OF
    filled = 0  # the window goes on over batches: one of a single record would wait for DRAM
    for b in range(lo, hi):
        row = batches.rows[b]
        if row.last_offset < dirty:
            continue
        if batches.skipped[b]:
            state[LATEST] = row.last_offset
            continue
        count = row.count
        if batches.unchecked and not crc_ok(batches, b):
            return BAD_CRC, b  # before its count is believed
        some = row.base_offset < dirty
        if some or state[ENTRIES] + filled + count >= min(roomy, entries_max):
            state[ENTRIES] += _flush(slots, window, filled, marks.superseded)
            filled = 0
        entries = state[ENTRIES]
        if min(entries + count, entries_max) > roomy:  # else `_put_some` stops at those allowed
            return GROW, b
        full, latest = False, row.last_offset
        if not some and entries + filled + count < entries_max:
            new, without_key, nulls, filled = _put_all(batches, b, table, filled, marks)
        else:
            new, without_key, nulls, latest, full = _put_some(batches, b, dirty, table, marks)
        if new < 0:
            return BROKEN, b
        state[ENTRIES] = entries + new
        state[KEYLESS] += without_key
        state[RECORDS] += count
        state[LATEST] = latest
        marks.tombstones[b] += nulls + flagged(batches, b)
        if full:
            return FULL, b
    state[ENTRIES] += _flush(slots, window, filled, marks.superseded)
    return DONE, hi


@kernel
def probe_keys(
    batches: Batches, lo: int, hi: int, dirty: int, table: Table, bits: NDArray[np.uint8],
    marks: Marks,
) -> tuple[int, int]:  # fmt: skip
    """Mark the records below `dirty` whose key the finished map holds: they are superseded.

    `bits` are as `fill_filter` left them; every mapped record is newer than every probed one.
    Returns as `map_keys` does.
    """
    data, slots, window = batches.data, table.slots, table.window
    s0, s1 = np.uint64(table.seed0), np.uint64(table.seed1)
    n_slots, n_bits = np.uint64(slots.shape[0] >> 1), np.uint64(8 * bits.shape[0])
    filled = 0
    for b in range(lo, hi):
        row = batches.rows[b]
        base_offset = row.base_offset
        if base_offset >= dirty:
            break
        if batches.skipped[b]:
            continue
        if batches.unchecked and not crc_ok(batches, b):
            return BAD_CRC, b
        nulls = 0
        i, end, ordinal = batches.starts[b], batches.ends[b], batches.ordinals[b]
        reach = ahead_of(row)
        ahead = i - HEADER_SIZE + reach
        for n in range(ordinal, ordinal + row.count):
            if row.last_offset < dirty:
                i, key, key_length, value_length = next_key(data, i, end)
            else:
                i, _, _, delta, key, key_length, _, value_length = next_record(data, i, end)
                if i >= 0 and base_offset + delta >= dirty:
                    break
            if i < 0:
                return BROKEN, b
            ahead = prefetch_until(data, ahead, i + reach)
            nulls += value_length < 0
            if key_length < 0:
                set_bit(marks.keyless, n)
                continue
            low, high = hash_key(data, key, key_length, s0, s1)
            bit = np.int64(multiply_high(low, n_bits))
            if (bits[bit >> 3] >> np.uint8(bit & 7)) & 1 == 0:
                continue
            prefetch(slots, np.int64(multiply_high(low, n_slots)) * 2)
            window[2 * filled], window[2 * filled + 1] = low, _entry(high, n)
            filled += 1
            if filled == WINDOW:
                _look_up(slots, window, filled, marks.superseded)
                filled = 0
        marks.tombstones[b] += nulls + flagged(batches, b)
    _look_up(slots, window, filled, marks.superseded)
    return DONE, hi
