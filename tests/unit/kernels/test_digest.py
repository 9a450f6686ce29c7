"""The digest of records beside one made of hashes in plain Python; and what it refuses."""

from __future__ import annotations

import random

import numpy as np
import pytest

from lapse.kernels.digest import LAST_BYTES, digest_records
from lapse.kernels.keyhash import hash_bytes
from lapse.records.batch import as_array
from lapse.records.batch_writer import Bytes

NULL = 0x9E3779B97F4A7C15
SEEDS = (11, -3)
MASK = (1 << 64) - 1
Record = tuple[bytes | None, bytes | None, bytes, int, bool]


def signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


def expected(records: list[Record]) -> list[int]:
    words, out = [0, 0], np.zeros(2, np.uint64)
    for key, value, headers, time, tombstone in records:
        low, high = (seed & MASK for seed in SEEDS)
        last = time.to_bytes(8, "little", signed=True) + bytes([tombstone])
        for one in (key, value, headers, last):
            seeds = (low ^ NULL, high) if one is None else (low, high)
            hash_bytes(as_array(one or b""), signed(seeds[0]), signed(seeds[1]), out)
            low, high = int(out[0]), int(out[1])
        words = [(words[0] + low) & MASK, (words[1] + high) & MASK]
    return words


def digest(records: list[Record]) -> list[int]:
    keys, values, headers, times, dead = zip(*records, strict=True)
    words = np.zeros(2, np.uint64)
    assert digest_records(
        Bytes.of(keys), Bytes.of(values), Bytes.of(headers), np.array(times), np.array(dead), SEEDS,
        np.zeros(LAST_BYTES, np.uint8), words,
    )  # fmt: skip
    return [int(word) for word in words]


def drawn(chance: random.Random) -> Record:
    key, value = (
        chance.choice([None, b"", chance.randbytes(chance.randrange(40))]) for _ in range(2)
    )
    return key, value, chance.randbytes(3), chance.randrange(-1, 1 << 60), chance.random() < 0.3


def test_it_is_the_sum_of_hashes_of_records() -> None:
    chance = random.Random(1)
    records = [drawn(chance) for _ in range(200)]
    assert digest(records) == expected(records)
    assert digest(records[::-1]) == digest(records)


@pytest.mark.parametrize("which", range(5))
def test_each_field_counts(which: int) -> None:
    one: Record = (b"k", b"v", b"\x00", 5, False)
    others: Record = (None, b"", b"\x02", 6, True)
    changed = (*one[:which], others[which], *one[which + 1 :])
    assert digest([changed]) != digest([one])  # type: ignore[list-item]
    assert digest([(b"ab", b"c", *one[2:])]) != digest([(b"a", b"bc", *one[2:])])


def test_what_lies_outside_its_bytes_is_refused() -> None:
    good, words, room = Bytes.of([b"abc"]), np.zeros(2, np.uint64), np.zeros(LAST_BYTES, np.uint8)
    times, flags = np.zeros(1, np.int64), np.zeros(1, np.bool_)
    for bad in (
        good._replace(starts=np.array([1])), good._replace(starts=np.array([-1])),
        good._replace(lengths=np.array([4])), good._replace(lengths=np.array([1, 1])),
    ):  # fmt: skip
        for n in range(3):
            columns = [bad if k == n else good for k in range(3)]
            assert not digest_records(*columns, times, flags, SEEDS, room, words)
    assert not digest_records(good, good, good, times, flags[:0], SEEDS, room, words)
    assert not digest_records(good, good, good, times, flags, SEEDS, room[:-1], words)
    assert not digest_records(good, good, good, times, flags, SEEDS, room, words[:1])
    assert not words.any()
