"""The draws by which segments of one age do not all roll at once (L7)."""

from __future__ import annotations

from lapse.log.roll import jitter_of
from tests.support.log.logs import TP


def test_draws_are_spread_over_all_of_0_to_1() -> None:
    draws = [jitter_of(TP, base_offset) for base_offset in range(200)]
    assert 0 <= min(draws) < 0.05
    assert 0.95 < max(draws) < 1


def test_a_segment_draws_the_same_again() -> None:
    assert jitter_of(TP, 7) == jitter_of(TP, 7) != jitter_of(TP._replace(partition=4), 7)
