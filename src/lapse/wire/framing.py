"""Cutting a byte stream into frames: an int32 size, then that many bytes (Kafka's framing).

Sans-IO. An `asyncio.BufferedProtocol` lends `get_buffer` to the transport and gets frames from
`buffer_updated`.

Small frames are received into one reused buffer and copied out of it. A frame larger than that
buffer gets memory of its own, into which the transport receives directly, so its bytes are moved
once at most. Memory is taken as bytes arrive, not as the announced size would have it: what is
reserved is not touched (`numpy.empty`; a `bytearray` is zeros that were written), so the system
gives it page by page. That is also what makes an idle connection's read buffer nearly free.

A frame that lies whole in the read buffer may be done with right there, without a copy: `at_once`
is asked first. Once it has left one alone it is not asked about those behind it.

Invariants: a frame handed out is writable (an append patches base offset and epoch in place), is
no one else's, and stays valid as long as someone holds it. After FrameSizeError the stream has lost
its place: the reader refuses everything.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from lapse.wire.errors import FrameSizeError

SIZE_BYTES = 4
READ_BYTES = 64 * 1024
# A large frame starts with at most this much memory and grows by this factor as bytes come. Frames
# of usual size (a batch of max.message.bytes and its request) never grow. From 4 MiB on NumPy asks
# for huge pages, of which a single byte takes 2 MiB.
LARGE_BYTES_FIRST = 3 << 19
LARGE_GROWTH = 4

# Gets the read buffer, as a view and as an array, and where in it a frame begins and ends. Whether
# the frame is done with: then its bytes may change at once.
AtOnce = Callable[[memoryview, NDArray[np.uint8], int, int], bool]


def leave(_buffer: memoryview, _array: NDArray[np.uint8], _start: int, _end: int) -> bool:
    """Every frame is to be handed out."""
    return False


class FrameReader:
    """The reading half of one connection."""

    def __init__(self, frame_bytes_max: int) -> None:
        self.frame_bytes_max = frame_bytes_max
        self._array = np.empty(READ_BYTES, np.uint8)
        self._read = self._array.data
        self._read_end = 0  # bytes received and not yet handed out
        self._large: memoryview | None = None  # the frame that did not fit, while it grows
        self._large_size = 0
        self._large_end = 0
        self._refused: FrameSizeError | None = None

    def get_buffer(self, size_hint: int = -1) -> memoryview:  # noqa: ARG002  (asyncio's signature)
        """Where to receive next; never empty, and for a large frame never beyond its end."""
        if self._large is None:
            return self._read[self._read_end :]
        if self._large_end == len(self._large):
            self._grow()
        return self._large[self._large_end :]

    def buffer_updated(self, received: int, at_once: AtOnce = leave) -> list[memoryview]:
        """Take in what was received into the last buffer; returns the frames now complete.

        But for those that `at_once` is done with.

        Raises:
            FrameSizeError: a size is negative or over the limit; frames before it are in it.
        """
        if self._refused is not None:
            raise FrameSizeError(self._refused.size, self.frame_bytes_max, [])
        if self._large is None:
            self._read_end += received
            return self._split(at_once)
        self._large_end += received
        if self._large_end < self._large_size:
            return []
        frame, self._large = self._large, None
        return [frame]

    @property
    def is_long(self) -> bool:
        """Whether a large frame is on its way."""
        return self._large is not None

    @property
    def large_bytes(self) -> int:
        """What a large frame holds that is not complete."""
        return 0 if self._large is None else self._large_end

    @property
    def missing_bytes(self) -> int:
        """What it still lacks."""
        return 0 if self._large is None else self._large_size - self._large_end

    def forget(self) -> None:
        """Let go of what is not complete: no more will come."""
        self._large = None

    @property
    def pending_bytes(self) -> int:
        """Bytes of a frame that is not complete; not 0 at end of stream means it was cut off."""
        return self._read_end if self._large is None else self._large_end + SIZE_BYTES

    def _split(self, at_once: AtOnce) -> list[memoryview]:
        """Copy the whole frames out of the read buffer and move what is left to its front.

        But for those that are done with at once.
        """
        frames: list[memoryview] = []
        buf, pos, end = self._read, 0, self._read_end
        while end - pos >= SIZE_BYTES:
            size = int.from_bytes(buf[pos : pos + SIZE_BYTES], "big", signed=True)
            if not 0 <= size <= self.frame_bytes_max:
                self._refused = FrameSizeError(size, self.frame_bytes_max, frames)
                raise self._refused
            start = pos + SIZE_BYTES
            if end - start < size:
                if size > READ_BYTES - SIZE_BYTES:
                    self._start_large(size, buf[start:end])
                    pos = end
                break
            pos = start + size
            if frames or not at_once(buf, self._array, start, pos):
                frames.append(memoryview(bytearray(buf[start:pos])))
        if pos:
            buf[: end - pos] = buf[pos:end]
            self._read_end = end - pos
        return frames

    def _start_large(self, size: int, first: memoryview) -> None:
        self._large = _untouched(min(size, LARGE_BYTES_FIRST))
        self._large[: len(first)] = first
        self._large_size = size
        self._large_end = len(first)

    def _grow(self) -> None:
        """Only for frames over LARGE_BYTES_FIRST; copies a third of such a frame in all, about."""
        assert self._large is not None
        room = LARGE_GROWTH * len(self._large)
        bigger = _untouched(self._large_size if 2 * room > self._large_size else room)
        bigger[: self._large_end] = self._large
        self._large = bigger


def _untouched(size: int) -> memoryview:
    """Memory that costs nothing until it is written to."""
    return np.empty(size, np.uint8).data
