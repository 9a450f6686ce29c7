"""Which partition a key goes to: as Kafka's clients choose, so that one key stays in one partition.

Kafka's `BuiltInPartitioner`: the murmur2 hash of the key's bytes without its sign, modulo the
number of partitions. Records without a key go where the producer likes.
"""

from __future__ import annotations

import struct

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_SHIFT = 24
_WORD = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Kafka's variant of MurmurHash2, 32 bits, unsigned."""
    whole = len(data) & ~3
    h = (_SEED ^ len(data)) & _WORD
    for (word,) in struct.iter_unpack("<I", data[:whole]):
        k = (word * _MULTIPLIER) & _WORD
        k ^= k >> _SHIFT
        k = (k * _MULTIPLIER) & _WORD
        h = ((h * _MULTIPLIER) & _WORD) ^ k
    rest = data[whole:]
    if rest:
        h = ((h ^ int.from_bytes(rest, "little")) * _MULTIPLIER) & _WORD
    h ^= h >> 13
    h = (h * _MULTIPLIER) & _WORD
    return h ^ (h >> 15)


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition of a key in a topic with `partitions` partitions."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
