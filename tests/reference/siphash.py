"""SipHash-c-d with 128 bits of output, from the published algorithm (Aumasson, Bernstein 2012).

Parametrised by the rounds, so that the published vectors of SipHash-2-4-128 check it and
SipHash-1-3-128 can then be compared with it.
"""

from __future__ import annotations

_MASK = (1 << 64) - 1


def _rotl(x: int, n: int) -> int:
    return ((x << n) | (x >> (64 - n))) & _MASK


class _State:
    def __init__(self, k0: int, k1: int) -> None:
        self.v = [
            k0 ^ int.from_bytes(b"somepseu", "big"),
            k1 ^ int.from_bytes(b"dorandom", "big"),
            k0 ^ int.from_bytes(b"lygenera", "big"),
            k1 ^ int.from_bytes(b"tedbytes", "big"),
        ]

    def rounds(self, n: int) -> None:
        v = self.v
        for _ in range(n):
            v[0] = (v[0] + v[1]) & _MASK
            v[2] = (v[2] + v[3]) & _MASK
            v[1] = _rotl(v[1], 13) ^ v[0]
            v[3] = _rotl(v[3], 16) ^ v[2]
            v[0] = _rotl(v[0], 32)
            v[2] = (v[2] + v[1]) & _MASK
            v[0] = (v[0] + v[3]) & _MASK
            v[1] = _rotl(v[1], 17) ^ v[2]
            v[3] = _rotl(v[3], 21) ^ v[0]
            v[2] = _rotl(v[2], 32)

    def absorb(self, word: int, rounds: int) -> None:
        self.v[3] ^= word
        self.rounds(rounds)
        self.v[0] ^= word

    def squeeze(self) -> int:
        return self.v[0] ^ self.v[1] ^ self.v[2] ^ self.v[3]


def siphash128(data: bytes, k0: int, k1: int, c: int, d: int) -> tuple[int, int]:
    """The two 64-bit words of the hash, in the order they are written out (little-endian)."""
    state = _State(k0, k1)
    state.v[1] ^= 0xEE
    whole = len(data) // 8 * 8
    for at in range(0, whole, 8):
        state.absorb(int.from_bytes(data[at : at + 8], "little"), c)
    last = int.from_bytes(data[whole:], "little") | (len(data) & 0xFF) << 56
    state.absorb(last, c)
    state.v[2] ^= 0xEE
    state.rounds(d)
    low = state.squeeze()
    state.v[1] ^= 0xDD
    state.rounds(d)
    return low, state.squeeze()
