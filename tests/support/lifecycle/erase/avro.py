"""Avro files, written by hand: Avro 1.12, "Object Container Files"."""

from __future__ import annotations

import zlib

from lapse.lifecycle.erase.avro import MAGIC

SYNC = bytes(range(16))


def number(n: int) -> bytes:
    """Avro's long."""
    value, out = (n << 1) ^ (n >> 63), bytearray()
    while value > 0x7F:
        out.append(0x80 | (value & 0x7F))
        value >>= 7
    return bytes([*out, value])


def sized(data: bytes) -> bytes:
    return number(len(data)) + data


def deflated(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


def file_of(*blocks: bytes, codec: bytes | None = b"deflate", by_size: bool = False) -> bytes:
    """With a schema, as every file has."""
    pairs = [
        (b"avro.schema", b'"bytes"' * 30),
        *([] if codec is None else [(b"avro.codec", codec)]),
    ]
    told = b"".join(sized(name) + sized(value) for name, value in pairs)
    head = number(-len(pairs)) + number(len(told)) if by_size else number(len(pairs))
    pack = deflated if codec == b"deflate" else bytes
    body = b"".join(number(7) + sized(pack(block)) + SYNC for block in blocks)
    return MAGIC + head + told + number(0) + SYNC + body
