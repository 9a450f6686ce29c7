"""Columns of the views: what is not known is None."""

from __future__ import annotations

from lapse.lifecycle.outlook.rows import known, micros


def test_times_and_counts() -> None:
    assert [micros(t) for t in (None, -1, 0, 5, 1 << 62)] == [None, None, 0, 5000, (1 << 63) - 1]
    assert [known(n) for n in (-1, 0, 7)] == [None, 0, 7]
