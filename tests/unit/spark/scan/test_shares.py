"""How many tasks offsets are cut into, and that none of them is lost."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.spark.scan.shares import at_least, handed_out


@dataclass(frozen=True, slots=True)
class Offsets:
    log: int
    offset_from: int
    offset_until: int


def cut(whole: Offsets, begin: int, until: int) -> Offsets:
    return replace(whole, offset_from=begin, offset_until=until)


def each(tasks: list[list[Offsets]]) -> list[tuple[int, int]]:
    parts = [one for task in tasks for one in task]
    return [(p.log, n) for p in parts for n in range(p.offset_from, p.offset_until)]


@pytest.mark.parametrize(
    ("sizes", "pieces", "wanted", "found"),
    [
        ([100, 100, 100], [1, 1, 1], 4, [2, 1, 1]),
        ([100, 10], [1, 1], 5, [4, 1]),
        ([1, 3], [1, 2], 4, [1, 3]),
        ([5, 5], [3, 3], 4, [3, 3]),
        ([2, 2], [1, 1], 1 << 62, [2, 2]),
        ([], [], 3, []),
    ],
)
def test_the_largest_pieces_are_cut(
    sizes: list[int], pieces: list[int], wanted: int, found: list[int]
) -> None:
    assert handed_out(sizes, pieces, wanted) == found


@given(st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=4), max_size=6),
       st.integers(1, 60))  # fmt: skip
def test_every_offset_is_in_one_task(sizes: list[list[int]], wanted: int) -> None:
    tasks = [
        [Offsets(10 * at + n, 5, 5 + size) for n, size in enumerate(task)]
        for at, task in enumerate(sizes)
    ]
    found = at_least(tasks, wanted, cut)
    total = sum(map(sum, sizes))
    assert each(found) == each(tasks)
    assert all(found)
    assert len(found) == max(len(tasks), min(wanted, total))
