"""A byte stream, cut into frames, however it arrives."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from lapse.wire import framing
from lapse.wire.errors import FrameSizeError
from lapse.wire.framing import READ_BYTES, FrameReader
from tests.support.wire.feed import feed

MAX = 100 * 1024 * 1024


def framed(*contents: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(c)) + c for c in contents)


def receive(reader: FrameReader, stream: bytes, chunk_max: int) -> list[memoryview]:
    """What a transport does: fill what it is lent, as far as the socket has bytes."""
    frames, pos = [], 0
    while pos < len(stream):
        room = reader.get_buffer(-1)
        assert len(room) > 0
        n = min(len(room), chunk_max, len(stream) - pos)
        room[:n] = stream[pos : pos + n]
        pos += n
        frames += reader.buffer_updated(n)
    return frames


def test_what_is_done_with_at_once_is_not_handed_out() -> None:
    """Nor is the next one asked about once one was left; what follows stays in its place."""
    seen: list[bytes] = []

    def takes(buffer: memoryview, array: NDArray[np.uint8], start: int, end: int) -> bool:
        content = bytes(buffer[start:end])
        assert content == array[start:end].tobytes()
        seen.append(content)
        buffer[start:end] = b"!" * (end - start)
        return content.startswith(b"take")

    reader = FrameReader(MAX)
    stream = framed(b"take 1", b"take 2", b"leave", b"take 3", b"take 4")
    reader.get_buffer(-1)[: len(stream) - 3] = stream[:-3]
    frames = reader.buffer_updated(len(stream) - 3, takes)
    assert seen == [b"take 1", b"take 2", b"leave"]
    assert [bytes(frame) for frame in frames] == [b"!!!!!", b"take 3"]
    reader.get_buffer(-1)[:3] = stream[-3:]
    assert reader.buffer_updated(3, takes) == []
    assert seen[3:] == [b"take 4"]


SIZES = [0, 1, 3, 100, READ_BYTES - 5, READ_BYTES - 4, READ_BYTES - 3, READ_BYTES, 3 * READ_BYTES]


def test_frames_come_out_as_they_went_in(
    seed: int, scaled: Callable[[int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any sizes, any chunks, both ways in; large frames also grow."""
    monkeypatch.setattr(framing, "LARGE_BYTES_FIRST", READ_BYTES + 10)
    draw = random.Random(seed)
    for _ in range(scaled(2000)):
        contents = [draw.randbytes(draw.choice(SIZES)) for _ in range(draw.randrange(1, 8))]
        stream = framed(*contents)
        chunk_max = draw.choice([7, 1000, READ_BYTES, 10 * READ_BYTES]) + draw.randrange(5)
        if chunk_max < 20:
            contents = contents[:1]
            stream = framed(*contents)
        reader = FrameReader(MAX)
        frames = receive(reader, stream, chunk_max)
        # Compared only now: later reads must not have touched earlier frames.
        assert [bytes(frame) for frame in frames] == contents
        assert reader.pending_bytes == 0
        reader = FrameReader(MAX)
        frames = []
        for pos in range(0, len(stream), chunk_max):
            frames += feed(reader, stream[pos : pos + chunk_max])
        assert [bytes(frame) for frame in frames] == contents
        assert reader.pending_bytes == 0


@pytest.mark.parametrize("size", [10, 2 * READ_BYTES])
def test_a_frame_is_writable_and_nobody_elses(size: int) -> None:
    """The append path patches batches in place."""
    reader = FrameReader(MAX)
    first, second = feed(reader, framed(b"a" * size, b"b" * size))
    first[:3] = b"123"
    (third,) = feed(reader, framed(b"c" * size))
    assert bytes(first) == b"123" + b"a" * (size - 3)
    assert bytes(second) == b"b" * size
    assert bytes(third) == b"c" * size


def test_a_large_frame_is_received_in_place() -> None:
    """Once its size is known the transport is lent the frame itself, up to its end and no more."""
    size = 3 * READ_BYTES
    stream = framed(b"x" * size)
    reader = FrameReader(MAX)
    reader.get_buffer()[:READ_BYTES] = stream[:READ_BYTES]
    assert reader.buffer_updated(READ_BYTES) == []
    room = reader.get_buffer()
    assert len(room) == size + 4 - READ_BYTES
    room[:] = stream[READ_BYTES:]
    (frame,) = reader.buffer_updated(len(room))
    assert frame.obj is room.obj
    assert frame == stream[4:]


@pytest.mark.parametrize("size", [-1, -(2**31), 1001, 2**31 - 1])
def test_a_size_out_of_bounds_ends_the_stream(size: int) -> None:
    """Frames before it are not lost; after it nothing is believed."""
    reader = FrameReader(1000)
    with pytest.raises(FrameSizeError, match=r"allowed are 0 to 1000") as caught:
        feed(reader, framed(b"good", b"too") + struct.pack(">i", size) + framed(b"behind"))
    assert caught.value.size == size
    assert [bytes(frame) for frame in caught.value.frames] == [b"good", b"too"]
    for _ in range(3):
        with pytest.raises(FrameSizeError) as again:
            feed(reader, framed(b"more"))
        assert again.value.frames == []


def test_frames_of_earlier_reads_in_one_feed_are_not_lost() -> None:
    """`feed` may turn its buffer over many times before the bad size comes."""
    reader = FrameReader(READ_BYTES)
    good = [b"a" * 40_000, b"b" * 40_000, b"c" * READ_BYTES]
    with pytest.raises(FrameSizeError) as caught:
        feed(reader, framed(*good) + b"\xff" * 8)
    assert [bytes(frame) for frame in caught.value.frames] == good


def test_the_limit_itself_is_allowed() -> None:
    (frame,) = feed(FrameReader(1000), framed(b"x" * 1000))
    assert len(frame) == 1000


def test_an_http_request_is_not_a_frame() -> None:
    """What port scanners send: "GET " is a size of 1,195,725,856."""
    with pytest.raises(FrameSizeError):
        feed(FrameReader(MAX), b"GET / HTTP/1.1\r\n\r\n")


def test_an_announced_size_takes_no_memory_before_its_bytes_come() -> None:
    tracemalloc.start()
    try:
        reader = FrameReader(MAX)
        feed(reader, struct.pack(">i", MAX) + b"x" * READ_BYTES)
        assert tracemalloc.get_traced_memory()[1] < framing.LARGE_BYTES_FIRST + 1_000_000
    finally:
        tracemalloc.stop()
    assert reader.pending_bytes == 4 + READ_BYTES


def test_frames_in_pieces_wait_for_the_rest() -> None:
    reader = FrameReader(MAX)
    stream = framed(b"hello")
    for pos, byte in enumerate(stream[:-1], start=1):
        assert feed(reader, bytes([byte])) == []
        assert reader.pending_bytes == pos
    (frame,) = feed(reader, stream[-1:])
    assert frame == b"hello"


class Receiver(asyncio.BufferedProtocol):
    """A connection as a broker has it."""

    def __init__(self, expected: int) -> None:
        self.reader = FrameReader(MAX)
        self.frames: list[memoryview] = []
        self.expected = expected
        self.complete = asyncio.Event()
        self.get_buffer = self.reader.get_buffer  # type: ignore[method-assign]

    def buffer_updated(self, nbytes: int) -> None:
        self.frames += self.reader.buffer_updated(nbytes)
        if len(self.frames) == self.expected:
            self.complete.set()


async def test_asyncio_receives_into_it(seed: int) -> None:
    """The real transport, over a socket."""
    contents = [random.Random(seed + size).randbytes(size) for size in [*SIZES, 5 * 1024 * 1024, 2]]
    near, far = socket.socketpair()
    loop = asyncio.get_running_loop()
    receiver = Receiver(len(contents))
    near.setblocking(False)
    far.setblocking(False)
    transport, _ = await loop.connect_accepted_socket(lambda: receiver, near)
    try:
        await loop.sock_sendall(far, framed(*contents))
        await receiver.complete.wait()
    finally:
        transport.close()
        far.close()
    assert [bytes(frame) for frame in receiver.frames] == contents
