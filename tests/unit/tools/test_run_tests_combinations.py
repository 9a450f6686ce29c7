"""What `make test` leaves to `make torture` of a test with several parameters."""

from __future__ import annotations

from itertools import product

import pytest

from tests.combinations import every_value_once


@pytest.mark.parametrize("counts", [(1,), (4,), (2, 2), (3, 2), (2, 3), (2, 5, 3)])
def test_every_value_is_in_one_and_few_are_run(counts: tuple[int, ...]) -> None:
    indices = list(product(*(range(count) for count in counts)))
    named = [{f"p{n}": index for n, index in enumerate(one)} for one in indices]
    chosen = [one for one, is_run in zip(indices, every_value_once(named), strict=True) if is_run]
    assert len(chosen) == max(counts)
    for parameter, count in enumerate(counts):
        assert {one[parameter] for one in chosen} == set(range(count))


def test_a_test_without_parameters_is_run() -> None:
    assert every_value_once([{}]) == [True]
    assert every_value_once([]) == []
