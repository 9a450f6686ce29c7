"""The tables of `kernels.find_key` for a search. Made once, read by any number of threads."""

from __future__ import annotations

import secrets

import numpy as np

from lapse.kernels.find_key import RAW_BYTES_MAX, KeyTable, fill_table
from lapse.lifecycle.erase.search import Search

_SLOTS_MIN = 8
_FILTER_BITS_MIN, _FILTER_BITS_MAX = 1 << 16, 1 << 26  # 8 KiB stay in the first cache


def table_of(search: Search) -> KeyTable:
    """At most half full; the hash gets a new key each time, since anyone may choose the keys."""
    keys = search.keys
    lengths = np.array([len(key) for key in keys], np.int64)
    slots = _SLOTS_MIN
    while slots < 2 * len(keys):
        slots *= 2
    filter_bits = min(max(16 * slots, _FILTER_BITS_MIN), _FILTER_BITS_MAX)
    seeds = [secrets.randbits(64) for _ in range(2)]
    table = KeyTable(
        blob=np.frombuffer(b"".join(keys) + bytes(RAW_BYTES_MAX), np.uint8).copy(),
        starts=np.cumsum(lengths) - lengths,
        lengths=lengths,
        filter=np.zeros(filter_bits // 64, np.uint64),
        filter_shift=64 - (filter_bits.bit_length() - 1),
        seeds=np.array(seeds, np.uint64),
        low=np.zeros(len(keys), np.uint64),
        high=np.zeros(len(keys), np.uint64),
        slots=np.full(slots, -1, np.int64),
        raw_first=np.zeros(256, np.uint8),
        raw_bytes=min([RAW_BYTES_MAX, *map(len, keys)]),
        raw_filter=np.zeros(filter_bits // 64, np.uint64),
        raw_slots=np.full(slots, -1, np.int64),
        raw_words=np.zeros(len(keys), np.uint64),
        raw_next=np.full(len(keys), -1, np.int64),
        offsets=np.array(search.offsets, np.int64),
    )
    fill_table(table)
    return table
