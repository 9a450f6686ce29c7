"""The newest offset of every key, and other sets of keys, as sorted arrays of hashes.

A key is 64 bits of a keyed BLAKE2 hash with a salt drawn for the check: 16 bytes a key. Two keys
taken for one would rather hide a finding than make one; at a hundred million keys the odds of a
single such pair are 1 in 3,700.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

KEYLESS = np.uint64(0)  # stands for no key; the odds that a key is hashed to it are 1 in 2^64
PENDING_MAX = 4_000_000
_NO_KEY = bytes(8)

Hashes = NDArray[np.uint64]
Offsets = NDArray[np.int64]


def hashed(keys: Iterable[bytes | None], salt: bytes) -> Hashes:
    """Keys to numbers."""
    digests = [
        _NO_KEY if key is None else blake2b(key, digest_size=8, key=salt).digest() for key in keys
    ]
    return np.frombuffer(b"".join(digests), np.uint64)


class NewestOffsets:
    """hash → greatest offset put."""

    def __init__(self, pending_max: int = PENDING_MAX) -> None:
        self._hashes: list[Hashes] = []
        self._offsets: list[Offsets] = []
        self._pending, self._pending_max = 0, pending_max

    def put(self, hashes: Hashes, offsets: Offsets) -> None:
        self._hashes.append(hashes)
        self._offsets.append(offsets)
        self._pending += len(hashes)
        if self._pending > self._pending_max:
            self._merge()
            self._pending_max = max(self._pending_max, len(self._hashes[0]))

    def get(self, hashes: Hashes) -> Offsets:
        """-1 for those never put."""
        self._merge()
        known, offsets = self._hashes[0], self._offsets[0]
        if not len(known):
            return np.full(len(hashes), -1, np.int64)
        at = np.minimum(np.searchsorted(known, hashes), len(known) - 1)
        return np.where(known[at] == hashes, offsets[at], -1)

    def __len__(self) -> int:
        self._merge()
        return len(self._hashes[0])

    def _merge(self) -> None:
        if len(self._hashes) == 1 and not self._pending:
            return
        hashes = np.concatenate([np.empty(0, np.uint64), *self._hashes])
        offsets = np.concatenate([np.empty(0, np.int64), *self._offsets])
        by_hash = np.lexsort((offsets, hashes))
        hashes, offsets = hashes[by_hash], offsets[by_hash]
        last = np.append(hashes[1:] != hashes[:-1], np.ones(len(hashes[:1]), np.bool_))
        self._hashes, self._offsets = [hashes[last]], [offsets[last]]
        self._pending = 0
