"""What rounds have freed, added up over time."""

from __future__ import annotations

from dataclasses import replace

from lapse.web.pages.overview import freed_series
from tests.unit.lifecycle.status.test_reports import REPORT


def test_in_order_of_time_whoever_says_it_first() -> None:
    done = [
        replace(REPORT, committed_ms=3000, bytes_freed=-5),
        replace(REPORT, committed_ms=1000, bytes_freed=7),
        replace(REPORT, committed_ms=2000, bytes_freed=10),
    ]
    assert freed_series(done) == [[1.0, 2.0, 3.0], [7, 17, 12]]
    assert freed_series([]) == [[], []]
