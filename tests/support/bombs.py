"""Payloads that say little and become much, or claim to."""

from __future__ import annotations

import gzip
import struct

import cramjam
import lz4.frame

from lapse.records.layout import Codec

KB, MB = 1 << 10, 1 << 20

XERIAL = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)


def varint(n: int) -> bytes:
    """As snappy has its length."""
    out = bytearray()
    while n >= 0x80:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    return bytes([*out, n])


def zstd_frame(blocks: list[bytes], window: int = 0x58) -> bytes:
    """Of blocks without their last-block bit; no content size, as Java writes it."""
    blocks = [*blocks[:-1], bytes([blocks[-1][0] | 1]) + blocks[-1][1:]]
    return b"\x28\xb5\x2f\xfd" + bytes([0, window]) + b"".join(blocks)


def rle(size: int) -> bytes:
    return struct.pack("<I", 1 << 1 | size << 3)[:3] + b"\0"


def zstd_with_size(size: int) -> bytes:
    """A frame that claims so many bytes, and holds one block of one."""
    claims = struct.pack("<Q", size)
    return b"\x28\xb5\x2f\xfd" + bytes([0xE0]) + claims + b"\x09\0\0" + b"x"


def lz4_with_size(size: int) -> bytes:
    """A frame that claims so many bytes; its header's checksum is right."""
    frame = bytearray(lz4.frame.compress(b"abc" * 50, store_size=True))
    frame[6:14] = struct.pack("<Q", size)
    from lapse.records.legacy import _xxh32  # noqa: PLC0415

    frame[14] = _xxh32(bytes(frame[4:14])) >> 8 & 0xFF
    return bytes(frame)


def snappy_copies(total: int) -> bytes:
    """As dense as snappy can be: one byte, then copies of 64."""
    n = (total - 1) // 64
    return varint(1 + 64 * n) + b"\0x" + b"\xfe\x01\x00" * n


def xerial(block: bytes, times: int) -> bytes:
    return XERIAL + (struct.pack(">i", len(block)) + block) * times


def bombs() -> dict[str, tuple[Codec, bytes, bool]]:
    """Name → (codec, payload, whether it must be refused)."""
    zeros = bytes(200 * MB)
    return {
        "gzip of 200 MB": (Codec.GZIP, gzip.compress(zeros, 6), True),
        "gzip of many members": (Codec.GZIP, gzip.compress(bytes(MB), 9) * 300, True),
        "gzip, 1 KB": (Codec.GZIP, gzip.compress(bytes(KB * 900), 9), False),
        "lz4 as dense as can be": (Codec.LZ4, lz4.frame.compress(zeros, block_size=7), False),
        "lz4 that claims 2^60 bytes": (Codec.LZ4, lz4_with_size(1 << 60), True),
        "snappy that claims 4 GB": (Codec.SNAPPY, varint((1 << 32) - 1) + b"\0x", True),
        "snappy that claims 1 GB less one": (Codec.SNAPPY, varint((1 << 30) - 1) + b"\0x", True),
        "snappy as dense as can be": (Codec.SNAPPY, snappy_copies(200 * MB), False),
        "xerial blocks": (Codec.SNAPPY, xerial(snappy_copies(MB), 200), False),
        "xerial blocks that claim": (
            Codec.SNAPPY, xerial(varint((1 << 30) - 1) + b"\0x", 100), True,
        ),
        "xerial of empty blocks": (Codec.SNAPPY, xerial(b"\0", 200_000), False),
        "xerial upon xerial": (Codec.SNAPPY, XERIAL * 60_000, False),
        "zstd of 200 MB": (Codec.ZSTD, bytes(cramjam.zstd.compress(zeros, 3)), True),
        "zstd, 1 KB of runs": (Codec.ZSTD, zstd_frame([rle(128 * KB)] * 250), False),
        "zstd, 32 KB of runs": (Codec.ZSTD, zstd_frame([rle(128 * KB)] * 8000), True),
        "zstd of runs too long": (Codec.ZSTD, zstd_frame([rle((1 << 21) - 1)] * 250), True),
        "zstd of many frames": (Codec.ZSTD, zstd_frame([rle(128 * KB)]) * 3000, True),
        "zstd of many empty frames": (Codec.ZSTD, zstd_frame([b"\0\0\0"]) * 50_000, False),
        "zstd with a window of 2 GB": (Codec.ZSTD, zstd_frame([rle(1)] * 9, window=0xA8), True),
        "zstd with a window of 128 MB": (
            Codec.ZSTD, zstd_frame([rle(128 * KB)] * 250, window=0x88), False,
        ),
        "zstd that claims 2^50 bytes": (Codec.ZSTD, zstd_with_size(1 << 50), True),
    }  # fmt: skip
