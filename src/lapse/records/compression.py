"""The five codecs, both ways, as Kafka's clients write and read them.

Inflating is bounded: a batch does not say how large it becomes, so the target doubles up to
`bytes_max` and a larger one is refused.

Which library does what, and why (MEASURED §4): cramjam does zstd and raw snappy blocks (Xerial's
framing around them is ours), inflating into a buffer it is given; python-lz4 does lz4, because
Java refuses the linked blocks cramjam writes; zlib from the standard library does gzip, with the
very bytes Java gives.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any

import cramjam
import lz4.frame
import numpy as np
from numpy.typing import NDArray

from lapse.base.errors import LapseError
from lapse.records.layout import Codec

INFLATED_BYTES_MAX = 1 << 30
_INFLATED_BYTES_MIN = 4096
_ZSTD_RATIO_MAX = 128 << 10  # a block holds up to 128 KiB and takes at least a byte, more in truth

_XERIAL_MAGIC = b"\x82SNAPPY\0"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK = 32 * 1024
_LZ4_BLOCK_64K = 4
# Java's GZIPOutputStream: no name, no time, "unknown" system.
_GZIP_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"


class BadCompression(LapseError):
    """The payload does not inflate, or to more than is allowed."""


def inflate(
    codec: int, payload: NDArray[np.uint8], bytes_max: int = INFLATED_BYTES_MAX
) -> NDArray[np.uint8]:
    """The records of a batch, plain and read-only. `payload` is what follows the header."""
    if codec == Codec.NONE:
        return payload
    decompress = _INFLATERS.get(codec)
    if decompress is None:
        raise BadCompression(f"unknown codec {codec}")
    try:
        plain = decompress(payload, bytes_max)
    except (cramjam.DecompressionError, zlib.error, ValueError, OverflowError, struct.error) as e:
        raise BadCompression(f"{Codec(codec).name.lower()}: {e}") from e
    plain.flags.writeable = False  # one array type for the kernels, whatever the codec
    return plain


def _doubling(into: Any, payload: NDArray[np.uint8], bytes_max: int) -> NDArray[np.uint8]:
    size = max(_INFLATED_BYTES_MIN, 4 * len(payload))
    while True:
        size = min(size, bytes_max)
        target = np.empty(size, np.uint8)
        try:
            done = into(payload.data, target.data)
        except cramjam.DecompressionError:
            done = size  # perhaps only for want of room; a broken payload fails at bytes_max too
            if size == bytes_max or size >= _ZSTD_RATIO_MAX * len(payload):
                raise
        if done < size:
            return target[:done]
        if size == bytes_max:
            raise BadCompression(f"inflates to {bytes_max} bytes or more, which is the limit")
        size *= 4


def _inflate_gzip(payload: NDArray[np.uint8], bytes_max: int) -> NDArray[np.uint8]:
    inflater = zlib.decompressobj(31)
    plain = inflater.decompress(payload.data, bytes_max)
    if not inflater.eof:
        raise BadCompression("gzip: cut off, or larger than allowed")
    return np.frombuffer(plain, np.uint8)


def _inflate_lz4(payload: NDArray[np.uint8], bytes_max: int) -> NDArray[np.uint8]:
    try:
        inflater = lz4.frame.LZ4FrameDecompressor()
        plain = inflater.decompress(payload.data, bytes_max)
    except RuntimeError as e:
        raise BadCompression(f"lz4: {e}") from e
    if not inflater.eof:
        raise BadCompression("lz4: cut off, or larger than allowed")
    return np.frombuffer(plain, np.uint8)


def _inflate_zstd(payload: NDArray[np.uint8], bytes_max: int) -> NDArray[np.uint8]:
    return _doubling(cramjam.zstd.decompress_into, payload, bytes_max)


def _inflate_snappy(payload: NDArray[np.uint8], bytes_max: int) -> NDArray[np.uint8]:
    view = payload.data
    if bytes(view[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _inflate_snappy_block(payload, bytes_max)
    blocks = []
    total = 0
    at = len(_XERIAL_HEADER)
    while at < len(view):
        (length,) = struct.unpack_from(">i", view, at)
        at += 4
        if length < 0 or at + length > len(view):
            raise BadCompression("snappy: block cut off")
        blocks.append(_inflate_snappy_block(payload[at : at + length], bytes_max - total))
        total += len(blocks[-1])
        at += length
    return np.concatenate(blocks) if blocks else np.empty(0, np.uint8)


def _inflate_snappy_block(block: NDArray[np.uint8], bytes_max: int) -> NDArray[np.uint8]:
    size = cramjam.snappy.decompress_raw_len(block.data)
    if size > bytes_max:
        raise BadCompression(f"snappy: a block of {size} bytes, {bytes_max} are allowed")
    target = np.empty(size, np.uint8)
    cramjam.snappy.decompress_raw_into(block.data, target.data)
    return target


def deflate(codec: int, plain: NDArray[np.uint8]) -> bytes | memoryview:
    """Records compressed as Kafka does at the codec's default level (SEMANTICS F-14)."""
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


def _as_is(plain: NDArray[np.uint8]) -> memoryview:
    return plain.data


_ZSTD_LEVEL = 3

_INFLATERS = {
    int(Codec.GZIP): _inflate_gzip,
    int(Codec.SNAPPY): _inflate_snappy,
    int(Codec.LZ4): _inflate_lz4,
    int(Codec.ZSTD): _inflate_zstd,
}
_DEFLATERS: dict[int, Any] = {
    int(Codec.NONE): _as_is,
    int(Codec.GZIP): _deflate_gzip,
    int(Codec.SNAPPY): _deflate_snappy,
    int(Codec.LZ4): _deflate_lz4,
    int(Codec.ZSTD): lambda plain: memoryview(cramjam.zstd.compress(plain.data, _ZSTD_LEVEL)),
}
