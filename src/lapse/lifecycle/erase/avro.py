"""An Avro file's blocks, inflated: all that a search for bytes needs of the format.

Iceberg's manifests are such files, and may hold bounds of columns. Format: Avro 1.12, "Object
Container Files".
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator

MAGIC = b"Obj\x01"
_CODEC = b"avro.codec"
_SYNC_BYTES = 16
_LONG_BYTES_MAX = 10
_BLOCK_BYTES_MAX = 1 << 30  # inflated


def blocks_of(data: bytes) -> Iterator[bytes]:
    """Each block as it is once inflated. Raises ValueError for what cannot be read."""
    reader = _Reader(data, len(MAGIC))
    codec = b"null"
    while count := reader.long():
        if count < 0:
            count = -count
            reader.long()  # how many bytes they take
        for _ in range(count):
            name, value = reader.sized(), reader.sized()
            codec = value if name == _CODEC else codec
    sync = reader.take(_SYNC_BYTES)
    if codec not in _INFLATE:
        raise ValueError(f"codec {codec!r}")
    while not reader.at_end:
        reader.long()  # how many objects
        yield _INFLATE[codec](reader.sized())
        if reader.take(_SYNC_BYTES) != sync:
            raise ValueError("a block does not end where it should")


class _Reader:
    def __init__(self, data: bytes, at: int) -> None:
        self._data, self._at = data, at

    @property
    def at_end(self) -> bool:
        return self._at == len(self._data)

    def take(self, count: int) -> bytes:
        end = self._at + count
        if not self._at <= end <= len(self._data):
            raise ValueError("the file ends early")
        found, self._at = self._data[self._at : end], end
        return found

    def long(self) -> int:
        """Zigzag, seven bits a byte."""
        value = 0
        for n in range(_LONG_BYTES_MAX):
            [byte] = self.take(1)
            value |= (byte & 0x7F) << (7 * n)
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)
        raise ValueError("a number has no end")

    def sized(self) -> bytes:
        return self.take(self.long())


def _inflate(data: bytes) -> bytes:
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        plain = inflater.decompress(data, _BLOCK_BYTES_MAX)
    except zlib.error as e:
        raise ValueError(str(e)) from e
    # PyIceberg leaves most of zlib's own checksum behind what it deflates.
    checksum = zlib.adler32(plain).to_bytes(4, "big")
    if not inflater.eof or not checksum.startswith(inflater.unused_data):
        raise ValueError("a block is not all inflated")
    return plain


_INFLATE: dict[bytes, Callable[[bytes], bytes]] = {b"null": bytes, b"deflate": _inflate}
