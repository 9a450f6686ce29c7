"""What can be wrong with bytes or versions on the wire.

Raised for what a peer sent, so none of these is a bug of ours; the connection that sent them is
closed (or, for a version, answered so). Wrong values in a message that *we* build stay ordinary
Python exceptions.
"""

from __future__ import annotations

from lapse.base.errors import CorruptData, ErrorCode, KafkaError, LapseError


class MalformedMessage(CorruptData):
    """A message that does not parse: it ends early, or a length, count or null in it lies.

    `where` is the message and version, `position` the byte at which reading stopped.
    """


class FrameSizeError(LapseError):
    """A frame announces a size that is negative or over the limit; the stream is lost.

    Attributes:
        size: the announced size.
        frames: whole frames that arrived in the same read before the bad one.
    """

    def __init__(self, size: int, frame_bytes_max: int, frames: list[memoryview]) -> None:
        super().__init__(
            f"frame announces {size} bytes; allowed are 0 to {frame_bytes_max} "
            "(socket.request.max.bytes)"
        )
        self.size = size
        self.frames = frames


class UnsupportedVersion(KafkaError):
    """An API key or version, or a field in that version, that the wire layer does not speak."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.UNSUPPORTED_VERSION, message)
