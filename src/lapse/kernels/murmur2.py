"""Kafka's murmur2 over a column of keys: which partition each goes to.

What `client.partitioner` does for one key in Python; the hash of Kafka's `BuiltInPartitioner`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lapse.kernels.jit import inlined, kernel

_SEED = np.uint64(0x9747B28C)
_MULTIPLIER = np.uint64(0x5BD1E995)
_WORD = np.uint64(0xFFFFFFFF)
_POSITIVE = np.uint64(0x7FFFFFFF)


@inlined
def _word(data: NDArray[np.uint8], at: int, length: int) -> np.uint64:
    """Up to four bytes, little-endian."""
    word = np.uint64(0)
    for k in range(length):
        word |= np.uint64(data[at + k]) << np.uint64(8 * k)
    return word


@inlined
def _times(a: np.uint64) -> np.uint64:
    return (a * _MULTIPLIER) & _WORD


@inlined
def _murmur2(data: NDArray[np.uint8], start: int, length: int) -> np.uint64:
    h = (_SEED ^ np.uint64(length)) & _WORD
    whole = length & ~3
    for i in range(start, start + whole, 4):
        k = _times(_word(data, i, 4))
        h = _times(h) ^ _times(k ^ (k >> np.uint64(24)))
    if length > whole:
        h = _times(h ^ _word(data, start + whole, length - whole))
    h = _times(h ^ (h >> np.uint64(13)))
    return h ^ (h >> np.uint64(15))


@kernel
def place_keys(
    data: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64],
    counts: NDArray[np.int64], places: NDArray[np.int64],
) -> int:  # fmt: skip
    """Give each record that has a key and no place (below 0) one of `counts` partitions.

    Returns the first record whose key lies outside `data` or whose count is below 1, -1 if all are
    sound.
    """
    for n in range(places.shape[0]):
        start, length = starts[n], lengths[n]
        if places[n] >= 0 or length < 0:
            continue
        if start < 0 or length > data.shape[0] - start or counts[n] < 1:
            return n
        h = _murmur2(data, start, length) & _POSITIVE
        places[n] = np.int64(h % np.uint64(counts[n]))
    return -1
