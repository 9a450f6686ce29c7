"""Key → what is known of it: its last record, and how many it has had. For views and exports.

Keys are kept with their bytes and compared by them, never by a hash alone. An entry is a row of
`ENTRY`, its key's bytes lie in `arena`; `slots` holds entry + 1 at the key's hash, 0 for an empty
slot, probing on linearly. A table takes only keys whose hash lies in a range of 32 bits, so that a
log with more keys than memory is gone through range by range.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lapse.kernels.jit import inlined, kernel
from lapse.kernels.keyhash import hash_key
from lapse.kernels.machine import copy_bytes, multiply_high, prefetch

PARTS = 1 << 32  # a key's part is 32 bits of its hash

ENTRY = np.dtype(
    [
        ("hash", np.uint64),
        ("key_at", np.int64),
        ("offset", np.int64),
        ("first_offset", np.int64),
        ("timestamp", np.int64),
        ("create_time", np.int64),
        ("records", np.int64),
        ("bytes", np.int64),
        ("part", np.int64),
        ("key_length", np.int32),
        ("value_length", np.int32),
        ("tombstone", np.int32),
    ],
    align=True,
)

ENTRY_BYTES = ENTRY.itemsize
WINDOW = 128  # keys looked ahead: a look-up waits for DRAM otherwise


class Columns(NamedTuple):
    """Records, a number each: where in `data` the key begins, how long it is (-1: null), and more.

    Times are microseconds.
    """

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    value_lengths: NDArray[np.int64]
    offsets: NDArray[np.int64]
    timestamps: NDArray[np.int64]
    create_times: NDArray[np.int64]
    tombstones: NDArray[np.bool_]


class Table(NamedTuple):
    """Keys by their hash.

    Attributes:
        slots: an entry's number + 1, 0 where there is none; more than there are entries.
        entries: rows of ENTRY; `entry_bytes` is the same memory.
        arena: the keys, one after the other.
        window: scratch, two words for each of WINDOW keys.
    """

    slots: NDArray[np.int64]
    entries: NDArray[np.void]
    entry_bytes: NDArray[np.uint8]
    arena: NDArray[np.uint8]
    window: NDArray[np.uint64]
    state: NDArray[np.int64]


# Words of `state`.
ENTRIES = 0
ARENA_USED = 1
STATE_SIZE = 2

# Why a call of `note_keys` ended.
DONE = 0
MORE_ENTRIES = 1
MORE_ARENA = 2
UNSOUND = 3  # a key lies outside its bytes

# What `find_keys` says instead of an entry: no such key, no key or one of other parts.
ABSENT = -1
ELSEWHERE = -2


@inlined
def _same(
    one: NDArray[np.uint8], at: int, other: NDArray[np.uint8], start: int, length: int
) -> bool:
    for k in range(length):
        if one[at + k] != other[start + k]:
            return False
    return True


@inlined
def _find(
    slots: NDArray[np.int64], entries: NDArray[np.void], arena: NDArray[np.uint8], low: np.uint64,
    data: NDArray[np.uint8], start: int, length: int,
) -> tuple[int, int]:  # fmt: skip
    """(slot, entry) of a key; the entry is -1 where there is none, and the slot the first empty."""
    n_slots = slots.shape[0]
    i = np.int64(multiply_high(low, np.uint64(n_slots)))
    while True:
        e = slots[i] - 1
        if e < 0:
            return i, e
        known = entries[e]
        if known.hash == low and known.key_length == length:
            if _same(arena, known.key_at, data, start, length):
                return i, e
        i += 1
        if i == n_slots:
            i = 0


@inlined
def _look_ahead(
    records: Columns, first: int, until: int, table: Table, s0: np.uint64, s1: np.uint64
) -> None:
    """Hash some keys into the window, and ask for what they will be compared with."""
    slots, window, lengths = table.slots, table.window, records.lengths
    n_slots = np.uint64(slots.shape[0])
    for n in range(first, until):
        if lengths[n] >= 0:
            low, high = hash_key(records.data, records.starts[n], lengths[n], s0, s1)
            window[2 * (n - first)], window[2 * (n - first) + 1] = low, high
            prefetch(slots, np.int64(multiply_high(low, n_slots)))
    for n in range(first, until):
        if lengths[n] >= 0:
            e = slots[np.int64(multiply_high(window[2 * (n - first)], n_slots))] - 1
            prefetch(table.entry_bytes, max(e, 0) * ENTRY_BYTES)


@kernel
def note_keys(
    records: Columns, first: int, table: Table, parts: tuple[int, int], seed: tuple[int, int]
) -> tuple[int, int]:
    """Note records `first` … in ascending order of offsets; those without key count for nothing.

    Only keys whose hash has its part in the range `parts` are noted. A record is taken to be newer
    than all that were noted before. Returns (why it ended, the record to go on with).
    """
    data, starts, lengths = records.data, records.starts, records.lengths
    slots, entries, arena = table.slots, table.entries, table.arena
    window, state = table.window, table.state
    s0, s1 = np.uint64(seed[0]), np.uint64(seed[1])
    for n in range(first, lengths.shape[0]):
        if lengths[n] >= 0 and (starts[n] < 0 or lengths[n] > data.shape[0] - starts[n]):
            return UNSOUND, n
    for begin in range(first, lengths.shape[0], WINDOW):
        until = min(begin + WINDOW, lengths.shape[0])
        _look_ahead(records, begin, until, table, s0, s1)
        for n in range(begin, until):
            start, length = starts[n], lengths[n]
            if length < 0:
                continue
            low, high = window[2 * (n - begin)], window[2 * (n - begin) + 1]
            part = np.int64(high >> np.uint64(32))
            if part < parts[0] or part >= parts[1]:
                continue
            i, e = _find(slots, entries, arena, low, data, start, length)
            if e < 0:
                e, at = state[ENTRIES], state[ARENA_USED]
                if e == entries.shape[0]:
                    return MORE_ENTRIES, n
                if length > arena.shape[0] - at:
                    return MORE_ARENA, n
                copy_bytes(arena, at, data, start, length)
                state[ENTRIES], state[ARENA_USED] = e + 1, at + length
                slots[i] = e + 1
                fresh = entries[e]
                fresh.hash, fresh.key_at, fresh.key_length, fresh.part = low, at, length, part
                fresh.records, fresh.bytes, fresh.first_offset = 0, 0, records.offsets[n]
            value_length = records.value_lengths[n]
            entry = entries[e]
            entry.offset, entry.timestamp = records.offsets[n], records.timestamps[n]
            entry.create_time = records.create_times[n]
            entry.value_length, entry.tombstone = value_length, records.tombstones[n]
            entry.records += 1
            entry.bytes += length + max(value_length, 0)
    return DONE, lengths.shape[0]


@kernel
def find_keys(
    records: Columns, table: Table, parts: tuple[int, int], seed: tuple[int, int],
    found: NDArray[np.int64],
) -> int:  # fmt: skip
    """Into `found`, a number a record: the entry of its key, ABSENT or ELSEWHERE.

    Of `records` only the keys count. Returns DONE or UNSOUND.
    """
    data, starts, lengths = records.data, records.starts, records.lengths
    window = table.window
    s0, s1 = np.uint64(seed[0]), np.uint64(seed[1])
    if found.shape[0] != lengths.shape[0] or starts.shape[0] != lengths.shape[0]:
        return UNSOUND
    for n in range(lengths.shape[0]):
        if lengths[n] >= 0 and (starts[n] < 0 or lengths[n] > data.shape[0] - starts[n]):
            return UNSOUND
    for begin in range(0, lengths.shape[0], WINDOW):
        until = min(begin + WINDOW, lengths.shape[0])
        _look_ahead(records, begin, until, table, s0, s1)
        for n in range(begin, until):
            found[n] = ELSEWHERE
            if lengths[n] < 0:
                continue
            low, high = window[2 * (n - begin)], window[2 * (n - begin) + 1]
            part = np.int64(high >> np.uint64(32))
            if parts[0] <= part < parts[1]:
                _, found[n] = _find(
                    table.slots, table.entries, table.arena, low, data, starts[n], lengths[n]
                )
    return DONE


@kernel
def fill_slots(
    entries: NDArray[np.void], state: NDArray[np.int64], slots: NDArray[np.int64]
) -> None:
    """Put every entry into `slots`, which are zeros and more than there are entries."""
    n_slots = slots.shape[0]
    for e in range(state[ENTRIES]):
        i = np.int64(multiply_high(entries[e].hash, np.uint64(n_slots)))
        while slots[i] != 0:
            i += 1
            if i == n_slots:
                i = 0
        slots[i] = e + 1


@kernel
def keep_parts(
    entries: NDArray[np.void], arena: NDArray[np.uint8], state: NDArray[np.int64], part_until: int
) -> None:
    """Forget the entries of parts from `part_until` on; what is left moves up, keys too."""
    kept = 0
    used = 0
    for e in range(state[ENTRIES]):
        if entries[e].part >= part_until:
            continue
        at, length = entries[e].key_at, entries[e].key_length
        for k in range(length):  # never forwards: entries and keys are in the same order
            arena[used + k] = arena[at + k]
        entries[kept] = entries[e]
        entries[kept].key_at = used
        kept += 1
        used += length
    state[ENTRIES], state[ARENA_USED] = kept, used


@kernel
def gather_entries(
    entries: NDArray[np.void], arena: NDArray[np.uint8], ends: NDArray[np.int32],
    data: NDArray[np.uint8],
) -> int:  # fmt: skip
    """Keys of some entries one after the other into `data`, their ends into ends[1:].

    Returns the bytes copied, -1 where something would lie outside `arena` or `data`.
    """
    if ends.shape[0] != entries.shape[0] + 1:
        return -1
    at = 0
    ends[0] = 0
    for e in range(entries.shape[0]):
        start, length = entries[e].key_at, entries[e].key_length
        if start < 0 or length > arena.shape[0] - start or length > data.shape[0] - at:
            return -1
        copy_bytes(data, at, arena, start, length)
        at += length
        ends[e + 1] = at
    return at
