"""Zig-zag variable-length numbers, by arithmetic only."""

from __future__ import annotations


class BadVarint(ValueError):
    """The bytes run out, or the number is longer than its type allows."""


def write(value: int) -> bytes:
    """A 32- or 64-bit number: 0, -1, 1, -2 … count as 0, 1, 2, 3 …, seven bits a byte."""
    raw = 2 * value if value >= 0 else -2 * value - 1
    out = []
    while raw >= 128:
        out.append(raw % 128 + 128)
        raw //= 128
    return bytes([*out, raw])


def read(data: bytes, at: int, end: int, bits: int) -> tuple[int, int]:
    """(number of `bits` bits at data[at:end], next position)."""
    raw = 0
    for k in range((bits + 6) // 7):
        if at + k >= end:
            raise BadVarint("cut off")
        byte = data[at + k]
        raw += (byte % 128) * 128**k
        if byte < 128:
            raw %= 1 << bits
            return (raw // 2 if raw % 2 == 0 else -(raw + 1) // 2), at + k + 1
    raise BadVarint("too long")
