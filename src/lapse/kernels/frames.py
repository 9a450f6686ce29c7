"""Frames of many batches, of lz4, zstd and gzip: inflated into one array, and made in another.

LZ4 as Kafka's clients and brokers write it: independent blocks, without sizes or checksums of
contents. Of any other frame, and of whatever else is not understood to the end, nothing is taken:
the kernel stops there, and its caller goes the way over `records.compression`, which is the twin of
both in tests. LZ4 that is made is byte for byte what the library's own function for frames makes,
with blocks of 64 KB; zstd and gzip are of the same level as there, gzip by another library. Of gzip
one member is read, whose header has nothing that may be left out.

What is not `taken` on this machine must not be asked for.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lapse.kernels import gzip_library, lz4_library, zstd_library
from lapse.kernels.jit import inlined, kernel
from lapse.kernels.keep import PLAIN, seal
from lapse.kernels.layout import CODEC_MASK, HEADER_SIZE
from lapse.kernels.lz4_library import compress, decompress
from lapse.kernels.machine import copy_bytes

GZIP, LZ4, ZSTD = 1, 3, 4  # Kafka's numbers
OTHER_BYTES = frozenset({GZIP})  # codecs whose bytes are not those that Kafka would have made
_MAGIC = (0x04, 0x22, 0x4D, 0x18)
_FLAGS = 0x60  # version 1, independent blocks, nothing else
_HEADER = 7  # magic, flags, block size, checksum of these two
_FIRST_SIZE, _LAST_SIZE = 4, 7  # numbers of block sizes: 64 KB, 256 KB, 1 MB, 4 MB
# The checksum that belongs to each of them: the second byte of xxHash32 of flags and block size.
_HEADER_CHECKSUMS = (0x82, 0xFB, 0x51, 0x73)
_BLOCK_BYTES = 64 << 10
_STORED = 0x80  # in the last byte of a block's size: it is not compressed
_ZSTD_MAGIC = (0x28, 0xB5, 0x2F, 0xFD)
_ZSTD_LEVEL = 3  # Kafka's default, and ours
_zstd_decompress, _zstd_compress = zstd_library.decompress, zstd_library.compress
_GZIP_MAGIC = (0x1F, 0x8B, 8, 0)  # the last one says that no name, comment or checksum follows
_GZIP_MEMBER_MIN = 18
_gzip_decompress, _gzip_compress = gzip_library.decompress, gzip_library.compress
_LIBRARIES = {GZIP: gzip_library, LZ4: lz4_library, ZSTD: zstd_library}
NOT_TAKEN = -1


def is_taken(codec: int) -> bool:
    """Whether there is a library for it."""
    return codec in _LIBRARIES and _LIBRARIES[codec].IS_THERE


def decompressing(codec: int) -> int:
    """What `inflate_many` uses for a codec that is taken, on this thread."""
    return 0 if codec == LZ4 else int(_LIBRARIES[codec].decompressing())


def compressing(codec: int) -> int:
    """What `deflate_many` uses for a codec that is taken, on this thread."""
    return 0 if codec == LZ4 else int(_LIBRARIES[codec].compressing())


@inlined
def _size_at(data: NDArray[np.uint8], at: int) -> int:
    return (
        np.int64(data[at]) | np.int64(data[at + 1]) << 8 | np.int64(data[at + 2]) << 16
        | np.int64(data[at + 3]) << 24
    )  # fmt: skip


@inlined
def _begins_with(data: NDArray[np.uint8], at: int, magic: tuple[int, int, int, int]) -> bool:
    for n in range(4):
        if data[at + n] != magic[n]:
            return False
    return True


@inlined
def _block_bytes(data: NDArray[np.uint8], at: int, end: int) -> int:
    """How large blocks of the frame at `at` become at most; NOT_TAKEN for another kind of frame."""
    if end - at < _HEADER + 4 or data[at + 4] != _FLAGS or data[at + 5] & 0x8F:
        return NOT_TAKEN
    if not _begins_with(data, at, _MAGIC):
        return NOT_TAKEN
    number = data[at + 5] >> 4
    if not _FIRST_SIZE <= number <= _LAST_SIZE:
        return NOT_TAKEN
    if data[at + 6] != _HEADER_CHECKSUMS[number - _FIRST_SIZE]:
        return NOT_TAKEN
    return 1 << (8 + 2 * number)


@inlined
def _inflate(data: NDArray[np.uint8], at: int, end: int, target: NDArray[np.uint8], to: int) -> int:
    """Where the frame's plain bytes end in `target`; NOT_TAKEN where they do not fit, too."""
    most = _block_bytes(data, at, end)
    if most < 0:
        return NOT_TAKEN
    at += _HEADER
    while end - at >= 4:
        size = _size_at(data, at) & 0x7FFFFFFF
        is_stored = data[at + 3] & _STORED
        at += 4
        if size == 0 and not is_stored:
            return to
        if size > min(end - at, most):
            return NOT_TAKEN
        room = min(target.shape[0] - to, most)
        if is_stored:
            if size > room:
                return NOT_TAKEN
            copy_bytes(target, to, data, at, size)
            to += size
        else:
            written = decompress(data, at, target, to, size, room)
            if not 0 <= written <= room:
                return NOT_TAKEN
            to += written
        at += size
    return NOT_TAKEN


@inlined
def _inflate_zstd(
    used: int, data: NDArray[np.uint8], at: int, end: int, target: NDArray[np.uint8], to: int
) -> int:
    if end - at <= len(_ZSTD_MAGIC) or not _begins_with(data, at, _ZSTD_MAGIC):
        return NOT_TAKEN
    room = target.shape[0] - to
    written = _zstd_decompress(used, data, at, end - at, target, to, room)
    return to + written if 0 <= written <= room else NOT_TAKEN


@inlined
def _inflate_gzip(
    used: int, data: NDArray[np.uint8], at: int, end: int, target: NDArray[np.uint8], to: int
) -> int:
    if end - at < _GZIP_MEMBER_MIN or not _begins_with(data, at, _GZIP_MAGIC):
        return NOT_TAKEN
    room = target.shape[0] - to
    written = _gzip_decompress(used, data, at, end - at, target, to, room)
    return to + written if 0 <= written <= room else NOT_TAKEN


@kernel
def inflate_many(
    codec: int, used: int, data: NDArray[np.uint8], rows: NDArray[np.void], lo: int, hi: int,
    wanted: NDArray[np.bool_], target: NDArray[np.uint8], filled: int, largest: int,
    starts: NDArray[np.int64], ends: NDArray[np.int64],
) -> tuple[int, int, int]:  # fmt: skip
    """Inflate the wanted ones of batches lo..hi-1, one behind the other, from `filled` on.

    All of one codec; `used` is `decompressing(codec)`.

    `wanted[0]` is of batch lo. starts[b], ends[b] are set for each. It stops at the first batch
    that it does not take, and before one for which there may not be room: where less is left than
    the `largest` so far became.

    Returns (the batch where it stopped, `filled`, `largest`).
    """
    for b in range(lo, hi):
        if not wanted[b - lo]:
            continue
        if filled > 0 and target.shape[0] - filled < largest:
            return b, filled, largest
        row = rows[b]
        start, stop = row.position + HEADER_SIZE, row.position + row.size
        if row.attributes & CODEC_MASK != codec or stop > data.shape[0]:
            return b, filled, largest
        if codec == LZ4:
            end = _inflate(data, start, stop, target, filled)
        elif codec == ZSTD:
            end = _inflate_zstd(used, data, start, stop, target, filled)
        else:
            end = _inflate_gzip(used, data, start, stop, target, filled)
        if end < 0:
            return b, filled, largest
        starts[b], ends[b] = filled, end
        largest = max(largest, end - filled)
        filled = end
    return hi, filled, largest


# Beside its plain bytes: a frame of lz4 has a header, an end, and a size for each 64 KB; one of
# zstd is never larger than its bound, which is most for small ones; a member of gzip has 18 bytes
# and 5 for each 5,000.
_FRAME_BYTES_MAX = 512
_BYTES_A_BLOCK = 64 << 10 >> 8


def deflated_bytes_max(plain_bytes: int, batches: int) -> int:
    """Room for batches of so many bytes together, whatever they are compressed with."""
    return plain_bytes + batches * _FRAME_BYTES_MAX + _BYTES_A_BLOCK * (plain_bytes >> 16)


@inlined
def _deflate(
    state: NDArray[np.uint64], plain: NDArray[np.uint8], at: int, end: int,
    target: NDArray[np.uint8], to: int,
) -> int:  # fmt: skip
    for n in range(4):
        target[to + n] = _MAGIC[n]
    target[to + 4], target[to + 5] = _FLAGS, _FIRST_SIZE << 4
    target[to + 6] = _HEADER_CHECKSUMS[0]
    to += _HEADER
    while at < end:
        size = min(_BLOCK_BYTES, end - at)
        written = compress(state, plain, at, target, to + 4, size, size - 1)
        stored = 0
        if not 0 < written < size:
            copy_bytes(target, to + 4, plain, at, size)
            written, stored = size, _STORED
        for n in range(4):
            target[to + n] = written >> 8 * n & 0xFF
        target[to + 3] |= stored
        to += 4 + written
        at += size
    for n in range(4):
        target[to + n] = 0
    return to + 4


@kernel
def deflate_many(
    codec: int, used: int, out: NDArray[np.uint8], rows: NDArray[np.void],
    state: NDArray[np.uint64], target: NDArray[np.uint8],
) -> int:  # fmt: skip
    """Copy batches to `target`, one behind the other; records that are PLAIN become frames.

    All of one codec: `state` is lz4's, `used` is `compressing(codec)`. Length and checksum of these
    are made; `rows` get their new positions, sizes and checksums. Returns where they end;
    NOT_TAKEN, with nothing of `rows` changed, where there is no room, or one is of another codec;
    and one less where the library fails.
    """
    needed = 0
    for n in range(rows.shape[0]):
        row = rows[n]
        if row.position < 0 or row.position + row.size > out.shape[0] or row.size < HEADER_SIZE:
            return NOT_TAKEN
        needed += row.size + _FRAME_BYTES_MAX + _BYTES_A_BLOCK * (row.size >> 16)
        if row.crc == PLAIN and row.attributes & CODEC_MASK != codec:
            return NOT_TAKEN
    if needed > target.shape[0]:
        return NOT_TAKEN
    to = 0
    for n in range(rows.shape[0]):
        row = rows[n]
        at, size = row.position, row.size
        if row.crc == PLAIN:
            copy_bytes(target, to, out, at, HEADER_SIZE)
            first, last = at + HEADER_SIZE, at + size
            if codec == LZ4:
                end = _deflate(state, out, first, last, target, to + HEADER_SIZE)
            else:
                start = to + HEADER_SIZE
                room, length = target.shape[0] - start, last - first
                if codec == ZSTD:
                    written = _zstd_compress(
                        used, out, first, length, target, start, room, _ZSTD_LEVEL
                    )
                else:
                    written = _gzip_compress(used, out, first, length, target, start, room)
                if not 0 < written <= room:
                    return NOT_TAKEN - 1
                end = start + written
            row.crc = seal(target, to, end)
            row.size = end - to
        else:
            copy_bytes(target, to, out, at, size)
        row.position = to
        to += row.size
    return to
