"""Waits between tries."""

from __future__ import annotations

from lapse.base.backoff import backoff_ms


def test_each_failure_doubles_the_wait_up_to_a_most() -> None:
    waits = [backoff_ms(failures, 100, 5000) for failures in range(1, 9)]
    assert waits == [100, 200, 400, 800, 1600, 3200, 5000, 5000]


def test_failures_without_end_cost_nothing() -> None:
    assert backoff_ms(10**12, 1000, 300_000) == 300_000
    assert backoff_ms(1, 9000, 5000) == 5000
