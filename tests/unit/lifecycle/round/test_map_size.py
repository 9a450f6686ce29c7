"""The sizes of the small plan's table, and what they take together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.lifecycle.round.map_size import (
    SLOT_BYTES,
    SLOTS_MIN,
    entries_within,
    grown,
    peak_bytes,
    room,
    slots_max,
)

FIRST = room(SLOTS_MIN)
BORDERS = [0, 1, *(room(SLOTS_MIN << n) + more for n in range(5) for more in (-1, 0, 1, 100))]


def sizes(entries_max: int) -> list[int]:
    """Of the tables one after the other, growing no sooner than they must."""
    found = [SLOTS_MIN]
    while room(found[-1]) < entries_max:
        found.append(grown(found[-1], room(found[-1]) + 1, entries_max))
    return found


@pytest.mark.parametrize("entries_max", [*BORDERS, 10**6, 2_400_000, 10**8, 10**10])
def test_a_map_is_given_what_its_keys_need_and_no_more(entries_max: int) -> None:
    found = sizes(entries_max)
    assert room(found[-1]) >= entries_max
    assert found[-1] == slots_max(entries_max)
    assert found[-1] == SLOTS_MIN or room(found[-1] - 1) < entries_max
    together = max(a + b for a, b in zip([0, *found], found, strict=False))
    assert peak_bytes(entries_max, entries_max) == together * SLOT_BYTES
    if found[-1] >= 2 * SLOTS_MIN:
        assert together <= found[-1] * 1.5
        assert 36 < peak_bytes(entries_max, entries_max) / entries_max < 44


def test_many_records_at_once_take_it_there_in_one_step() -> None:
    assert grown(SLOTS_MIN, 10**9, 10**6) == slots_max(10**6)
    assert grown(SLOTS_MIN, FIRST, 10**6) == SLOTS_MIN


def test_where_many_more_may_come_it_doubles() -> None:
    assert peak_bytes(FIRST, 10**9) == 256 << 10
    assert peak_bytes(FIRST + 1, 10**9) == (256 + 512) << 10
    assert peak_bytes(2_400_000, 10**9) == 192 << 20


def test_what_may_be_held_is_what_fits() -> None:
    for entries in (FIRST, FIRST + 1, 10**5, 123_457, 10**8):
        need = peak_bytes(entries, entries)
        assert entries <= entries_within(need)
        assert peak_bytes(entries_within(need) + 1, entries_within(need) + 1) > need
        assert entries == FIRST or entries_within(need - SLOT_BYTES) < entries
    for too_little in (-5, 0, SLOTS_MIN * SLOT_BYTES):
        assert entries_within(too_little) == FIRST


def searched(n_bytes: int) -> int:
    """The same as `entries_within`, the slow way."""
    low, high = FIRST, max(n_bytes // SLOT_BYTES, FIRST)
    while low < high:
        middle = (low + high + 1) // 2
        if peak_bytes(middle, middle) <= n_bytes:
            low = middle
        else:
            high = middle - 1
    return low


NEAR = [
    SLOTS_MIN * SLOT_BYTES * n + more for n in range(1, 70) for more in (-17, -16, -1, 0, 1, 16)
]


@given(st.one_of(st.sampled_from(NEAR), st.integers(0, 1 << 24), st.integers(0, 1 << 45)))
def test_it_is_found_without_a_search(n_bytes: int) -> None:
    assert entries_within(n_bytes) == searched(n_bytes)


def test_where_the_last_doubling_is_left_out() -> None:
    for n_bytes in NEAR:
        assert entries_within(n_bytes) == searched(n_bytes)
