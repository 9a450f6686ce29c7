"""A client that is refused again and again does not fill the log."""

from __future__ import annotations

from lapse.broker.limits.log_lines import (
    ADDRESSES_MAX,
    IN_ALL_MAX,
    OF_ADDRESS_MAX,
    WINDOW_MS,
    LogLines,
)


def test_an_address_gets_some_lines_a_minute_and_the_rest_is_counted() -> None:
    lines = LogLines()
    said = [lines.unsaid("10.0.0.1", n) for n in range(1000)]
    assert said == [0] * OF_ADDRESS_MAX + [None] * (1000 - OF_ADDRESS_MAX)
    assert lines.unsaid("10.0.0.2", 1000) == 0
    assert lines.unsaid("::ffff:10.0.0.1", WINDOW_MS - 1) is None  # the same one
    assert lines.unsaid("10.0.0.1", WINDOW_MS) == 1000 - OF_ADDRESS_MAX + 1
    assert lines.unsaid("10.0.0.1", WINDOW_MS + 1) == 0


def test_all_together_get_some_and_few_are_remembered() -> None:
    lines = LogLines()
    said = [lines.unsaid(f"10.0.{n // 256}.{n % 256}", 0) for n in range(3 * ADDRESSES_MAX)]
    assert said == [0] * IN_ALL_MAX + [None] * (3 * ADDRESSES_MAX - IN_ALL_MAX)
    assert len(lines._by_address) == ADDRESSES_MAX
    assert lines.unsaid("10.0.0.1", WINDOW_MS) == 0
