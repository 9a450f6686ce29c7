"""The five codecs, both ways, as Kafka's clients write and read them.

Inflating is bounded, since a batch does not say how large it becomes and its sender may lie:
by `INFLATED_BYTES_MAX`, by `bytes_allowed` for its size, and by what its codec can make of so many
bytes at the very most. Memory is allocated by that bound and never by a length in the payload.

Which library does what, and why: cramjam does zstd and raw snappy blocks (Xerial's
framing around them is ours), inflating into a buffer it is given; python-lz4 does lz4, because
Java refuses the linked blocks cramjam writes; zlib from the standard library does gzip, with the
very bytes Java gives.

**What is read of a payload** is what Java's client reads: every member of a gzip, and nothing of
what follows them, the end mark of an LZ4 frame, or Snappy's last block. Such bytes are no error,
and `inflate_and_tell` says where they are: a search of all that is in a file cannot pass over them.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import Any

import cramjam
import lz4.frame
import numpy as np
from numpy.typing import NDArray

from lapse.base.errors import LapseError
from lapse.records.layout import Codec

INFLATED_BYTES_MAX = 1 << 30
INFLATED_BYTES_ALWAYS = 64 << 20  # whatever the ratio: zeros shrink 30,000 times
INFLATED_RATIO_MAX = 256  # beyond that many bytes
_LZ4_RATIO_MAX = 255  # a byte that says "255 more"
_LZ4_ROOM = 64 << 10
_SNAPPY_COPY = 64, 3  # at most so many bytes out of so many

_ZSTD_FRAME = 0xFD2FB528
_ZSTD_SKIPPED = 0x184D2A50  # and the fifteen after it
_ZSTD_SKIPPED_MARK = b"\x2a\x4d\x18"  # what they all have
_ZSTD_DICTIONARY_BYTES = 0, 1, 2, 4
_ZSTD_SIZE_BYTES = 0, 2, 4, 8
_ZSTD_BLOCK_MAX = 128 << 10
_ZSTD_RLE = 1

_XERIAL_MAGIC = b"\x82SNAPPY\0"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK = 32 * 1024
_XERIAL_LENGTH = 4  # bytes of a block's length; fewer at the end are nothing to Java
_LZ4_BLOCK_64K = 4
_LZ4_FLAGS, _LZ4_INDEPENDENT = 4, 0x20  # a byte of the frame's descriptor, and a bit of it
_LZ4_MAGIC = b"\x04\x22\x4d\x18"
# Java's GZIPOutputStream: no name, no time, "unknown" system.
_GZIP_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
_GZIP_MAGIC = _GZIP_HEADER[:3]  # and the only method there is
_GZIP_FLAGS, _GZIP_CRC, _GZIP_EXTRA, _GZIP_TEXTS = 3, 2, 4, (8, 16)
_GZIP_IGNORED_MAX = 18  # Java looks for another member only behind fewer bytes than one can have
_GZIP_STEP = 512  # zlib copies what it is given and does not need

# Bytes start..end-1 of a payload, ascending.
Spans = tuple[tuple[int, int], ...]


class BadCompression(LapseError):
    """The payload does not inflate, or to more than is allowed."""


def bytes_allowed(payload_bytes: int) -> int:
    """What a payload of so many bytes may become: ample for records, little for a bomb."""
    return min(INFLATED_BYTES_MAX, INFLATED_BYTES_ALWAYS + INFLATED_RATIO_MAX * payload_bytes)


def has_linked_blocks(frame: NDArray[np.uint8]) -> bool:
    """Whether blocks of an LZ4 frame lean on those before them: Java's reader refuses such."""
    return len(frame) > _LZ4_FLAGS and not frame[_LZ4_FLAGS] & _LZ4_INDEPENDENT


def inflate(
    codec: int, payload: NDArray[np.uint8], bytes_max: int = INFLATED_BYTES_MAX
) -> NDArray[np.uint8]:
    """The records of a batch, plain and read-only. `payload` is what follows the header."""
    return _inflate(codec, payload, bytes_max)[0]


def _inflate(
    codec: int, payload: NDArray[np.uint8], bytes_max: int
) -> tuple[NDArray[np.uint8], Spans]:
    if codec == Codec.NONE:
        return payload, ()
    decompress = _INFLATERS.get(codec)
    if decompress is None:
        raise BadCompression(f"unknown codec {codec}")
    try:
        plain, unread = decompress(payload, min(bytes_max, bytes_allowed(len(payload))))
    except struct.error:
        raise BadCompression(f"{Codec(codec).name.lower()}: cut off") from None
    except (cramjam.DecompressionError, zlib.error, ValueError, OverflowError) as e:
        raise BadCompression(f"{Codec(codec).name.lower()}: {e}") from e
    plain.flags.writeable = False  # one array type for the kernels, whatever the codec
    return plain, unread


def inflate_into(
    codec: int, payload: NDArray[np.uint8], target: NDArray[np.uint8]
) -> NDArray[np.uint8]:
    """As `inflate`: the beginning of `target` if that is large enough, else an array of its own."""
    if codec == Codec.ZSTD:
        try:
            return target[: cramjam.zstd.decompress_into(payload.data, target.data)]
        except cramjam.DecompressionError:
            pass  # it is too large, or broken
    return _put(inflate(codec, payload), target)


def inflate_and_tell(
    codec: int, payload: NDArray[np.uint8], target: NDArray[np.uint8]
) -> tuple[NDArray[np.uint8], Spans]:
    """As `inflate_into`, and the bytes of `payload` that could be anything: no record needs them.

    They lie behind what is compressed, in a gzip header (a name, a comment), or in a zstd frame
    that is to be skipped.
    """
    if codec == Codec.ZSTD and _ZSTD_SKIPPED_MARK not in payload.tobytes():
        return inflate_into(codec, payload, target), ()
    plain, unread = _inflate(codec, payload, INFLATED_BYTES_MAX)
    return _put(plain, target), unread


def _put(plain: NDArray[np.uint8], target: NDArray[np.uint8]) -> NDArray[np.uint8]:
    if len(plain) > len(target):
        return plain
    target[: len(plain)] = plain
    return target[: len(plain)]


def _too_large(bytes_max: int) -> BadCompression:
    return BadCompression(f"inflates to {bytes_max} bytes or more, which is the limit")


def _inflate_gzip(payload: NDArray[np.uint8], bytes_max: int) -> tuple[NDArray[np.uint8], Spans]:
    """All members, as GZIPInputStream gives them; what follows without a header is passed over."""
    view, pieces, unread, total = payload.data, list[bytes](), list[tuple[int, int]](), 0
    at, body = 0, _gzip_body(payload.data, 0)
    while True:
        piece, end = _gzip_member(view, at, bytes_max - total)
        pieces.append(piece)
        total += len(piece)
        if total > bytes_max:
            raise _too_large(bytes_max)
        if body is not None and body > at + len(_GZIP_HEADER):
            unread.append((at + len(_GZIP_HEADER), body))
        at = end
        body = _gzip_body(view, at) if len(view) - at > _GZIP_IGNORED_MAX else None
        if body is None:
            break
    if at < len(view):
        unread.append((at, len(view)))
    return np.frombuffer(pieces[0] if len(pieces) == 1 else b"".join(pieces), np.uint8), (*unread,)


def _gzip_member(view: memoryview, at: int, bytes_max: int) -> tuple[bytes, int]:
    """What a member inflates to, and where it ends."""
    inflater = zlib.decompressobj(31)
    pieces: list[bytes] = []
    step, left = len(view) if at == 0 else _GZIP_STEP, bytes_max
    while not inflater.eof:
        if at == len(view):
            raise BadCompression("gzip: cut off")
        some = view[at : at + step]
        pieces.append(inflater.decompress(some, max(left, 1)))  # 0 would be no limit
        at, step = at + len(some), 2 * step
        left -= len(pieces[-1])
        if left <= 0 and not inflater.eof:
            raise _too_large(bytes_max)
    plain = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    return plain, at - len(inflater.unused_data)


def _gzip_body(view: memoryview, at: int) -> int | None:
    """Where the deflated bytes begin of a member at `at`; None: no header is there (RFC 1952)."""
    head = bytes(view[at : at + len(_GZIP_HEADER)])
    if len(head) < len(_GZIP_HEADER) or not head.startswith(_GZIP_MAGIC):
        return None
    flags, end = head[_GZIP_FLAGS], at + len(head)
    if flags & _GZIP_EXTRA:
        end += 2 + int.from_bytes(view[end : end + 2], "little")
    for text in _GZIP_TEXTS:
        if flags & text:
            end = _behind_zero(view, end)
    if flags & _GZIP_CRC:
        end += 2
        if zlib.crc32(view[at : end - 2]) & 0xFFFF != int.from_bytes(view[end - 2 : end], "little"):
            return None
    return end if end <= len(view) else None


def _behind_zero(view: memoryview, at: int) -> int:
    """Past the end if there is none."""
    step = _GZIP_STEP
    while at < len(view):
        found = bytes(view[at : at + step]).find(0)
        if found >= 0:
            return at + found + 1
        at, step = at + step, 2 * step
    return len(view) + 1


def _inflate_lz4(payload: NDArray[np.uint8], bytes_max: int) -> tuple[NDArray[np.uint8], Spans]:
    """One frame, as Kafka's client reads it, which looks at nothing behind its end mark.

    Piece by piece: room for all that could be would cost more than inflating.
    """
    if bytes(payload.data[: len(_LZ4_MAGIC)]) != _LZ4_MAGIC:
        raise BadCompression("lz4: not a frame")  # a frame to be skipped would be read as no bytes
    bytes_max = min(bytes_max, _LZ4_RATIO_MAX * len(payload) + 1)
    context = lz4.frame.create_decompression_context()
    pieces: list[bytes] = []
    total, room, source, ended = 0, max(_LZ4_ROOM, 4 * len(payload)), payload.data, False
    while not ended:
        try:
            piece, taken, ended = lz4.frame.decompress_chunk(
                context, source, max_length=min(room, bytes_max - total)
            )
        except RuntimeError as e:
            raise BadCompression(f"lz4: {e}") from e
        pieces.append(piece)
        total += len(piece)
        if not ended and total == bytes_max:
            raise _too_large(bytes_max)
        if not ended and (taken == len(source) or not piece):
            raise BadCompression("lz4: cut off")
        room, source = 4 * room, source[taken:]
    plain = np.frombuffer(pieces[0] if len(pieces) == 1 else b"".join(pieces), np.uint8)
    return plain, ((len(payload) - len(source), len(payload)),) if len(source) else ()


# --- zstd -----------------------------------------------------------------------------------------


def _inflate_zstd(payload: NDArray[np.uint8], bytes_max: int) -> tuple[NDArray[np.uint8], Spans]:
    bound, skipped = _zstd_frames(payload)
    size = min(bound, bytes_max)
    target = np.empty(size, np.uint8)
    try:
        return target[: cramjam.zstd.decompress_into(payload.data, target.data)], skipped
    except cramjam.DecompressionError:
        if size < bound:  # perhaps broken further on, but too large before that
            raise _too_large(bytes_max) from None
        raise


def _zstd_frames(payload: NDArray[np.uint8]) -> tuple[int, Spans]:
    """What the blocks of all frames may inflate to, read off their headers (RFC 8878 §3.1).

    And where the frames lie that are to be skipped.
    """
    view, at, bound = payload.data, 0, 0
    skipped: list[tuple[int, int]] = []
    while at < len(view):
        magic, descriptor = struct.unpack_from("<IB", view, at)
        if magic & ~15 == _ZSTD_SKIPPED:
            start, at = at, at + 8 + int(struct.unpack_from("<I", view, at + 4)[0])
            skipped.append((start, min(at, len(view))))
            continue
        if magic != _ZSTD_FRAME:
            raise BadCompression("zstd: not a frame")
        single = bool(descriptor & 0x20)  # then there is a size instead of a window
        at += 5 + (not single) + _ZSTD_DICTIONARY_BYTES[descriptor & 3]
        at += _ZSTD_SIZE_BYTES[descriptor >> 6] or single
        last = 0
        while not last:
            low, high = struct.unpack_from("<HB", view, at)
            head = low | high << 16
            last, kind, size = head & 1, head >> 1 & 3, head >> 3
            bound += min(size, _ZSTD_BLOCK_MAX) if kind <= _ZSTD_RLE else _ZSTD_BLOCK_MAX
            at += 3 + (1 if kind == _ZSTD_RLE else size)
        at += 4 * (descriptor >> 2 & 1)  # checksum
    if at > len(view):
        raise BadCompression("zstd: cut off")
    return bound, (*skipped,)


# --- snappy ---------------------------------------------------------------------------------------


def _inflate_snappy(payload: NDArray[np.uint8], bytes_max: int) -> tuple[NDArray[np.uint8], Spans]:
    view = payload.data
    if bytes(view[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        target = np.empty(_snappy_size(payload, bytes_max), np.uint8)
        cramjam.snappy.decompress_raw_into(payload.data, target.data)
        return target, ()
    blocks: list[tuple[NDArray[np.uint8], int]] = []
    total = 0
    at = len(_XERIAL_HEADER)
    while len(view) - at >= _XERIAL_LENGTH:
        (length,) = struct.unpack_from(">i", view, at)
        if length < 0 and bytes(view[at : at + len(_XERIAL_MAGIC)]) == _XERIAL_MAGIC:
            at += len(_XERIAL_HEADER)  # streams may follow each other
            continue
        at += 4
        if length < 0 or at + length > len(view):
            raise BadCompression("snappy: block cut off")
        block = payload[at : at + length]
        blocks.append((block, _snappy_size(block, bytes_max - total)))
        total += blocks[-1][1]
        at += length
    target = np.empty(total, np.uint8)
    done = 0
    for block, size in blocks:
        cramjam.snappy.decompress_raw_into(block.data, target[done : done + size].data)
        done += size
    return target, ((at, len(view)),) if at < len(view) else ()


def _snappy_size(block: NDArray[np.uint8], bytes_max: int) -> int:
    """What a block says it becomes, if that can be."""
    size = int(cramjam.snappy.decompress_raw_len(block.data))
    if size > bytes_max:
        raise BadCompression(f"snappy: a block of {size} bytes, {bytes_max} are allowed")
    bytes_out, bytes_in = _SNAPPY_COPY
    if size * bytes_in > len(block) * bytes_out:
        raise BadCompression(f"snappy: {size} bytes cannot come of a block of {len(block)}")
    return size


# --- deflating ------------------------------------------------------------------------------------


def deflate(codec: int, plain: NDArray[np.uint8]) -> bytes | memoryview:
    """Records compressed as Kafka does at the codec's default level (F-14)."""
    packed: bytes | memoryview = _DEFLATERS[codec](plain)
    return packed


def _deflate_gzip(plain: NDArray[np.uint8]) -> bytes:
    deflater = zlib.compressobj(zlib.Z_DEFAULT_COMPRESSION, zlib.DEFLATED, -zlib.MAX_WBITS)
    view = plain.data
    body = deflater.compress(view) + deflater.flush()
    return _GZIP_HEADER + body + struct.pack("<II", zlib.crc32(view), len(view) & 0xFFFFFFFF)


def _deflate_lz4(plain: NDArray[np.uint8]) -> bytes:
    compressed: bytes = lz4.frame.compress(
        plain.data, block_size=_LZ4_BLOCK_64K, block_linked=False, store_size=False
    )
    return compressed


def _deflate_snappy(plain: NDArray[np.uint8]) -> bytes:
    parts: list[Any] = [_XERIAL_HEADER]
    for start in range(0, len(plain), _XERIAL_BLOCK):
        block = memoryview(cramjam.snappy.compress_raw(plain.data[start : start + _XERIAL_BLOCK]))
        parts += [struct.pack(">i", len(block)), block]
    return b"".join(parts)


_ZSTD_LEVEL = 3

_Inflater = Callable[[NDArray[np.uint8], int], tuple[NDArray[np.uint8], Spans]]
_INFLATERS: dict[int, _Inflater] = {
    int(Codec.GZIP): _inflate_gzip,
    int(Codec.SNAPPY): _inflate_snappy,
    int(Codec.LZ4): _inflate_lz4,
    int(Codec.ZSTD): _inflate_zstd,
}
_DEFLATERS: dict[int, Any] = {
    int(Codec.NONE): lambda plain: plain.data,
    int(Codec.GZIP): _deflate_gzip,
    int(Codec.SNAPPY): _deflate_snappy,
    int(Codec.LZ4): _deflate_lz4,
    int(Codec.ZSTD): lambda plain: memoryview(cramjam.zstd.compress(plain.data, _ZSTD_LEVEL)),
}
