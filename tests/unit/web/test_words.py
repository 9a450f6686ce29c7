"""Numbers, moments and foreign bytes as a page shows them."""

from __future__ import annotations

import pytest

from lapse.base.times import FOREVER_MS
from lapse.web import words

NOW = 1_700_000_000_000


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [(None, "–"), (0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1_610_612_736, "1.5 GiB"),
     (-2048, "-2.0 KiB"), (1 << 70, "1048576.0 PiB")],
)  # fmt: skip
def test_sizes(n_bytes: int | None, text: str) -> None:
    assert words.size(n_bytes) == text


def test_counts_do_not_break_at_the_end_of_a_line() -> None:
    assert words.count(1_234_567) == "1\u202f234\u202f567"
    assert words.count(None) == "–"
    assert (words.percent(0.254), words.percent(None)) == ("25 %", "–")


@pytest.mark.parametrize(
    ("ms", "text"),
    [(None, "–"), (NOW, "now"), (NOW + 7_200_000, "in 2.0 h"), (NOW - 90_000, "1.5 m ago"),
     (FOREVER_MS, "never")],
)  # fmt: skip
def test_how_long_until_then(ms: int | None, text: str) -> None:
    assert words.until(ms, NOW) == text


def test_moments_that_no_calendar_has() -> None:
    assert words.moment(NOW) == "2023-11-14 22:13:20 UTC"
    assert words.machine_time(NOW) == "2023-11-14T22:13:20+00:00"
    assert (words.moment(None), words.moment(-1), words.machine_time(None)) == ("–", "–", "")
    assert (words.moment(FOREVER_MS), words.machine_time(FOREVER_MS)) == (f"{FOREVER_MS} ms", "")
    assert (words.span(None), words.span(FOREVER_MS), words.span(1500)) == (
        "–",
        "for ever",
        "1.5 s",
    )
    assert (words.from_micros(None), words.from_micros(1999)) == (None, 1)


def test_foreign_bytes_are_cut_and_do_nothing() -> None:
    assert words.data(None) == ""
    assert words.data("Grüße".encode()) == "Grüße"
    assert words.data(b"a\x00\n\xff") == "a\\x00\\n\\xff"
    long = words.data(b"x" * 5000)
    assert long == "x" * 512 + " … (4.9 KiB in all)"
