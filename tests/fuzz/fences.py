"""Memory that ends where a page begins that may not be touched: whoever reads on dies there.

Bytes are laid against that page, and before them lies a canary, so that what was read of a
neighbour shows: it is compared with what a slow twin found.
"""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
from numpy.typing import NDArray

_PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None, use_errno=True)
CANARY = 0xA5


class Fence:
    """Room for `size` bytes that are laid at its end; each laying overwrites the one before."""

    def __init__(self, size: int) -> None:
        self._end = -(-size // _PAGE) * _PAGE
        self._memory = mmap.mmap(-1, self._end + _PAGE)
        self._array = np.frombuffer(self._memory, np.uint8)
        address = ctypes.c_void_p(self._array.ctypes.data + self._end)
        if _libc.mprotect(address, ctypes.c_size_t(_PAGE), 0) != 0:
            raise OSError(ctypes.get_errno(), "mprotect")

    @property
    def room(self) -> int:
        return self._end

    def lay(self, data: bytes | NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The bytes as a read-only array that ends at the fence."""
        start = self._end - len(data)
        self._array[max(start - 64, 0) : start] = CANARY
        view = self._array[start : self._end]
        view[:] = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data
        view.flags.writeable = False
        return view


def fenced(data: bytes | NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The bytes in memory of their own, for as long as the array is held."""
    return Fence(max(len(data), 1)).lay(data)
