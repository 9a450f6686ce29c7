"""Parts of requests, in the encodings of all versions, for kernels that parse whole frames.

`flexible` versions have unsigned varints and tags (KIP-482). A position of -1 means that what came
before was wrong, and stays -1.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lapse.kernels.jit import inlined
from lapse.kernels.machine import load_i16_be, load_i32_be

_LENGTH_BYTES_MAX = 5


@inlined
def count_at(buf: NDArray[np.uint8], i: int, end: int, flexible: bool) -> tuple[int, int]:
    """The length of an array or of bytes, and what follows it; -1 for null and what is wrong."""
    if flexible:
        return _compact_length(buf, i, end)
    if i < 0 or end - i < 4:
        return -1, -1
    return load_i32_be(buf, i), i + 4


@inlined
def size_at(buf: NDArray[np.uint8], i: int, end: int, flexible: bool) -> tuple[int, int]:
    """The same of a string."""
    if flexible:
        return _compact_length(buf, i, end)
    if i < 0 or end - i < 2:
        return -1, -1
    return load_i16_be(buf, i), i + 2


@inlined
def _compact_length(buf: NDArray[np.uint8], i: int, end: int) -> tuple[int, int]:
    """An unsigned varint that is one more than the length; 0 is null."""
    if i < 0:
        return -1, -1
    value = 0
    for k in range(_LENGTH_BYTES_MAX):
        if i + k >= end:
            break
        byte = np.int64(buf[i + k])
        value |= (byte & 0x7F) << (7 * k)
        if byte < 0x80:
            return value - 1, i + k + 1
    return -1, -1


@inlined
def no_tags(buf: NDArray[np.uint8], i: int, end: int, flexible: bool) -> int:
    """What follows a section of tags that is empty, or absent in old versions; -1 if it is not."""
    if not flexible or i < 0:
        return i
    return i + 1 if i < end and buf[i] == 0 else -1
