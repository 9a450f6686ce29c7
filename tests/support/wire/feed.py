"""Bytes in hand for a `FrameReader`, as a transport would bring them."""

from __future__ import annotations

from lapse.wire.errors import FrameSizeError
from lapse.wire.framing import FrameReader


def feed(reader: FrameReader, data: bytes | bytearray | memoryview) -> list[memoryview]:
    """The frames that are complete with these bytes."""
    frames: list[memoryview] = []
    rest = memoryview(data)
    while rest:
        room = reader.get_buffer()
        taken = min(len(room), len(rest))
        room[:taken] = rest[:taken]
        rest = rest[taken:]
        try:
            frames += reader.buffer_updated(taken)
        except FrameSizeError as error:
            error.frames[:0] = frames
            raise
    return frames
