"""Bytes of a file, from front to back through one buffer, hashed as they come.

By `preadv`, never through a map: a file that shrinks under a map kills the process. The buffer is
used again and grows only for a batch that is larger.
"""

from __future__ import annotations

import hashlib
import os

import numpy as np
from numpy.typing import NDArray

BLOCK_BYTES = 2 << 20
_BLOCK_BYTES_MIN = 4 << 10


class Window:
    """A run of bytes of a file.

    Attributes:
        at: position in the file of the first byte in `data`; filled: how many bytes there are.
        end: where reading ends; earlier once the file turned out to end before.
        sha256: of all bytes read so far.
        data: read-only, so that kernels meet one type of array.
    """

    def __init__(self, fd: int, start: int, end: int, block_bytes: int = BLOCK_BYTES) -> None:
        self._fd = fd
        self.at, self.filled, self.end = start, 0, end
        self.sha256 = hashlib.sha256()
        self._take(np.empty(max(_BLOCK_BYTES_MIN, min(block_bytes, end - start)), np.uint8))

    def _take(self, buffer: NDArray[np.uint8]) -> None:
        self._buffer = buffer
        self.data = buffer.view()
        self.data.flags.writeable = False

    @property
    def reach(self) -> int:
        """Position of the first byte that is not read yet."""
        return self.at + self.filled

    def fill(self, position: int, need: int = 0) -> None:
        """Begin at `position`, one within reach, and have `need` bytes or up to the end."""
        shift, kept = position - self.at, self.reach - position
        assert shift >= 0
        assert kept >= 0
        need = min(need, self.end - position)
        buffer = self._buffer if need <= len(self._buffer) else np.empty(need, np.uint8)
        buffer[:kept] = self._buffer[shift : self.filled]
        if buffer is not self._buffer:
            self._take(buffer)
        self.at, self.filled = position, kept
        self._read()

    def drain(self) -> None:
        """Read on to the end, for the hash's sake."""
        while self.reach < self.end:
            self.fill(self.reach)

    def _read(self) -> None:
        view = self._buffer.data
        while self.filled < len(view) and self.reach < self.end:
            room = min(len(view) - self.filled, self.end - self.reach)
            got = os.preadv(self._fd, [view[self.filled : self.filled + room]], self.reach)
            if not got:
                self.end = self.reach
                return
            self.sha256.update(view[self.filled : self.filled + got])  # without Python's lock
            self.filled += got
