"""What people type: numbers, durations, moments; and what is none of them."""

from __future__ import annotations

import pytest

from lapse.base.errors import ConfigError
from lapse.base.typed import EPOCH, duration_ms, moment_of, whole

NO_NUMBERS = ["", "-1", "+1", " 1", "1_0", "1.0", "x", "²", "٣", "9" * 5000]


@pytest.mark.parametrize("text", NO_NUMBERS)
def test_what_is_no_whole_number(text: str) -> None:
    """`int` takes some of these, `isdigit` or `isdecimal` others; thousands of digits raise."""
    assert whole(text) is None


def test_whole_numbers() -> None:
    assert (whole("0"), whole("007"), whole(str((1 << 63) - 1))) == (0, 7, (1 << 63) - 1)


@pytest.mark.parametrize(
    ("text", "ms"),
    [("500ms", 500), ("90s", 90_000), ("15m", 900_000), ("2h", 7_200_000), ("1d", 86_400_000)],
)
def test_durations(text: str, ms: int) -> None:
    assert duration_ms("--for", text) == ms


@pytest.mark.parametrize("text", [*NO_NUMBERS, "0s", "1", "1w", "s", "1sm", "²s", "9" * 5000 + "d"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ConfigError, match="--for"):
        duration_ms("--for", text)


@pytest.mark.parametrize("text", ["", "x", "9" * 5000, "9" * 5000 + "d", "²", "2026-01-31", "d"])
def test_what_is_no_moment(text: str) -> None:
    assert moment_of(text, EPOCH) is None
