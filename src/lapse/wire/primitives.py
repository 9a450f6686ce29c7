"""What generated code calls for the few things that are not one line: varints, tags, arrays.

Kafka's unsigned varint is 7 bits a byte, lowest first (KIP-482). "Compact" lengths and counts are
unsigned varints of n + 1, so that 0 can mean null. Buffers are memoryviews of bytes; reading past
their end raises IndexError or struct.error, which the generated functions turn into
`MalformedMessage`, as they do `Lie`.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Sequence
from functools import cache, lru_cache

STRING_BYTES_MAX = 0x7FFF
UVARINT_BYTES_MAX = 5


class Lie(Exception):
    """A length, count or null that cannot be; the text says of which field."""


# What reading crooked bytes can raise.
BROKEN = (Lie, struct.error, IndexError, UnicodeDecodeError)


def reason(error: Exception) -> str:
    """What to tell people about one of `BROKEN`."""
    if isinstance(error, Lie):
        return str(error)
    if isinstance(error, UnicodeDecodeError):
        return "a string is not UTF-8"
    return "ends early"


# --- decoding ---------------------------------------------------------------------------------


def read_uvarint(buf: memoryview, pos: int) -> tuple[int, int]:
    """The unsigned varint at `pos`, and the position after it."""
    first = buf[pos]
    return (first, pos + 1) if first < 0x80 else more_uvarint(buf, pos + 1, first)


def more_uvarint(buf: memoryview, pos: int, first: int) -> tuple[int, int]:
    """The rest of a varint whose first byte, already read, said that more follow."""
    value = first & 0x7F
    for shift in range(7, 7 * UVARINT_BYTES_MAX, 7):
        byte = buf[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, pos
    raise Lie(f"a varint runs over {UVARINT_BYTES_MAX} bytes")


def skip_tags(buf: memoryview, pos: int, count: int) -> int:
    """Step over a section of tagged fields of which none is known; `count` is its first byte."""
    if count > 0x7F:
        count, pos = more_uvarint(buf, pos, count)
    for _ in range(count):
        tag, pos = read_uvarint(buf, pos)
        size, pos = read_uvarint(buf, pos)
        pos += size
        if pos > len(buf):
            raise Lie(f"tagged field {tag}: {size} bytes, {len(buf) - pos + size} left")
    return pos


@lru_cache(maxsize=4096)
def uuid_of(raw: bytes) -> uuid.UUID:
    """The UUID of 16 bytes; cached, since the same topic ids come again and again."""
    return uuid.UUID(bytes=raw)


# --- encoding ---------------------------------------------------------------------------------


def uvarint(value: int) -> bytes:
    """`value` as an unsigned varint."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


# A compact length below 127 is one byte; generated code looks it up here.
COMPACT = tuple(uvarint(n + 1) for n in range(0x7F))


def compact(n: int) -> bytes:
    """A compact length or count."""
    return uvarint(n + 1)


def compact_string(n: int) -> bytes:
    """A compact string's length; Kafka refuses to read more than an int16 holds."""
    if n > STRING_BYTES_MAX:
        raise ValueError(f"a string of {n} bytes; Kafka reads at most {STRING_BYTES_MAX}")
    return uvarint(n + 1)


def tagged(tag: int, data: bytes) -> bytes:
    """One tagged field."""
    return uvarint(tag) + uvarint(len(data)) + data


@cache
def fixed_array(letter: str, *, flexible: bool) -> Callable[[Sequence[int]], bytes]:
    """A function that encodes an array of one fixed-width type, count included."""
    # Replica lists and the like are short: those formats are prepared.
    few = 0x10
    count = "B" if flexible else "i"
    ready = tuple(struct.Struct(f">{count}{n}{letter}").pack for n in range(few))

    def encode_compact(values: Sequence[int]) -> bytes:
        n = len(values)
        if n < few:
            return ready[n](n + 1, *values)
        return compact(n) + struct.pack(f">{n}{letter}", *values)

    def encode_plain(values: Sequence[int]) -> bytes:
        n = len(values)
        if n < few:
            return ready[n](n, *values)
        return struct.pack(f">i{n}{letter}", n, *values)

    return encode_compact if flexible else encode_plain
