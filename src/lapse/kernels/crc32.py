"""CRC-32 (ISO 3309, zlib's), the checksum of v0 and v1 messages.

Eight table look-ups a word; no CPU we run on has this polynomial as an instruction, and old
messages are rare enough.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lapse.kernels.crc32c import slicing_tables
from lapse.kernels.jit import kernel
from lapse.kernels.machine import load_u64

_POLYNOMIAL = 0xEDB88320  # reflected
_SLICES = slicing_tables(_POLYNOMIAL)
_MASK32 = np.uint64(0xFFFFFFFF)
_BYTE = np.uint64(0xFF)


@kernel
def crc32(buf: NDArray[np.uint8], start: int, end: int) -> int:
    """CRC-32 of buf[start:end]; the caller has checked 0 <= start <= end <= len(buf)."""
    crc = _MASK32
    i = start
    while i + 8 <= end:
        x = load_u64(buf, i) ^ crc
        crc = np.uint64(0)
        for k in range(8):
            crc ^= _SLICES[7 - k][(x >> np.uint64(8 * k)) & _BYTE]
        i += 8
    while i < end:
        crc = _SLICES[0][(crc ^ np.uint64(buf[i])) & _BYTE] ^ (crc >> np.uint64(8))
        i += 1
    return np.int64(crc ^ _MASK32)
