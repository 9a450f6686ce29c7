"""Keys into the registers of a HyperLogLog sketch, and null values counted on the way.

What the registers mean, and how many keys they stand for: `lapse.log.sketch`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lapse.kernels.decode import next_key
from lapse.kernels.jit import inlined, kernel
from lapse.kernels.keyhash import hash_key

REGISTER_BITS = 10
REGISTERS = 1 << REGISTER_BITS
RANK_MAX = 64 - REGISTER_BITS + 1

# Two sketches can be merged only if their keys were hashed alike, so the seed is a constant. Who
# crafts keys can thus spoil an estimate; nothing that may remove a record is built on it.
_SEED0 = np.uint64(0x6C61707365206B65)
_SEED1 = np.uint64(0x7920736B65746368)


@inlined
def _note(buf: NDArray[np.uint8], key: int, key_length: int, registers: NDArray[np.uint8]) -> None:
    word, _ = hash_key(buf, key, key_length, _SEED0, _SEED1)
    register = word & np.uint64(REGISTERS - 1)
    word >>= np.uint64(REGISTER_BITS)
    rank = 1
    while rank < RANK_MAX and word & np.uint64(1) == 0:
        word >>= np.uint64(1)
        rank += 1
    registers[register] = max(registers[register], rank)


@kernel
def note_batches(
    buf: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64],
    counts: NDArray[np.int64], registers: NDArray[np.uint8],
) -> tuple[int, int]:  # fmt: skip
    """Note the keys of v2 batches whose plain records are buf[starts[b]:ends[b]].

    Returns (batches that parse, from the first on; null values in those).
    """
    tombstones = 0
    for b in range(starts.shape[0]):
        i, end = starts[b], ends[b]
        nulls = 0
        for _ in range(counts[b]):
            i, key, key_length, value_length = next_key(buf, i, end)
            if i < 0:
                return b, tombstones
            if key_length >= 0:
                _note(buf, key, key_length, registers)
            nulls += value_length < 0
        tombstones += nulls
    return starts.shape[0], tombstones


@kernel
def note_records(
    buf: NDArray[np.uint8], rows: NDArray[np.void], registers: NDArray[np.uint8]
) -> int:
    """The same for decoded records, rows of `RECORD`; returns the null values among them."""
    tombstones = 0
    for n in range(rows.shape[0]):
        row = rows[n]
        if row.key_length >= 0:
            _note(buf, row.key_position, row.key_length, registers)
        tombstones += row.value_length < 0
    return tombstones
