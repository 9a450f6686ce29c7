"""Records with one of some keys, or at one of some offsets, found in batches; keys in raw bytes.

Ways in: `find_keys` walks the records of batches, `find_keys_in_place` those that need no inflating
and lie where their headers do, `find_keys_in_rows` takes records that are rows already (messages
out of a wrapper), and `find_raw` looks for the keys' bytes anywhere. Where
reading has to begin anew after damage, `next_candidate` says where a batch may be. How many keys
there are costs next to nothing: `lifecycle.erase.table` makes the tables (`KeyTable`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lapse.kernels.decode import next_record
from lapse.kernels.jit import inlined, kernel
from lapse.kernels.keyhash import hash_key
from lapse.kernels.layout import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_SEQUENCE,
    CODEC_MASK,
    CONTROL,
    COUNT,
    HEADER_SIZE,
    LAST_OFFSET_DELTA,
    LEADER_EPOCH,
    LEGACY_ATTRIBUTES,
    LENGTH,
    LOG_OVERHEAD,
    MAGIC,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    TRANSACTIONAL,
    V0_KEY,
    V1_KEY,
)
from lapse.kernels.machine import load_i16_be, load_i32_be, load_i64_be, load_u64

RAW_BYTES_MAX = 8
MESSAGE_SIZE_MIN = V0_KEY + 8
_MIX = np.uint64(0x9E3779B97F4A7C15)
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
_ONE = np.uint64(1)
_LOW_BITS = np.uint64(0x0101010101010101)
_TOP_BITS = np.uint64(0x8080808080808080)
_ATTRIBUTES_KNOWN = 0x407F  # of a v2 batch; bits without a meaning yet are not expected in a log
_LEGACY_ATTRIBUTES_KNOWN = 0x0F
_CODEC_MAX = 4
_LEGACY_CODEC_MAX = 3

# What became of a batch: fields of `states`.
READ, BROKEN, CONTROL_ONLY, PACKED = 0, 1, 2, 3

# Words of `totals`.
RECORDS, HITS = 0, 1

# Rows of `counts`: how many records there are of each target (the keys, then the offsets); and what
# comes after the last one with a value, and after the last tombstone that is in no transaction.
WITH_VALUE, TOMBSTONES, BEYOND, AFTER_VALUE, AFTER_TOMBSTONE = 0, 1, 2, 3, 4
COUNTS = 5

# One row per record found. `position` is that of the record in the bytes looked at.
HIT = np.dtype(
    [
        ("batch", np.int64),
        ("offset", np.int64),
        ("position", np.int64),
        ("target", np.int64),
        ("has_value", np.int64),
    ],
    align=True,
)


class KeyTable(NamedTuple):
    """Keys and offsets to be found, as arrays.

    Attributes:
        blob: the keys one after the other, and eight bytes more; starts, lengths: where each is.
        filter: a bit for each `_quick` of a key: the one that it has when `filter_shift` lower
            bits are left out. Sixteen bits or more a key keep most other keys out.
        low, high: hashes of each key under `seeds`.
        slots: open addressing by `low`; a key's number, or -1.
        raw_first: 1 at each byte value that a key begins with.
        raw_bytes: how many of a key's first bytes `find_raw` compares, 1 to 8.
        raw_filter, raw_slots, raw_words, raw_next: likewise by those bytes; keys that begin alike
            are a list by `raw_next`.
        offsets: ascending; their targets are numbered from the number of keys on.
    """

    blob: NDArray[np.uint8]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    filter: NDArray[np.uint64]
    filter_shift: int
    seeds: NDArray[np.uint64]
    low: NDArray[np.uint64]
    high: NDArray[np.uint64]
    slots: NDArray[np.int64]
    raw_first: NDArray[np.uint8]
    raw_bytes: int
    raw_filter: NDArray[np.uint64]
    raw_slots: NDArray[np.int64]
    raw_words: NDArray[np.uint64]
    raw_next: NDArray[np.int64]
    offsets: NDArray[np.int64]


# --- tables ---------------------------------------------------------------------------------------


@inlined
def _few_bytes(buf: NDArray[np.uint8], at: int, length: int) -> np.uint64:
    word = np.uint64(0)
    for k in range(length):
        word |= np.uint64(buf[at + k]) << np.uint64(8 * k)
    return word


@inlined
def _quick(buf: NDArray[np.uint8], at: int, length: int) -> np.uint64:
    """A number that most keys do not share, out of its ends, middle and length: cheap, not safe."""
    if length >= 8:
        last, middle = load_u64(buf, at + length - 8), load_u64(buf, at + ((length - 8) >> 1))
        word = load_u64(buf, at) ^ (last << np.uint64(31)) ^ (last >> np.uint64(33))
        word = word * _MIX + middle
    else:
        word = _few_bytes(buf, at, length)
    return (word ^ np.uint64(length)) * _MIX


@inlined
def _in_filter(bits: NDArray[np.uint64], shift: int, mixed: np.uint64) -> bool:
    bit = mixed >> np.uint64(shift)
    return (bits[np.int64(bit >> np.uint64(6))] >> (bit & np.uint64(63))) & _ONE != 0


@inlined
def _note(bits: NDArray[np.uint64], shift: int, mixed: np.uint64) -> None:
    bit = mixed >> np.uint64(shift)
    bits[np.int64(bit >> np.uint64(6))] |= _ONE << (bit & np.uint64(63))


@kernel
def fill_table(table: KeyTable) -> None:
    """Fill filters, hashes and slots (these -1 throughout) from the keys, which are distinct."""
    mask = np.uint64(table.slots.shape[0] - 1)
    for n in range(table.starts.shape[0]):
        at, length = table.starts[n], table.lengths[n]
        _note(table.filter, table.filter_shift, _quick(table.blob, at, length))
        table.low[n], table.high[n] = hash_key(
            table.blob, at, length, table.seeds[0], table.seeds[1]
        )
        slot = np.int64(table.low[n] & mask)
        while table.slots[slot] >= 0:
            slot = np.int64((np.uint64(slot) + _ONE) & mask)
        table.slots[slot] = n

        word = _few_bytes(table.blob, at, table.raw_bytes)
        mixed = word * _MIX
        table.raw_first[table.blob[at]] = 1
        _note(table.raw_filter, table.filter_shift, mixed)
        table.raw_words[n] = word
        slot = np.int64((mixed >> np.uint64(20)) & mask)
        while table.raw_slots[slot] >= 0 and table.raw_words[table.raw_slots[slot]] != word:
            slot = np.int64((np.uint64(slot) + _ONE) & mask)
        table.raw_next[n] = table.raw_slots[slot]  # -1 ends the list
        table.raw_slots[slot] = n


@inlined
def _is_key(table: KeyTable, n: int, buf: NDArray[np.uint8], at: int) -> bool:
    start = table.starts[n]
    for k in range(table.lengths[n]):
        if table.blob[start + k] != buf[at + k]:
            return False
    return True


@kernel
def _by_hash(table: KeyTable, buf: NDArray[np.uint8], at: int, length: int) -> int:
    low, high = hash_key(buf, at, length, table.seeds[0], table.seeds[1])
    mask = np.uint64(table.slots.shape[0] - 1)
    slot = np.int64(low & mask)
    while True:
        n = table.slots[slot]
        if n < 0:
            return -1
        if (
            table.low[n] == low
            and table.high[n] == high
            and table.lengths[n] == length
            and _is_key(table, n, buf, at)
        ):
            return n
        slot = np.int64((np.uint64(slot) + _ONE) & mask)


@inlined
def _key_of(table: KeyTable, buf: NDArray[np.uint8], at: int, length: int) -> int:
    """The number of the key that these bytes are, -1 if they are none (a null key is none)."""
    if length < 0 or not _in_filter(table.filter, table.filter_shift, _quick(buf, at, length)):
        return -1
    return _by_hash(table, buf, at, length)


@inlined
def _first_offset_from(offsets: NDArray[np.int64], least: int) -> int:
    low = 0
    high = offsets.shape[0]
    while low < high:
        middle = (low + high) >> 1
        if offsets[middle] < least:
            low = middle + 1
        else:
            high = middle
    return low


# --- records --------------------------------------------------------------------------------------


@inlined
def _found(
    target: int, batch: int, offset: int, position: int, has_value: bool, settled: bool,
    below: NDArray[np.int64], counts: NDArray[np.int64], hits: NDArray[np.void],
    totals: NDArray[np.int64],
) -> None:  # fmt: skip
    """Count a record, and keep its place while there is room."""
    if has_value:
        counts[AFTER_VALUE, target] = max(counts[AFTER_VALUE, target], offset + 1)
    elif settled:
        counts[AFTER_TOMBSTONE, target] = max(counts[AFTER_TOMBSTONE, target], offset + 1)
    if offset >= below[WITH_VALUE if has_value else TOMBSTONES]:
        counts[BEYOND, target] += 1
        return
    counts[WITH_VALUE if has_value else TOMBSTONES, target] += 1
    if totals[HITS] < hits.shape[0]:
        hit = hits[totals[HITS]]
        hit.batch, hit.offset, hit.position = batch, offset, position
        hit.target, hit.has_value = target, has_value
    totals[HITS] += 1


@inlined
def _judge(
    table: KeyTable, buf: NDArray[np.uint8], key: int, key_length: int, offsets_too: bool,
    batch: int, offset: int, position: int, has_value: bool, settled: bool,
    below: NDArray[np.int64], counts: NDArray[np.int64], hits: NDArray[np.void],
    totals: NDArray[np.int64],
) -> None:  # fmt: skip
    target = _key_of(table, buf, key, key_length)
    if target >= 0:
        _found(target, batch, offset, position, has_value, settled, below, counts, hits, totals)
    if offsets_too:
        n = _first_offset_from(table.offsets, offset)
        if n < table.offsets.shape[0] and table.offsets[n] == offset:
            target = table.starts.shape[0] + n
            _found(target, batch, offset, position, has_value, settled, below, counts, hits, totals)
    totals[RECORDS] += 1


@inlined
def _message_key(buf: NDArray[np.uint8], position: int, end: int, magic: int) -> tuple[int, int]:
    """Where the key of a message of v0 or v1 lies, and its length; (-1, 0) if it does not parse."""
    key_at = position + (V1_KEY if magic == 1 else V0_KEY)
    if key_at + 8 > end:
        return -1, 0
    key_length = load_i32_be(buf, key_at)
    key = key_at + 4
    if key_length < -1 or key_length > end - key - 4:
        return -1, 0
    value = key + max(key_length, 0) + 4
    value_length = load_i32_be(buf, value - 4)
    if value_length < -1 or value + max(value_length, 0) != end:
        return -1, 0
    return key, key_length


@inlined
def _look_into(
    plain: NDArray[np.uint8], row: np.void, b: int, i: int, end: int, table: KeyTable,
    below: NDArray[np.int64], counts: NDArray[np.int64], hits: NDArray[np.void],
    totals: NDArray[np.int64],
) -> int:  # fmt: skip
    """The records of batch number `b`, plain[i:end]; whether it was read."""
    if i < 0 or end > plain.shape[0] or i > end:
        return BROKEN
    if row.magic < 2:
        key, key_length = _message_key(plain, i, end, row.magic)
        if key < 0:
            return BROKEN
        has_value = load_i32_be(plain, key + max(key_length, 0)) >= 0
        _judge(table, plain, key, key_length, table.offsets.shape[0] > 0, b,
               row.base_offset, i, has_value, True, below, counts, hits, totals)  # fmt: skip
        return READ
    if row.attributes & CONTROL != 0:
        return CONTROL_ONLY
    wanted = _first_offset_from(table.offsets, row.base_offset)
    offsets_too = wanted < table.offsets.shape[0] and table.offsets[wanted] <= row.last_offset
    span = row.last_offset - row.base_offset
    settled = row.attributes & TRANSACTIONAL == 0
    for _ in range(row.count):
        after, _, _, delta, key, key_length, _, value_length = next_record(plain, i, end)
        if after < 0 or delta < 0 or delta > span:
            return BROKEN
        _judge(table, plain, key, key_length, offsets_too, b, row.base_offset + delta, i,
               value_length >= 0, settled, below, counts, hits, totals)  # fmt: skip
        i = after
    return READ if i == end else BROKEN


@kernel
def find_keys(
    plain: NDArray[np.uint8], batches: NDArray[np.void], starts: NDArray[np.int64],
    ends: NDArray[np.int64], table: KeyTable, below: NDArray[np.int64], counts: NDArray[np.int64],
    hits: NDArray[np.void], totals: NDArray[np.int64], states: NDArray[np.uint8],
) -> None:  # fmt: skip
    """Look through the records of batches that are not compressed, or no longer.

    Those of a v2 batch b are plain[starts[b]:ends[b]]; a message of v0 or v1 lies there whole.
    Records with a value from offset below[0] on are only counted, as are tombstones from below[1]
    on. `states` says of each batch whether it was read; BROKEN is one whose records do not fill it
    or lie outside its offsets, and what was found before that counts.
    """
    for b in range(batches.shape[0]):
        states[b] = _look_into(
            plain, batches[b], b, starts[b], ends[b], table, below, counts, hits, totals
        )


@kernel
def find_keys_in_place(
    data: NDArray[np.uint8], batches: NDArray[np.void], table: KeyTable, below: NDArray[np.int64],
    counts: NDArray[np.int64], hits: NDArray[np.void], totals: NDArray[np.int64],
    states: NDArray[np.uint8],
) -> tuple[int, int, int]:  # fmt: skip
    """The same of batches where they lie in `data`; those that are compressed are PACKED.

    Returns how many are BROKEN, CONTROL_ONLY and PACKED: mostly none, and there may be a batch a
    record.
    """
    broken = control = packed = 0
    for b in range(batches.shape[0]):
        row = batches[b]
        if row.attributes & CODEC_MASK != 0:
            states[b] = PACKED
            packed += 1
            continue
        start = row.position + (HEADER_SIZE if row.magic == 2 else 0)
        states[b] = _look_into(
            data, row, b, start, row.position + row.size, table, below, counts, hits, totals
        )
        broken += states[b] == BROKEN
        control += states[b] == CONTROL_ONLY
    return broken, control, packed


@kernel
def find_keys_in_rows(
    plain: NDArray[np.uint8], records: NDArray[np.void], base_offset: int, table: KeyTable,
    below: NDArray[np.int64], counts: NDArray[np.int64], hits: NDArray[np.void],
    totals: NDArray[np.int64],
) -> None:  # fmt: skip
    """As `find_keys`, in rows of RECORD that point into `plain`; their batch is number 0."""
    offsets_too = table.offsets.shape[0] > 0
    for n in range(records.shape[0]):
        r = records[n]
        if r.key_length > 0 and (r.key_position < 0 or r.key_position + r.key_length > len(plain)):
            continue
        _judge(table, plain, r.key_position, r.key_length, offsets_too, 0,
               base_offset + r.offset_delta, r.position, r.value_length >= 0, True, below, counts,
               hits, totals)  # fmt: skip


# --- bytes ----------------------------------------------------------------------------------------


@kernel
def find_raw(
    buf: NDArray[np.uint8], start: int, starts_end: int, end: int, table: KeyTable,
    counts: NDArray[np.int64], positions: NDArray[np.int64], targets: NDArray[np.int64], n: int,
) -> int:  # fmt: skip
    """Find the keys' bytes wherever they begin in buf[start:starts_end] and end by `end`.

    Adds to counts[target], and puts what there is room for into `positions` and `targets` from
    `n` on. Returns how many are noted there now.
    """
    width = table.raw_bytes
    keep = _ALL >> np.uint64(64 - 8 * width)
    mask = np.uint64(table.raw_slots.shape[0] - 1)
    raw_filter, shift = table.raw_filter, table.filter_shift
    whole_words = buf.shape[0] - 8
    first = table.raw_first
    i = start - 1
    last = min(starts_end, end - width + 1) - 1
    while i < last:
        i += 1
        while i + 4 <= last and (
            first[buf[i]] | first[buf[i + 1]] | first[buf[i + 2]] | first[buf[i + 3]] == 0
        ):
            i += 4
        if first[buf[i]] == 0:
            continue
        word = load_u64(buf, i) & keep if i <= whole_words else _few_bytes(buf, i, width)
        mixed = word * _MIX
        if not _in_filter(raw_filter, shift, mixed):
            continue
        slot = np.int64((mixed >> np.uint64(20)) & mask)
        while table.raw_slots[slot] >= 0 and table.raw_words[table.raw_slots[slot]] != word:
            slot = np.int64((np.uint64(slot) + _ONE) & mask)
        key = table.raw_slots[slot]
        while key >= 0:
            if table.lengths[key] <= end - i and _is_key(table, key, buf, i):
                counts[key] += 1
                if n < positions.shape[0]:
                    positions[n], targets[n] = i, key
                    n += 1
            key = table.raw_next[key]
    return n


@inlined
def _may_be_batch(buf: NDArray[np.uint8], i: int, size: int) -> bool:
    attributes = load_i16_be(buf, i + ATTRIBUTES) & 0xFFFF
    last_delta = load_i32_be(buf, i + LAST_OFFSET_DELTA)
    count = load_i32_be(buf, i + COUNT)
    return (
        size >= HEADER_SIZE
        and attributes & ~_ATTRIBUTES_KNOWN == 0
        and attributes & CODEC_MASK <= _CODEC_MAX
        and last_delta >= 0
        and 0 <= count <= last_delta + 1
        and load_i64_be(buf, i + BASE_OFFSET) >= 0
        and load_i64_be(buf, i + PRODUCER_ID) >= -1
        and load_i16_be(buf, i + PRODUCER_EPOCH) >= -1
        and load_i32_be(buf, i + BASE_SEQUENCE) >= -1
        and load_i32_be(buf, i + LEADER_EPOCH) >= -1
    )


@inlined
def _may_be_message(buf: NDArray[np.uint8], i: int, size: int, end: int) -> bool:
    """Of v0 or v1: its lengths must come out even, as far as they can be seen."""
    magic = buf[i + MAGIC]
    attributes = buf[i + LEGACY_ATTRIBUTES]
    key_at = V1_KEY if magic == 1 else V0_KEY
    if (
        attributes & ~_LEGACY_ATTRIBUTES_KNOWN
        or attributes & CODEC_MASK > _LEGACY_CODEC_MAX
        or size < key_at + 8
    ):
        return False
    if load_i64_be(buf, i + BASE_OFFSET) < 0 or i + key_at + 8 > end:
        return False
    key_length = load_i32_be(buf, i + key_at)
    value_at = key_at + 4 + max(key_length, 0)
    if key_length < -1 or value_at + 4 > size:
        return False
    if i + value_at + 4 > end:
        return True
    return value_at + 4 + max(load_i32_be(buf, i + value_at), 0) == size


@kernel
def next_candidate(buf: NDArray[np.uint8], start: int, end: int, room: int) -> int:
    """The first place from `start` on where the header of a batch or message may lie.

    It says that it ends at position `room` at the latest. Returns -1 if there is none; a header
    of which less than `HEADER_SIZE` bytes lie before `end` may be missed. Whether there is a
    batch, its checksum decides.
    """
    i = start - 1
    last = end - MESSAGE_SIZE_MIN
    while i < last:
        i += 1
        # Eight places at a time, as long as none of their magic bytes is 0, 1 or 2.
        while i + 8 <= last:
            magics = load_u64(buf, i + MAGIC)
            if (magics - _LOW_BITS * np.uint64(3)) & ~magics & _TOP_BITS != 0:
                break
            i += 8
        magic = buf[i + MAGIC]
        if magic > 2:
            continue
        size = LOG_OVERHEAD + load_i32_be(buf, i + LENGTH)
        if size < MESSAGE_SIZE_MIN or size > room - i:
            continue
        if magic == 2:
            if i + HEADER_SIZE <= end and _may_be_batch(buf, i, size):
                return i
        elif _may_be_message(buf, i, size, end):
            return i
    return -1
