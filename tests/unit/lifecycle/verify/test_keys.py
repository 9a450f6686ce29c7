"""Newest offsets by hash, no matter how they are split; and hashes that have a secret."""

from __future__ import annotations

import numpy as np
import pytest

from lapse.lifecycle.verify.keys import KEYLESS, NewestOffsets, hashed


@pytest.mark.parametrize("pending_max", [1, 7, 1000])
def test_the_greatest_offset_of_each(pending_max: int) -> None:
    rng = np.random.default_rng(pending_max)
    newest, expected = NewestOffsets(pending_max), {}
    for _ in range(50):
        hashes = rng.integers(1, 40, 6).astype(np.uint64)
        offsets = rng.integers(0, 1 << 60, 6)
        newest.put(hashes, offsets)
        for h, offset in zip(hashes.tolist(), offsets.tolist(), strict=True):
            expected[h] = max(expected.get(h, -1), offset)
    asked = np.arange(1, 60, dtype=np.uint64)
    assert newest.get(asked).tolist() == [expected.get(h, -1) for h in range(1, 60)]
    assert len(newest) == len(expected)


def test_nothing_put() -> None:
    assert NewestOffsets().get(np.array([3], np.uint64)).tolist() == [-1]


def test_keys_to_numbers() -> None:
    keys = [b"a", None, b"", b"a"]
    hashes = hashed(keys, b"one")
    assert hashes[0] == hashes[3] != hashes[2]
    assert hashes[1] == KEYLESS not in {hashes[0], hashes[2]}
    assert hashes[0] != hashed(keys, b"other")[0]
    assert len(hashed([], b"one")) == 0
