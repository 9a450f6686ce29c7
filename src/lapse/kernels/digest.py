"""A digest of records: the same for the same records in any order and any batches.

The sum of a hash of each record, modulo 2^128 in two words: SipHash of key, value and headers, each
under what came out of the one before, then of time and flag. Who may choose records could make two
sets of them alike: it tells accidents, not forgeries.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lapse.kernels.encode import Column
from lapse.kernels.jit import inlined, kernel
from lapse.kernels.keyhash import hash_key

LAST_BYTES = 9  # of a time and a flag
_NULL = np.uint64(0x9E3779B97F4A7C15)  # so that null is not empty


@inlined
def _field(column: Column, n: int, low: np.uint64, high: np.uint64) -> tuple[np.uint64, np.uint64]:
    length = column.lengths[n]
    if length < 0:
        return hash_key(column.data, 0, 0, low ^ _NULL, high)
    return hash_key(column.data, column.starts[n], length, low, high)


@inlined
def _is_sound(column: Column, count: int) -> bool:
    if column.starts.shape[0] != count or column.lengths.shape[0] != count:
        return False
    for n in range(count):
        if column.lengths[n] >= 0 and (
            column.starts[n] < 0 or column.lengths[n] > column.data.shape[0] - column.starts[n]
        ):
            return False
    return True


@kernel
def digest_records(
    keys: Column, values: Column, headers: Column, times: NDArray[np.int64],
    tombstones: NDArray[np.bool_], seed: tuple[int, int], room: NDArray[np.uint8],
    words: NDArray[np.uint64],
) -> bool:  # fmt: skip
    """Add each record's hash to words[0] and words[1]; `room` is scratch of LAST_BYTES.

    False, and nothing is added, where a field lies outside its bytes.
    """
    count = times.shape[0]
    if tombstones.shape[0] != count or words.shape[0] < 2 or room.shape[0] < LAST_BYTES:
        return False
    if not (_is_sound(keys, count) and _is_sound(values, count) and _is_sound(headers, count)):
        return False
    for n in range(count):
        low, high = _field(keys, n, np.uint64(seed[0]), np.uint64(seed[1]))
        low, high = _field(values, n, low, high)
        low, high = _field(headers, n, low, high)
        for k in range(8):
            room[k] = (times[n] >> (8 * k)) & 0xFF
        room[8] = tombstones[n]
        low, high = hash_key(room, 0, LAST_BYTES, low, high)
        words[0] += low
        words[1] += high
    return True
