"""CRC-32C (Castagnoli), the checksum of a v2 batch, at memory speed.

Three streams run through the CPU's instruction at once (it has a latency of three cycles) and are
joined by the linear map "append N zero bytes", kept as four tables of 256 entries per N. Where the
CPU has no instruction, eight table look-ups a word (slicing-by-8) give the same answer slower.

This is also the CRC used from Python code: the `crc32c` wheel is LGPL and 76 ns a call, the
Apache-licensed one takes only `bytes`; ours takes any buffer without a copy.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lapse.kernels.jit import inlined, kernel
from lapse.kernels.machine import (
    CRC_INSTRUCTION,
    crc_u8_at,
    crc_u16_at,
    crc_u32_at,
    crc_u64,
    load_u64,
)

_POLYNOMIAL = 0x82F63B78  # reflected
_LONG, _SHORT, _SHORTEST = 2048, 256, 64  # bytes a stream; multiples of 8
_HARDWARE = CRC_INSTRUCTION is not None
_MASK32 = np.uint64(0xFFFFFFFF)


def _byte_table(polynomial: int) -> NDArray[np.uint64]:
    crc = np.arange(256, dtype=np.uint64)
    for _ in range(8):
        crc = np.where(crc & 1, (crc >> 1) ^ polynomial, crc >> 1)
    return crc


def slicing_tables(polynomial: int) -> NDArray[np.uint64]:
    """tables[k][b] = CRC of byte b followed by k zero bytes."""
    tables = [_byte_table(polynomial)]
    for _ in range(7):
        last = tables[-1]
        tables.append(tables[0][last & 0xFF] ^ (last >> 8))
    return np.stack(tables)


def _zeros_tables(length: int) -> NDArray[np.uint64]:
    """tables[k][b] = the state whose byte k is b, after `length` more zero bytes."""
    bits = np.uint64(1) << np.arange(32, dtype=np.uint64)  # images of the 32 unit vectors
    table = _byte_table(_POLYNOMIAL)
    for _ in range(length):
        bits = table[bits & 0xFF] ^ (bits >> 8)
    out = np.zeros((4, 256), np.uint64)
    for k in range(4):
        for bit in range(8):
            chosen = (np.arange(256) >> bit) & 1 == 1
            out[k][chosen] ^= bits[8 * k + bit]
    return out


_BYTES = _byte_table(_POLYNOMIAL)
_SLICES = slicing_tables(_POLYNOMIAL)
_ZEROS_LONG = _zeros_tables(_LONG)
_ZEROS_SHORT = _zeros_tables(_SHORT)
_ZEROS_SHORTEST = _zeros_tables(_SHORTEST)


@inlined
def _advance(tables: NDArray[np.uint64], crc: np.uint64) -> np.uint64:
    return (
        tables[0][crc & np.uint64(0xFF)]
        ^ tables[1][(crc >> np.uint64(8)) & np.uint64(0xFF)]
        ^ tables[2][(crc >> np.uint64(16)) & np.uint64(0xFF)]
        ^ tables[3][(crc >> np.uint64(24)) & np.uint64(0xFF)]
    )


@inlined
def _word_by_table(crc: np.uint64, word: np.uint64) -> np.uint64:
    x = word ^ crc
    out = np.uint64(0)
    for k in range(8):
        out ^= _SLICES[7 - k][(x >> np.uint64(8 * k)) & np.uint64(0xFF)]
    return out


@inlined
def _three_streams(
    buf: NDArray[np.uint8], i: int, end: int, crc: np.uint64, length: int,
    zeros: NDArray[np.uint64],
) -> tuple[int, np.uint64]:  # fmt: skip
    while i + 3 * length <= end:
        a, b, c = crc, np.uint64(0), np.uint64(0)
        for j in range(i, i + length, 8):
            a = crc_u64(a, load_u64(buf, j))
            b = crc_u64(b, load_u64(buf, j + length))
            c = crc_u64(c, load_u64(buf, j + 2 * length))
        crc = _advance(zeros, _advance(zeros, a) ^ b) ^ c
        i += 3 * length
    return i, crc


@inlined
def _rest(buf: NDArray[np.uint8], i: int, end: int, crc: np.uint64) -> np.uint64:
    """Fold in the last bytes, fewer than eight."""
    if (end - i) & 4:
        crc = crc_u32_at(crc, buf, i)
        i += 4
    if (end - i) & 2:
        crc = crc_u16_at(crc, buf, i)
        i += 2
    if (end - i) & 1:
        crc = crc_u8_at(crc, buf, i)
    return crc


@kernel
def crc32c_more(crc_before: int, buf: NDArray[np.uint8], start: int, end: int) -> int:
    """CRC-32C of what `crc_before` covers (0: nothing) followed by buf[start:end]."""
    crc = np.uint64(crc_before) ^ _MASK32
    i = start
    if _HARDWARE:
        i, crc = _three_streams(buf, i, end, crc, _LONG, _ZEROS_LONG)
        i, crc = _three_streams(buf, i, end, crc, _SHORT, _ZEROS_SHORT)
        i, crc = _three_streams(buf, i, end, crc, _SHORTEST, _ZEROS_SHORTEST)
        while i + 8 <= end:
            crc = crc_u64(crc, load_u64(buf, i))
            i += 8
        return np.int64(_rest(buf, i, end, crc) ^ _MASK32)
    while i + 8 <= end:
        crc = _word_by_table(crc, load_u64(buf, i))
        i += 8
    while i < end:
        crc = _BYTES[(crc ^ np.uint64(buf[i])) & np.uint64(0xFF)] ^ (crc >> np.uint64(8))
        i += 1
    return np.int64(crc ^ _MASK32)


@kernel
def crc32c(buf: NDArray[np.uint8], start: int, end: int) -> int:
    """CRC-32C of buf[start:end]; the caller has checked 0 <= start <= end <= len(buf)."""
    return crc32c_more(0, buf, start, end)
