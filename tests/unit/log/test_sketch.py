"""How far off an estimate of keys is, from none to a million."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lapse.kernels.layout import RECORD
from lapse.kernels.sketch import RANK_MAX, REGISTERS, note_records
from lapse.log.sketch import decode_sketch, empty_sketch, encode_sketch, estimate
from lapse.records.batch import as_array


@pytest.mark.parametrize("n", [0, 1, 10, 300, 1000, 3000, 30_000, 1_000_000])
def test_it_is_within_ten_percent(n: int) -> None:
    """Three standard errors of 1024 registers; the hash is a fixed one, so this is repeatable."""
    numbers = as_array(np.arange(max(n, 1), dtype=np.uint64).tobytes())
    rows = np.zeros(n, RECORD)
    rows["key_position"], rows["key_length"] = 8 * np.arange(n), 8
    sketch = empty_sketch()
    note_records(numbers, rows, sketch)
    assert abs(estimate([sketch, empty_sketch()]) - n) <= n * 0.1
    assert estimate([]) == 0
    assert len(encode_sketch(sketch)) < 700


def test_a_bomb_is_no_sketch() -> None:
    """What inflates to more than a sketch's registers is not inflated."""
    assert decode_sketch(encode_sketch(np.zeros(100 << 20, np.uint8))) is None


@pytest.mark.parametrize("power", [50, 58, 60, 62, 64, 66])
def test_it_is_right_where_registers_can_say_no_more(power: int) -> None:
    """They are as they most probably are with so many keys: one in 2^rank reaches a rank."""
    per_register = 2**power / REGISTERS
    below = [math.exp(-per_register / 2**rank) for rank in range(RANK_MAX)]  # at most that rank
    ranks = [sum(part < (n + 0.5) / REGISTERS for part in below) for n in range(REGISTERS)]
    assert (max(ranks) == RANK_MAX) == (power > 54)
    assert abs(estimate([np.array(ranks, np.uint8)]) / 2**power - 1) < 0.01
