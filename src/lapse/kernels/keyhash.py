"""SipHash-1-3-128 of a key, keyed by a secret of the round (ADR-2).

Two keys taken for one would lose a record, and keys come from anybody; so the hash is a keyed one
and its seed is drawn anew for every attempt and never leaves the process.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lapse.kernels.jit import inlined, kernel
from lapse.kernels.machine import load_u64


@inlined
def _rotl(x: np.uint64, n: int) -> np.uint64:
    return (x << np.uint64(n)) | (x >> np.uint64(64 - n))


@inlined
def _round(
    v0: np.uint64, v1: np.uint64, v2: np.uint64, v3: np.uint64
) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64]:
    v0 += v1
    v1 = _rotl(v1, 13) ^ v0
    v0 = _rotl(v0, 32)
    v2 += v3
    v3 = _rotl(v3, 16) ^ v2
    v0 += v3
    v3 = _rotl(v3, 21) ^ v0
    v2 += v1
    v1 = _rotl(v1, 17) ^ v2
    v2 = _rotl(v2, 32)
    return v0, v1, v2, v3


@inlined
def _tail(buf: NDArray[np.uint8], start: int, length: int) -> np.uint64:
    """The last length % 8 bytes as a little-endian word."""
    rest = length & 7
    if rest == 0:
        return np.uint64(0)
    if length >= 8:
        return load_u64(buf, start + length - 8) >> np.uint64(64 - 8 * rest)
    word = np.uint64(0)
    for k in range(rest):
        word |= np.uint64(buf[start + k]) << np.uint64(8 * k)
    return word


@inlined
def hash_key(
    buf: NDArray[np.uint8], start: int, length: int, seed0: np.uint64, seed1: np.uint64
) -> tuple[np.uint64, np.uint64]:
    """128 bits for buf[start:start+length], as two words."""
    v0 = seed0 ^ np.uint64(0x736F6D6570736575)
    v1 = seed1 ^ np.uint64(0x646F72616E646F6D) ^ np.uint64(0xEE)
    v2 = seed0 ^ np.uint64(0x6C7967656E657261)
    v3 = seed1 ^ np.uint64(0x7465646279746573)
    for i in range(start, start + (length & ~7), 8):
        word = load_u64(buf, i)
        v3 ^= word
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        v0 ^= word
    word = (np.uint64(length & 0xFF) << np.uint64(56)) | _tail(buf, start, length)
    v3 ^= word
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0 ^= word
    v2 ^= np.uint64(0xEE)
    for _ in range(3):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    low = v0 ^ v1 ^ v2 ^ v3
    v1 ^= np.uint64(0xDD)
    for _ in range(3):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    return low, v0 ^ v1 ^ v2 ^ v3


@kernel
def hash_bytes(buf: NDArray[np.uint8], seed0: int, seed1: int, out: NDArray[np.uint64]) -> None:
    """out[0:2] = the 128-bit hash of all of `buf`; for tests and for salted audit hashes."""
    out[0], out[1] = hash_key(buf, 0, buf.shape[0], np.uint64(seed0), np.uint64(seed1))
