"""Which old segments a commit under way replaces."""

from __future__ import annotations

import pytest

from lapse.log.intent import ReplacedGroup

BASES = (0, 40)


@pytest.mark.parametrize(
    ("sizes", "base_offset", "size", "expected"),
    [
        ((500, 600), 40, 600, True),
        ((500, 600), 0, 500, True),
        ((500, 600), 40, 500, False),  # another file of that name
        ((500, 600), 80, 600, False),
        ((), 40, 600, True),  # of a version that noted none
        ((), 80, 600, False),
        ((500,), 0, 500, False),  # of whom, nobody knows
    ],
)
def test_an_old_segment_is_known_by_its_bytes_where_they_were_noted(
    sizes: tuple[int, ...], base_offset: int, size: int, expected: bool
) -> None:
    assert ReplacedGroup(0, BASES, sizes).replaces(base_offset, size) is expected
