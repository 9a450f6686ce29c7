"""`round.roaring` against the library that reads what it writes."""

from __future__ import annotations

import numpy as np
import pytest
from pyroaring import BitMap

from lapse.lifecycle.round.roaring import count_bits, serialize_bits


@pytest.mark.parametrize("density", [0.0, 1e-4, 0.0624, 0.0626, 0.5, 1.0])
@pytest.mark.parametrize("n", [1, 7, 8, 65_535, 65_536, 65_537, 300_001])
def test_it_is_the_set_of_the_bits(n: int, density: float, seed: int) -> None:
    chosen = np.random.default_rng(seed).random(n) < density
    bits = np.packbits(chosen, bitorder="little")
    read = BitMap.deserialize(serialize_bits(bits))
    assert list(read) == np.flatnonzero(chosen).tolist()
    assert count_bits(bits) == len(read)


@pytest.mark.parametrize("members", [4096, 4097])
def test_a_list_of_4096_and_bits_from_4097_on(members: int) -> None:
    """The format reads a container by its size: the bound must be exact."""
    bits = np.zeros(8192 * 3, np.uint8)
    numbers = 65_536 + np.arange(members)
    np.bitwise_or.at(bits, numbers >> 3, (1 << (numbers & 7)).astype(np.uint8))
    assert list(BitMap.deserialize(serialize_bits(bits))) == numbers.tolist()


def test_no_bits_at_all() -> None:
    assert len(BitMap.deserialize(serialize_bits(np.zeros(0, np.uint8)))) == 0
