"""Zig-zag variable-length integers, as records store lengths and deltas.

A reader returns `(value, next position)`, with next position -1 when the bytes run out, or when a
number is longer than its type allows (5 bytes for 32 bits, 10 for 64).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lapse.kernels.jit import inlined, kernel
from lapse.kernels.machine import load_u64, trailing_zeros

VARINT_BYTES_MAX = 5
VARLONG_BYTES_MAX = 10
_TOP_BITS = np.uint64(0x8080808080808080)  # clear in the last byte of a number


@inlined
def read_varint(buf: NDArray[np.uint8], i: int, end: int) -> tuple[int, int]:
    """A 32-bit number at buf[i:end]."""
    if i >= end:
        return 0, -1
    raw = np.int64(buf[i])
    if raw < 0x80:
        return (raw >> 1) ^ -(raw & 1), i + 1
    if i + 1 < end:
        byte = np.int64(buf[i + 1])
        if byte < 0x80:
            raw = (raw & 0x7F) | (byte << 7)
            return (raw >> 1) ^ -(raw & 1), i + 2
    return _read_long_varint(buf, i, end)


@kernel
def _read_long_varint(buf: NDArray[np.uint8], i: int, end: int) -> tuple[int, int]:
    """As `read_varint`; not inlined, since most are short."""
    raw = np.int64(0)
    for k in range(VARINT_BYTES_MAX):
        if i + k >= end:
            return 0, -1
        byte = np.int64(buf[i + k])
        raw |= (byte & 0x7F) << (7 * k)
        if byte < 0x80:
            raw &= 0xFFFFFFFF
            return (raw >> 1) ^ -(raw & 1), i + k + 1
    return 0, -1


@kernel
def read_one_varint(buf: NDArray[np.uint8], i: int, end: int) -> tuple[int, int]:
    """As `read_varint`, for Python: what is inlined is kept nowhere, a process compiles it anew."""
    return read_varint(buf, i, end)


@inlined
def read_varlong(buf: NDArray[np.uint8], i: int, end: int) -> tuple[int, int]:
    """A 64-bit number at buf[i:end]."""
    raw = np.uint64(0)
    for k in range(VARLONG_BYTES_MAX):
        if i + k >= end:
            return 0, -1
        byte = np.uint64(buf[i + k])
        raw |= (byte & np.uint64(0x7F)) << np.uint64(7 * k)
        if byte < np.uint64(0x80):
            value = np.int64(raw >> np.uint64(1)) ^ -np.int64(raw & np.uint64(1))
            return value, i + k + 1
    return 0, -1


@inlined
def skip_varlong(buf: NDArray[np.uint8], i: int, end: int) -> int:
    """The position after the 32- or 64-bit number at buf[i:end], -1 as the readers."""
    if i + 8 <= buf.shape[0]:
        last_ones = ~load_u64(buf, i) & _TOP_BITS
        if last_ones != 0:
            after = i + (trailing_zeros(last_ones) >> 3) + 1
            return after if after <= end else -1
    return _skip_long_varlong(buf, i, end)


@kernel
def _skip_long_varlong(buf: NDArray[np.uint8], i: int, end: int) -> int:
    """As `skip_varlong`, a byte at a time."""
    for k in range(i, min(i + VARLONG_BYTES_MAX, end)):
        if buf[k] < 0x80:
            return k + 1
    return -1


@inlined
def size_of_varlong(value: int) -> int:
    """Bytes `write_varlong` takes for `value`."""
    raw = np.uint64((value << 1) ^ (value >> 63))
    size = 1
    while raw >= np.uint64(0x80):
        raw >>= np.uint64(7)
        size += 1
    return size


@inlined
def write_varlong(buf: NDArray[np.uint8], i: int, value: int) -> int:
    """Write `value` at buf[i:], which has room; returns the next position. Also for 32 bits."""
    raw = np.uint64((value << 1) ^ (value >> 63))
    while raw >= np.uint64(0x80):
        buf[i] = np.uint8((raw & np.uint64(0x7F)) | np.uint64(0x80))
        raw >>= np.uint64(7)
        i += 1
    buf[i] = np.uint8(raw)
    return i + 1
