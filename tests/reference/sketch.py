"""HyperLogLog, key by key, as the paper has it; the hash is the slow SipHash."""

from __future__ import annotations

from collections.abc import Iterable

from tests.reference.siphash import siphash128

BITS = 10
SEED = (0x6C61707365206B65, 0x7920736B65746368)


def registers(keys: Iterable[bytes]) -> list[int]:
    """Each register's greatest number of trailing zero bits, plus one."""
    found = [0] * (1 << BITS)
    for key in keys:
        word, _ = siphash128(key, *SEED, 1, 3)
        rest = word >> BITS
        bits = 64 - BITS
        zeros = bits if not rest else (rest & -rest).bit_length() - 1
        register = word & ((1 << BITS) - 1)
        found[register] = max(found[register], zeros + 1)
    return found
