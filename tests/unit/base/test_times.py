"""Sums of times stay within 64 bits."""

from __future__ import annotations

import pytest

from lapse.base.times import FOREVER_MS, after_ms, duration, exact_duration

NOW = 1_700_000_000_000


@pytest.mark.parametrize(
    ("time_ms", "lags_ms", "expected"),
    [
        (NOW, (), NOW),
        (NOW, (1000, 1), NOW + 1001),
        (NOW, (-1000,), NOW - 1000),
        (NOW, (FOREVER_MS - NOW,), FOREVER_MS),
        (NOW, (FOREVER_MS - NOW - 1,), FOREVER_MS - 1),
        (NOW, (FOREVER_MS,), FOREVER_MS),
        (FOREVER_MS, (1, FOREVER_MS), FOREVER_MS),
    ],
)
def test_for_ever_is_the_latest_time(time_ms: int, lags_ms: tuple[int, ...], expected: int) -> None:
    assert after_ms(time_ms, *lags_ms) == expected


def test_durations_for_people() -> None:
    ms = (36 * 3_600_000, 5_400_000, 90_000, 1500, 7)
    assert [duration(one) for one in ms] == ["1.5 d", "1.5 h", "1.5 m", "1.5 s", "7 ms"]


def test_exact_ones_round_nothing() -> None:
    ms = {604_800_000: "7 d", 90_000_000: "25 h", 90_000: "90 s", 1500: "1500 ms", 0: "0 ms"}
    assert {one: exact_duration(one) for one in ms} == ms
    assert exact_duration(86_400_000 * 365) == "365 d"
