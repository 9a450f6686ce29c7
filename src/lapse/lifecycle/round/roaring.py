"""A bitmap as roaring bitmap, without going through its members one by one.

The portable format of the RoaringBitmap specification, without run containers: what
`pyroaring.BitMap.deserialize` reads. Of each 65,536 numbers, many are kept as the bits they are and
few (4096 at most) as a list. `rewrite` writes most of the ledger's bitmaps this way, since what a
map stage leaves behind is a bitmap already.
"""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

_COOKIE = 12346
_CHUNK_BYTES = 8192
_LIST_MAX = 4096


def count_bits(bits: NDArray[np.uint8]) -> int:
    """How many bits are set."""
    return int(np.bitwise_count(bits).sum(dtype=np.int64))


def serialize_bits(bits: NDArray[np.uint8]) -> bytes:
    """The numbers n whose bit n & 7 of bits[n >> 3] is set."""
    chunks = np.zeros((-(-len(bits) // _CHUNK_BYTES), _CHUNK_BYTES), np.uint8)
    chunks.ravel()[: len(bits)] = bits
    counts = np.bitwise_count(chunks).sum(axis=1, dtype=np.int64)
    keys = np.flatnonzero(counts)
    containers = [_container(chunks[key], int(counts[key])) for key in keys]
    head = struct.pack("<II", _COOKIE, len(keys))
    table = np.stack([keys, counts[keys] - 1], axis=1).astype("<u2").tobytes()
    first = len(head) + len(table) + 4 * len(keys)
    sizes = np.array([len(c) for c in containers], np.int64)
    starts = (first + np.cumsum(sizes) - sizes).astype("<u4").tobytes()
    return b"".join([head, table, starts, *containers])


def _container(chunk: NDArray[np.uint8], count: int) -> bytes:
    if count > _LIST_MAX:
        return chunk.tobytes()
    return np.flatnonzero(np.unpackbits(chunk, bitorder="little")).astype("<u2").tobytes()
